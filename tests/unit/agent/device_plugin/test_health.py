# SPDX-License-Identifier: Apache-2.0
"""XIDs that count, and the devices that they concern."""

from __future__ import annotations

import pytest

from nvct.agent.device_plugin.health import APPLICATION, affected, checks
from nvct.agent.device_plugin.resources import Device
from nvct.host.nvml.model import XidEvent

DEVICES = [
    Device(id="GPU-0", uuid="GPU-0", gpu="GPU-0", index="0"),
    Device(id="MIG-a::0", uuid="MIG-a", gpu="GPU-1", index="1:0", instance=(7, 0)),
    Device(id="MIG-a::1", uuid="MIG-a", gpu="GPU-1", index="1:0", instance=(7, 0)),
    Device(id="MIG-b", uuid="MIG-b", gpu="GPU-1", index="1:1", instance=(8, 0)),
]


@pytest.mark.parametrize(
    ("disable", "enable", "counts", "ignores"),
    [
        ("", "", {48, 79}, APPLICATION),
        ("48, 79", "", {63}, APPLICATION | {48, 79}),
        ("all", "", (), {48, 79, 13}),
        ("xids", "", (), {48, 79, 13}),
        ("xids", "79", {79}, {48, 13}),
        ("48", "48,13", {48, 13}, {31}),
        ("all", "all", {13, 48, 79}, ()),
    ],
)
def test_the_variables_say_which_xids_count(
    disable: str, enable: str, counts: set[int], ignores: set[int]
) -> None:
    found = checks({"DP_DISABLE_HEALTHCHECKS": disable, "DP_ENABLE_HEALTHCHECKS": enable})

    assert [xid for xid in counts if not found.counts(xid)] == []
    assert [xid for xid in ignores if found.counts(xid)] == []
    assert found.malformed == ()


def test_what_is_no_xid_is_reported() -> None:
    assert checks({"DP_DISABLE_HEALTHCHECKS": "48,many"}).malformed == ("many",)


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (XidEvent(uuid="GPU-0", xid=79), ["GPU-0"]),
        (XidEvent(uuid="GPU-1", xid=79), ["MIG-a::0", "MIG-a::1", "MIG-b"]),
        (XidEvent(uuid="GPU-1", xid=48, gi=7, ci=0), ["MIG-a::0", "MIG-a::1"]),
        (XidEvent(uuid="GPU-1", xid=48, gi=9, ci=0), []),
        (XidEvent(uuid="GPU-9", xid=48), []),
        (XidEvent(uuid="", xid=48), ["GPU-0", "MIG-a::0", "MIG-a::1", "MIG-b"]),
    ],
)
def test_an_event_concerns_all_devices_of_its_gpu_or_instance(
    event: XidEvent, expected: list[str]
) -> None:
    assert affected(DEVICES, event) == expected
