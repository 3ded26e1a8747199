# SPDX-License-Identifier: Apache-2.0
"""MIG through the agent's client of NVML, which all tasks of the agent share."""

import asyncio

from nvct.host.nvml.library import nvml_library
from nvct_sim import tree
from tests.unit.agent.machines import discovery


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
