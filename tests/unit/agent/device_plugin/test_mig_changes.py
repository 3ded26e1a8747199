# SPDX-License-Identifier: Apache-2.0
"""Devices of GPUs whose MIG devices change are unhealthy; those that stay are not."""

import asyncio
import contextlib
from pathlib import Path

import pytest

from nvct.agent.device_plugin import mig_changes
from nvct.agent.device_plugin.resources import Device, Resource
from nvct.mig import pause
from tests.unit.agent.device_plugin.fake_kubelet import until


def device(id_: str, gpu: str, instance: tuple[int, int] | None = None) -> Device:
    return Device(id=id_, uuid=id_.partition("::")[0], index="0", gpu=gpu, instance=instance)


DEVICES = (
    device("GPU-1", "GPU-1"),
    device("MIG-stays", "GPU-2", (9, 0)),
    device("MIG-stays::1", "GPU-2", (9, 0)),
    device("MIG-goes", "GPU-2", (9, 1)),
    device("GPU-3", "GPU-3"),
)
RESOURCE = Resource(name="nvidia.com/gpu", devices={each.id: each for each in DEVICES})


async def test_devices_are_unhealthy_while_a_change_is_announced_and_until_a_look_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mig_changes, "LOOK_S", 0.01)
    seen: list[list[str]] = []

    changes = mig_changes.MigChanges(
        lambda: seen.append(list(changes.unhealthy(RESOURCE))), str(tmp_path)
    )
    task = asyncio.create_task(changes.watch())
    with pause.announce(str(tmp_path), {"GPU-2": {(9, 0)}, "GPU-3": ()}):
        await until(lambda: len(seen) == 1)
    before = changes.ended
    await until(lambda: len(seen) == 2)
    changes.looked(before)  # that look began before the end
    assert list(changes.unhealthy(RESOURCE)) == ["MIG-goes", "GPU-3"]
    changes.looked(changes.ended)
    assert not changes.unhealthy(RESOURCE)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert seen == [["MIG-goes", "GPU-3"]] * 2
