# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from types import MappingProxyType

import pytest

from nvct import typed
from nvct.agent.device_plugin.resources import Device, Resource
from nvct.agent.mps import daemons
from nvct.agent.mps.daemons import Daemon, Wanted
from nvct.errors import HostError
from nvct.host.nvml.model import GpuAttributes
from nvct.typed import MalformedError

GPU = "nvidia.com/gpu"
UUIDS = [f"GPU-00000000-1111-5222-8333-{n:012x}" for n in range(2)]


def attributes_of(memory_mib: int, compute: tuple[int, int]) -> dict[str, GpuAttributes]:
    gpu = GpuAttributes(memory_mib=memory_mib, compute=compute, ecc=None, mig_capable=False)
    return dict.fromkeys(UUIDS, gpu)


VOLTA, PASCAL = attributes_of(15360, (7, 0)), attributes_of(8192, (6, 1))


def shared(
    *counts: int, name: str = GPU, instance: tuple[int, int] | None = None
) -> list[Resource]:
    devices = [
        Device(
            id=f"{UUIDS[n]}::{replica}", uuid=UUIDS[n], index=str(n), gpu=UUIDS[n],
            instance=instance, is_replica=count > 1,
        )
        for n, count in enumerate(counts)
        for replica in range(count)
    ]  # fmt: skip
    return [Resource(name=name, devices={device.id: device for device in devices})]


def test_memory_and_threads_are_divided_among_the_replicas() -> None:
    (daemon,) = daemons.wanted(shared(4, 4), VOLTA).values()

    assert daemon == daemons.Daemon(
        resource=GPU, uuids=tuple(UUIDS), limits={"0": 3840, "1": 3840}, percentage=25
    )


def test_the_device_with_most_replicas_determines_the_threads() -> None:
    (daemon,) = daemons.wanted(shared(3, 2), VOLTA).values()

    assert (daemon.limits, daemon.percentage) == ({"0": 5120, "1": 7680}, 33)


def test_devices_that_are_not_shared_have_no_daemon() -> None:
    assert daemons.wanted(shared(1, 1), VOLTA) == {}
    (daemon,) = daemons.wanted(shared(1, 2), VOLTA).values()
    assert daemon.uuids == (UUIDS[1],)


def test_before_volta_there_are_no_limits() -> None:
    (daemon,) = daemons.wanted(shared(2), PASCAL).values()

    assert (daemon.limits, daemon.percentage) == ({}, 0)


def test_without_known_memory_the_threads_are_divided() -> None:
    for attributes in ({}, attributes_of(0, (0, 0))):
        (daemon,) = daemons.wanted(shared(2), attributes).values()

        assert (daemon.limits, daemon.percentage) == ({}, 50)


@pytest.mark.parametrize(("attributes", "limit"), [(VOLTA, 48), ({}, 48), (PASCAL, 16)])
def test_there_are_as_many_replicas_as_clients(
    attributes: dict[str, GpuAttributes], limit: int
) -> None:
    assert daemons.wanted(shared(limit), attributes)
    with pytest.raises(HostError, match=f"maximum allowed replicas exceeded: {limit + 1} > "):
        daemons.wanted(shared(limit + 1), attributes)


def test_mig_devices_are_refused() -> None:
    with pytest.raises(HostError, match="MPS is not supported for MIG devices"):
        daemons.wanted(shared(2, instance=(1, 0)), VOLTA)


def test_a_daemon_is_read_back_from_json() -> None:
    (daemon,) = daemons.wanted(shared(4, 4), VOLTA).values()

    assert daemons.from_json(typed.dump(daemon)) == daemon


GOOD = MappingProxyType({"resource": GPU, "uuids": [], "limits": {}, "percentage": 0})


@pytest.mark.parametrize(
    "change",
    [
        {"resource": "nvidia.com/../../etc"},
        {"resource": "/etc"},
        {"resource": "nvidia.com/a..b"},
        {"resource": None},
        {"uuids": ["--help"]},
        {"uuids": "GPU"},
        {"limits": {"0 1": 5}},
        {"limits": {"0": "5M\nquit"}},
        {"limits": []},
        {"percentage": "5"},
        {"percentage": True},
        {"more": 1},
    ],
)
def test_another_daemon_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="MPS daemon"):
        daemons.from_json({**GOOD, **change})


def test_a_task_wants_daemons_that_can_be_started() -> None:
    daemon = Daemon(resource=GPU, uuids=())
    wanted = Wanted(daemons=(daemon,) * 256)
    assert typed.load(Wanted, typed.dump(wanted)) == wanted
    for daemons_ in ((daemon,) * 257, (Daemon(resource="nvidia.com/../../etc", uuids=()),)):
        with pytest.raises(ValueError, match="MPS daemon"):
            Wanted(daemons=daemons_)
    changes: list[dict[str, object]] = [
        {"owner": "x"}, {"daemons": [{}]}, {"daemons": {}}, {"starts": 1},
    ]  # fmt: skip
    for change in changes:
        with pytest.raises(MalformedError):
            typed.load(Wanted, {**typed.dump(Wanted()), **change})
