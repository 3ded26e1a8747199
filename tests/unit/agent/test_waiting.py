# SPDX-License-Identifier: Apache-2.0
"""Waits end when they should, and a cancellation is never lost."""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from nvct.agent.core import waiting
from nvct.agent.main import NOTIFY_ENV, READY, notify


async def test_it_tells_whether_the_event_is_set() -> None:
    event = asyncio.Event()
    assert not await waiting.until_set(event, 0.01)
    asyncio.get_running_loop().call_soon(event.set)
    assert await waiting.until_set(event)
    assert await waiting.until_set(event, 0)


@pytest.mark.parametrize(
    "wait_for",
    [lambda event: waiting.until_set(event, 60), lambda event: waiting.within(60, event.wait())],
    ids=["event", "work"],
)
@pytest.mark.parametrize("turns", range(6))
async def test_a_cancellation_as_the_wait_ends_is_not_lost(
    turns: int, wait_for: Callable[[asyncio.Event], Awaitable[object]]
) -> None:
    """asyncio.wait_for of Python 3.11 loses it after one turn of the loop."""

    event, goes_on = asyncio.Event(), []

    async def wait() -> None:
        await wait_for(event)
        await asyncio.sleep(0.01)
        goes_on.append(1)

    task = asyncio.create_task(wait())
    await asyncio.sleep(0.01)
    event.set()
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not goes_on


async def test_work_ends_in_time_or_is_canceled() -> None:
    ended = []

    async def work(duration_s: float) -> str:
        try:
            await asyncio.sleep(duration_s)
        finally:
            ended.append(duration_s)
        return "done"

    assert await waiting.within(60, work(0.01)) == "done"
    with pytest.raises(asyncio.TimeoutError):
        await waiting.within(0.01, work(60))
    assert ended == [0.01, 60]


async def test_what_runs_together_has_ended_when_all_are_canceled() -> None:
    ended = []

    async def work(seconds: float) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(seconds)
            ended.append(seconds)

    task = asyncio.create_task(waiting.together(work(0), work(0.05)))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == [0, 0.05]


def test_what_runs_together_ends_when_one_fails() -> None:
    ended = []

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)
            ended.append("waits")

    async def fails() -> None:
        raise ValueError("x")

    with pytest.raises(ValueError, match="x"):
        asyncio.run(waiting.together(waits(), fails()))
    assert ended == ["waits"]


# What systemd is told: by the protocol of sd_notify(3).


@pytest.mark.parametrize("is_abstract", [False, True])
def test_systemd_is_told(tmp_path: Path, *, is_abstract: bool) -> None:
    path = f"@nvct-test-{os.getpid()}" if is_abstract else f"{tmp_path}/s"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.settimeout(5)
        manager.bind(f"\0{path[1:]}" if is_abstract else path)
        notify({NOTIFY_ENV: path}, READY)
        assert manager.recv(100) == b"READY=1"


@pytest.mark.parametrize("path", ["", "vsock:2:1234", "/nowhere/at/all"])
def test_where_nobody_listens_nothing_happens(path: str) -> None:
    notify({NOTIFY_ENV: path}, READY)
