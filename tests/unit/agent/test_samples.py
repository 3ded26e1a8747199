# SPDX-License-Identifier: Apache-2.0
"""Samples of a simulated node through supervisor and worker."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pynvml
import pytest

from nvct.agent.health import board
from nvct.agent.nvml.client import NvmlClient
from nvct.host import faults
from nvct.host.nvml.calls import Calls, Reading
from nvct.host.nvml.model import XidEvent
from nvct.host.nvml.sample_model import (
    CONDITION_VALUES,
    VALUES,
    GpuCondition,
    GpuSample,
    NvmlSamples,
)
from nvct_sim import node_changes, tree
from tests.support.nvml_node import CACHE
from tests.unit.agent.machines import client_of

RARE_S = 60.0


def make(tmp_path: Path, profile: str) -> tree.Node:
    return tree.create("samples", profile, tmp_path, nodes="plain", native_cache=CACHE)


def ask(node: tree.Node, questions: Callable[[NvmlClient], Awaitable[NvmlSamples]]) -> NvmlSamples:
    async def run() -> NvmlSamples:
        with client_of(node) as client:
            return await questions(client)

    return asyncio.run(run())


async def twice(client: NvmlClient) -> NvmlSamples:
    await client.samples()
    return await client.samples()


def of(samples: NvmlSamples, index: int) -> GpuSample:
    return next(gpu for gpu in samples.gpus if gpu.index == index)


def test_each_value_is_there_or_has_a_reason(tmp_path: Path) -> None:
    for profile in ("hgx-h100", "a100-80", "v100-8", "gtx1080ti-9", "vgpu", "mixed"):
        folder = tmp_path / profile
        folder.mkdir()
        for gpu in ask(make(folder, profile), twice).gpus:
            named = gpu.values.keys() | gpu.errors.keys()
            assert named == VALUES.keys(), (profile, named ^ VALUES.keys())
            assert not gpu.values.keys() & gpu.errors.keys()
            assert all(gpu.errors.values())


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_value_that_is_no_number_is_refused(value: float) -> None:
    """Performance metrics of samples a few milliseconds apart are NaN on a real H200."""
    reading = Reading(Calls(pynvml))

    reading.read(("sm_active", "dram_active"), lambda: (value, 1.0))

    assert reading.values == {"dram_active": 1.0}
    assert reading.errors == {"sm_active": f"NVML returns {value}"}


def test_what_was_set_is_what_is_sampled(tmp_path: Path) -> None:
    node = make(tmp_path, "hgx-h100")
    fields: dict[str, str | int] = {
        "temp": 91, "util": 77, "memutil": 5, "power_usage": 650000, "ecc_uncorrected": 2,
        "remapped_uncorrected": 3, "nvlink_tx": 4096, "tensor_active": 42, "throttle": "hw-thermal",
        "recovery": "reset", "pcie_tx": 2048, "used": 2 << 30,
    }  # fmt: skip
    node_changes.set_gpu(node, 3, **fields)
    node_changes.apply(node, "process", ["3", "4711", "memory=1000", "sm=60"])

    gpu = of(ask(node, twice), 3)

    expected = {
        "temperature": 91, "gpu_utilization": 77, "memory_utilization": 5, "power": 650000,
        "ecc_uncorrected": 2, "remapped_uncorrected": 3, "nvlink_tx": 4096, "tensor_active": 42,
        "clock_event_reasons": 0x40, "recovery_action": 1, "gpm_pcie_tx": 2 * 2**20,
    }  # fmt: skip
    assert {name: gpu.values[name] for name in expected} == expected
    assert gpu.values["memory_used"] + gpu.values["memory_reserved"] == 2 << 30
    (process,) = gpu.processes
    assert (process.pid, process.memory, process.sm, process.gi) == (4711, 1000, 60, -1)


def test_an_older_gpu_names_what_it_lacks(tmp_path: Path) -> None:
    gpu = of(ask(make(tmp_path, "v100-8"), twice), 0)

    assert "DCGM" in gpu.errors["tensor_active"]
    assert gpu.errors["remapped_corrected"] == "not supported"
    assert gpu.values["pcie_tx"] == 0
    assert gpu.values["retired_dbe"] == 0


def test_mig_devices_have_memory_and_performance_metrics(tmp_path: Path) -> None:
    node = make(tmp_path, "h100-mig")
    parent = int(node.state().find("gi")[0].fields["gpu"])
    gpu = of(ask(node, twice), parent)

    assert sorted(mig.gi for mig in gpu.mig) == [7, 8, 9, 11, 12, 13, 14]
    for mig in gpu.mig:
        assert mig.profile == "1g.10gb"
        assert mig.values["memory_total"] < gpu.values["memory_total"]
        assert "graphics_active" in mig.values
    assert gpu.errors["gpu_utilization"] == "not supported"


def test_xids_are_counted_by_gpu_and_instance(tmp_path: Path) -> None:
    node = make(tmp_path, "h100-mig")
    began = time.time()

    async def run(client: NvmlClient) -> NvmlSamples:
        await client.samples()
        for words in (["0", "31"], ["0", "31"], ["0", "43", "gi=7", "ci=0"], ["1", "79"]):
            node_changes.apply(node, "xid", words)
        until = time.monotonic() + RARE_S
        while time.monotonic() < until:
            answer = await client.samples()
            if sum(xid.count for gpu in answer.gpus for xid in gpu.xids) == 4:
                return answer
            await asyncio.sleep(0.05)
        raise AssertionError("the XIDs did not arrive")

    samples = ask(node, run)

    assert samples.watch_start >= began - 1
    counts = [(xid.xid, xid.count, xid.gi) for xid in of(samples, 0).xids]
    assert counts == [(31, 2, -1), (43, 1, 7)]
    assert [xid.xid for xid in of(samples, 1).xids] == [79]
    assert all(xid.at >= began for xid in of(samples, 0).xids)


def test_a_gpu_that_hangs_or_is_lost_is_named_and_the_others_answer(tmp_path: Path) -> None:
    node = make(tmp_path, "hgx-h100")

    async def run(client: NvmlClient) -> NvmlSamples:
        await client.samples()
        node_changes.apply(node, "gpu", ["2", "hang=3600"])
        node_changes.apply(node, "lose", ["5"])
        first = await client.samples()
        assert set(first.unanswered) == {"2", "5"}
        second = await client.samples()
        node_changes.apply(node, "gpu", ["2", "hang=0"])
        return second

    samples = ask(node, run)

    assert samples.unanswered["2"] == "no answer within 2 s"
    assert samples.unanswered["5"].endswith("gpu is lost")
    assert [gpu.index for gpu in samples.gpus] == [0, 1, 3, 4, 6, 7]


# The health of a simulated node through supervisor and worker: values, errors, two XID sources.


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
