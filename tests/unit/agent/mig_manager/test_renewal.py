# SPDX-License-Identifier: Apache-2.0
"""A MIG device that fails is destroyed and made again when idle, by itself."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from nvct.agent.kubernetes.node_pods import PodDevice
from nvct.agent.mig_manager import users as pods
from nvct.host.nvml.mig_model import MigGpu
from nvct.mig.holders import Holder
from nvct_sim import node_changes
from tests.unit.agent.device_plugin.fake_kubelet import until
from tests.unit.agent.health import engines
from tests.unit.agent.mig_manager.test_task import (
    Lab,
    lab,  # noqa: F401 - a fixture
)
from tests.unit.mig.conftest import node  # noqa: F401 - a fixture

XID = "48"


@contextlib.asynccontextmanager
async def watched(lab: Lab) -> AsyncIterator[MigGpu]:  # noqa: F811
    """Divide GPUs, watch their health, and yield the first GPU."""
    await lab.asked("all-3g.40gb")
    lab.health = engines.engine()
    watch = asyncio.create_task(lab.health.run(lambda: lab.client, lambda _: None))
    try:
        gpu = (await lab.state()).gpus[0]
        await until(lambda: _is_seen(lab))
        yield gpu
    finally:
        watch.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watch


def _is_seen(lab: Lab) -> bool:  # noqa: F811
    assert lab.health is not None
    return any(family.samples for family in lab.health.metrics())


def fails(lab: Lab, gpu: MigGpu) -> int:  # noqa: F811
    """Report an error of the first instance, and return its id."""
    gi = gpu.instances[0].id
    node_changes.apply(lab.tree, "xid", ["0", XID, f"gi={gi}", "ci=0"])
    return gi


def renewals(lab: Lab) -> int:  # noqa: F811
    return lab.log.getvalue().count("it was destroyed and made again")


async def test_an_idle_one_is_made_again_and_the_others_stay(lab: Lab) -> None:  # noqa: F811
    async with lab.running(), watched(lab) as gpu:
        before = len(lab.paused)
        gi = fails(lab, gpu)
        await until(lambda: renewals(lab) == 1)
        assert lab.health is not None
        assert lab.health.problem(gpu.uuid, (gi, 0)) == ""
        assert (await lab.state()).gpus[0].instances == gpu.instances
        assert lab.paused[before:] == [{gpu.uuid: {(gpu.instances[1].id, 0)}}]
        assert lab.cluster.states == ["pending", "success"]


async def test_one_that_a_pod_or_a_process_uses_waits(lab: Lab) -> None:  # noqa: F811
    async with lab.running(), watched(lab) as gpu:
        first = gpu.instances[0].id
        lab.pods.found = [PodDevice("default", "train", gpu.uuid, (first, 0), "MIG-1")]
        gi = fails(lab, gpu)
        assert lab.health is not None
        await until(lambda: lab.health and lab.health.broken_instances())
        await asyncio.sleep(0.5)  # two periods
        assert renewals(lab) == 0
        holder = Holder(
            pid=7, command="cuda", container="", pod="", unit="", device="GPU 0",
            instance=(gpu.uuid, gi, 0),
        )  # fmt: skip
        held = [holder]
        object.__setattr__(lab.machine, "find_holders", lambda *_: held)
        lab.pods.found = []
        await until(lambda: "has failed and is in use: process 7" in lab.log.getvalue())
        assert renewals(lab) == 0
        held.clear()
        await until(lambda: renewals(lab) == 1)


async def test_one_that_fails_again_and_again_stays_out(
    lab: Lab,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pods, "TIMES", 2)

    async with lab.running(), watched(lab) as gpu:
        gi = gpu.instances[0].id
        for number in (1, 2):
            fails(lab, gpu)
            await until(lambda: renewals(lab) == number)  # noqa: B023
        fails(lab, gpu)
        await until(lambda: "has failed again: it was made again 2 times" in lab.log.getvalue())
        assert lab.health is not None
        assert "XID 48" in lab.health.problem(gpu.uuid, (gi, 0))
        assert renewals(lab) == 2
