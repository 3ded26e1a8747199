# SPDX-License-Identifier: Apache-2.0
"""MIG through the agent's client of NVML, which all tasks of the agent share."""

from __future__ import annotations

import asyncio

import pytest

from nvct.errors import NvmlError
from nvct.host.nvml.library import nvml_library
from nvct_sim import tree
from tests.unit.agent.machines import discovery

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.oci.jsontext import Json


async def test_mig_is_changed_and_a_refusal_is_no_problem_of_nvml(node: tree.Node) -> None:
    with discovery(node) as machine:
        client = machine.nvml
        client.library = nvml_library(machine.roots)
        gpu = (await client.mig()).gpus[0]
        change = client.call
        assert await change("mig_set_mode", bool, {"uuid": gpu.uuid, "enabled": True})
        place: dict[str, Json] = {"uuid": gpu.uuid, "kind": 0, "start": 0, "size": 1}
        await change("mig_create", int, place)
        with pytest.raises(NvmlError, match="nvmlDeviceCreateGpuInstanceWithPlacement"):
            await change("mig_create", int, place)
        assert client.problem == ""
        assert len((await client.mig()).gpus[0].instances) == 1


async def test_while_nvml_is_released_requests_wait(node: tree.Node) -> None:
    with discovery(node) as machine:
        client = machine.nvml
        client.library = nvml_library(machine.roots)
        await client.mig()
        async with client.released(300):
            asked = asyncio.ensure_future(client.report())
            await asyncio.sleep(0.1)
            assert not asked.done()
            assert client.busy_s == 300
        assert len((await asked).gpus) == 8
        assert client.busy_s == 0
