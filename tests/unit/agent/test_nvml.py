# SPDX-License-Identifier: Apache-2.0
"""NVML through the supervisor: errors arrive as they are, and its end is told apart."""

import asyncio
import contextlib
import signal
import socket
from pathlib import Path

import pytest

from nvct.agent.machine.discovery import visible_nodes
from nvct.agent.machine.place import Place, look
from nvct.agent.nvml.client import NvmlClient, SupervisorEndedError
from nvct.errors import NvmlError
from nvct.host.gpu.nodes import named_nodes
from nvct.host.nvml import messages
from nvct.host.roots import Roots
from nvct.oci.jsontext import Json
from tests.unit.agent.machines import Supervisor


@pytest.fixture
def supervisor() -> Supervisor:
    return Supervisor()


async def test_what_fails_or_is_canceled_leaves_the_next_question_its_answer(
    supervisor: Supervisor,
) -> None:
    client = NvmlClient(supervisor.connection, "/nowhere/libnvidia-ml.so.1")
    asked = asyncio.create_task(client.report())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    asked.cancel()
    await client.close()  # has another kind of answer
    supervisor.process.send_signal(signal.SIGHUP)  # to read settings again: it serves on
    for _ in range(2):
        with pytest.raises(NvmlError, match=r"/nowhere/libnvidia-ml\.so\.1 cannot be loaded"):
            await client.report()
    client.disconnect()
    assert supervisor.ended() == 0


def test_those_who_wait_for_nvml_to_start_share_its_first_report() -> None:
    """An NVML that hangs is waited for once; later, each question is one of its own."""
    ours, theirs = socket.socketpair()
    report: Json = {
        "driver_version": "1", "cuda_version": "1", "gpus": [], "warnings": [], "unanswered": {},
    }  # fmt: skip

    async def asked(client: NvmlClient, count: int) -> int:
        """Return how many requests it takes to answer some questions."""
        asking = [asyncio.ensure_future(client.report()) for _ in range(count)]
        requests = 0
        while not all(each.done() for each in asking):
            await asyncio.sleep(0.01)
            with contextlib.suppress(BlockingIOError):
                number, _, _ = messages.request_of(messages.decode(_message(theirs)))
                theirs.sendall(messages.encode({"id": number, "value": report}))
                requests += 1
        for each in asking:
            each.result()
        return requests

    async def run() -> None:
        client = NvmlClient(ours)
        theirs.settimeout(0)
        assert await asked(client, 3) == 1
        assert await asked(client, 3) == 3
        client.disconnect()

    asyncio.run(run())
    theirs.close()


def _message(connection: socket.socket) -> bytes:
    return connection.recv(messages.length_of(connection.recv(messages.HEADER)))


@pytest.mark.parametrize("read", [0, 2, 9])
def test_the_end_of_a_loop_in_the_middle_of_an_answer_does_not_confuse_the_next_one(
    read: int,
) -> None:
    """Bytes of an answer that nobody waits for were taken for the length of the next one."""
    ours, theirs = socket.socketpair()
    client = NvmlClient(ours)
    old = messages.encode({"id": 1, "value": "value" * 9})

    async def interrupted() -> None:
        asked = asyncio.create_task(client.engine())
        await asyncio.sleep(0.01)
        theirs.sendall(old[:read])
        await asyncio.sleep(0.01)
        assert not asked.done()

    async def again() -> Json:
        theirs.sendall(old[read:] + messages.encode({"id": 2, "value": "new"}))
        return await client.engine()

    asyncio.run(interrupted())
    assert asyncio.run(again()) == "new"
    client.disconnect()
    theirs.close()


async def test_the_end_of_the_supervisor_is_an_error_of_its_own(supervisor: Supervisor) -> None:
    client = NvmlClient(supervisor.connection)
    supervisor.process.kill()
    with pytest.raises(SupervisorEndedError, match="NVML's supervisor has ended"):
        await client.report()
    client.disconnect()
    assert supervisor.ended() < 0


def test_a_node_that_this_container_cannot_see_counts_as_there(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    roots = Roots(dev_root=str(tmp_path))

    def sees(path: str) -> bool:
        place = Place(roots=roots, stat_node=named_nodes(roots))
        return visible_nodes(roots, look(place))(f"{roots.dev}/{path}") is not None

    assert sees("nvidia0")
    assert sees("nvidia-caps/nvidia-cap1")
    (tmp_path / "dev/nvidiactl").touch()
    (tmp_path / "dev/nvidia-caps").mkdir()
    assert not sees("nvidia0")
    assert not sees("nvidia-caps/nvidia-cap1")
