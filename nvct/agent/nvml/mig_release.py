# SPDX-License-Identifier: Apache-2.0
"""Closes this agent's handles of NVML while another program changes a MIG mode.

A mode can change, and a GPU be reset, only while nobody has the GPU open. The agent's own MIG
manager uses the same session, and needs none of this.
"""

from __future__ import annotations

import asyncio

from nvct.agent.core.instance import FOLDER
from nvct.agent.machine.folder_watch import FolderWatch
from nvct.errors import NvmlError
from nvct.mig import pause

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.agent.core.logs import Log
    from nvct.agent.nvml.client import NvmlClient

LOOK_S = 0.2
"""How often the announcement is looked at while there is one, or where nothing reports one."""
RETRY_S = 5.0
LIMIT_S = 300
"""How long a change may keep others waiting; the reset of a GPU takes most of it."""


async def follow(client: NvmlClient, journal: Log, folder: str = FOLDER) -> None:
    """Release NVML for changes of others until canceled."""
    with FolderWatch() as changes:
        while True:
            if _wants_gpu(folder):
                await _release(client, journal, folder)
            await changes.wait([folder], LOOK_S)


async def _release(client: NvmlClient, journal: Log, folder: str) -> None:
    """Release NVML for the change that is announced."""
    try:
        async with client.released(LIMIT_S):
            journal.info("NVML is closed while another program changes MIG")
            while _wants_gpu(folder):  # noqa: ASYNC110 - nothing reports a file lock
                await asyncio.sleep(LOOK_S)
    except NvmlError as error:
        journal.warning(f"NVML stays open while another program changes MIG: {error.message}")
        await asyncio.sleep(RETRY_S)


def _wants_gpu(folder: str) -> bool:
    """Return whether another program changes a GPU of which no MIG device stays."""
    announced = pause.read(folder, of_others=True)
    return any(not instances for instances in announced.values())
