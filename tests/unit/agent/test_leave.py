# SPDX-License-Identifier: Apache-2.0
"""What the agent's successor takes back before nvct is removed from a node."""

from __future__ import annotations

import asyncio

from nvct.agent import leave
from nvct.agent.instance import FOLDER, Instance
from nvct.agent.status import Status

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path


def test_the_agent_yields_and_its_specifications_are_removed(tmp_path: Path) -> None:
    folder, cdi = tmp_path / FOLDER[1:], tmp_path / "run/cdi"
    cdi.mkdir(parents=True)
    own, other = cdi / "k8s.device-plugin.nvidia.com-gpu.json", cdi / "nvidia.com-gpu.json"
    own.touch()
    other.touch()

    async def yields() -> list[str]:
        yielded = asyncio.Event()
        older = Instance(str(folder))
        await older.take()
        status = Status((), yielded.set)
        await status.start(older.socket)

        async def end() -> None:
            await yielded.wait()
            await status.close()
            older.release()

        ending = asyncio.create_task(end())
        said = await asyncio.to_thread(leave.leave, str(tmp_path))
        await ending
        return said

    said = asyncio.run(yields())

    assert said == ["the agent serves this node no more", f"removed /run/cdi/{own.name}"]
    assert (own.exists(), other.exists(), folder.exists()) == (False, True, False)


def test_a_node_without_an_agent_has_nothing_to_leave(tmp_path: Path) -> None:
    assert leave.leave(str(tmp_path)) == []
