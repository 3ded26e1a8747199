# SPDX-License-Identifier: Apache-2.0
"""The health of a simulated node through supervisor and worker: values, errors, two XID sources."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nvct.agent.health import board
from nvct.agent.nvml.client import NvmlClient
from nvct.host import faults
from nvct.host.nvml.model import XidEvent
from nvct.host.nvml.sample_model import CONDITION_VALUES, GpuCondition
from nvct_sim import node_changes, tree
from tests.support.nvml_node import CACHE
from tests.unit.agent.machines import client_of

FIRST_S, LIMIT_S = 0.3, 20.0
"""Until the watch has begun; for a message that NVML does not repeat, which counts after 1.5 s."""


def run(node: tree.Node, course: Callable[[NvmlClient], Any]) -> Any:
    async def main() -> Any:
        with client_of(node) as client:
            return await course(client)

    return asyncio.run(main())


async def conditions(client: NvmlClient) -> list[GpuCondition]:
    return list((await client.conditions()).gpus)


@pytest.fixture
def node(tmp_path: Path) -> tree.Node:
    return tree.create("health", "h100-mig", tmp_path, nodes="plain", native_cache=CACHE)


def test_what_was_set_is_what_is_found_and_a_reset_sets_it_back(node: tree.Node) -> None:
    uuid = tree.gpu_uuid(node.name, 3)

    async def course(client: NvmlClient) -> tuple[GpuCondition, GpuCondition]:
        node_changes.set_gpu(
            node, 3, ecc_uncorrected=2, remap_pending=1, remap_failed=1, recovery="reset",
            energy=9000000,
        )  # fmt: skip
        before = (await conditions(client))[3]
        node_changes.reset_gpu(node, 3)
        return before, (await conditions(client))[3]

    before, after = run(node, course)

    assert before.uuid == after.uuid == uuid
    assert before.values.keys() <= set(CONDITION_VALUES)
    found = board.look(before, {})
    assert [fault.action for fault in found.faults] == ["reset", "replace", "watch", "watch"]
    assert (found.asks, found.was_reset) == (True, False)
    found = board.look(after, before.values)
    assert [fault.action for fault in found.faults] == ["replace"], "a failed remap stays"
    assert (found.asks, found.was_reset) == (False, True)


def test_a_gpu_that_is_lost_is_named_with_its_uuid(node: tree.Node) -> None:
    async def course(client: NvmlClient) -> GpuCondition:
        await client.conditions()
        node_changes.lose_gpu(node, 5)
        return (await conditions(client))[5]

    lost = run(node, course)

    assert lost.uuid == tree.gpu_uuid(node.name, 5)
    assert lost.code == faults.GPU_IS_LOST
    (fault,) = board.look(lost, {}).faults
    assert fault.action == "reboot"
    assert "gpu is lost" in fault.reason


def test_mig_devices_have_the_ids_of_their_instances(node: tree.Node) -> None:
    gpu = next(gpu for gpu in run(node, conditions) if gpu.mig)

    assert sorted(mig.gi for mig in gpu.mig) == [7, 8, 9, 11, 12, 13, 14]
    assert len({mig.uuid for mig in gpu.mig}) == 7
    assert board.look(gpu, {}).instances == {(m.gi, m.ci): m.uuid for m in gpu.mig}


def test_an_older_gpu_has_fewer_values_and_no_fault(tmp_path: Path) -> None:
    node = tree.create("old", "gtx1080ti-9", tmp_path, nodes="plain", native_cache=CACHE)

    for gpu in run(node, conditions):
        assert "ecc_uncorrected" not in gpu.values
        assert board.look(gpu, {}).faults == ()


def test_an_xid_counts_once_whichever_source_has_it(node: tree.Node) -> None:
    """NVML and the kernel report 48; the kernel alone 62 of an instance."""
    (node.tree / tree.KMSG).touch()
    uuid, bus = tree.gpu_uuid(node.name, 1), node.state().gpu(1).fields["bus"]

    async def course(client: NvmlClient) -> tuple[list[XidEvent], list[tuple[int, int]]]:
        await client.events()
        await asyncio.sleep(FIRST_S)
        node_changes.add_xid(node, 1, 48, {})
        node_changes.write_message(node, bus, 62, {"gi": "7", "ci": "0"})
        events: list[XidEvent] = []
        end = time.monotonic() + LIMIT_S
        while len(events) < 2 and time.monotonic() < end:
            await asyncio.sleep(0.1)
            events += (await client.events()).events
        gpu = (await client.samples()).gpus[1]
        return events, [(xid.xid, xid.count) for xid in gpu.xids]

    events, counts = run(node, course)

    assert events == [XidEvent(uuid=uuid, xid=48), XidEvent(uuid=uuid, xid=62, gi=7, ci=0)]
    assert counts == [(48, 1), (62, 1)]
