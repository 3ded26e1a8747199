# SPDX-License-Identifier: Apache-2.0
"""The agent's handles of NVML: closed while another program changes a MIG mode."""

from __future__ import annotations

import asyncio
import contextlib
import io
import subprocess
import sys

import pytest

from nvct.agent.core.logs import Log
from nvct.agent.nvml import mig_release
from nvct.errors import NvmlError
from nvct.mig import pause
from tests.unit.agent.device_plugin.fake_kubelet import until
from tests.unit.agent.machines import REPOSITORY

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

ANNOUNCE = """
import sys
from nvct.mig import pause
with pause.announce(sys.argv[1], {"GPU-1": eval(sys.argv[2])}):
    print("announced", flush=True)
    sys.stdin.read()
"""


class FakeNvml:
    """A client that counts how often it was released."""

    def __init__(self) -> None:
        self.releases = 0
        self.is_released = False
        self.failure: NvmlError | None = None

    @contextlib.asynccontextmanager
    async def released(self, limit_s: int) -> AsyncIterator[None]:
        assert limit_s == mig_release.LIMIT_S
        self.releases += 1
        if self.failure:
            raise self.failure
        self.is_released = True
        yield
        self.is_released = False


@contextlib.contextmanager
def another_program(folder: Path, stays: str) -> Iterator[None]:
    """Announce a change in another process."""
    with subprocess.Popen(
        [sys.executable, "-c", ANNOUNCE, str(folder), stays], cwd=REPOSITORY, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout
        assert process.stdout.readline() == "announced\n"
        yield
        process.communicate()


@contextlib.asynccontextmanager
async def following(nvml: FakeNvml, folder: Path, log: io.StringIO) -> AsyncIterator[None]:
    follows = mig_release.follow(nvml, Log(target=log), str(folder))  # type: ignore[arg-type]
    task = asyncio.create_task(follows)
    yield
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mig_release, "LOOK_S", 0.01)


def test_nvml_is_closed_while_a_mode_changes(tmp_path: Path) -> None:
    async def run() -> None:
        nvml, log = FakeNvml(), io.StringIO()
        async with following(nvml, tmp_path, log):
            with another_program(tmp_path, "()"):
                await until(lambda: nvml.is_released)
            await until(lambda: not nvml.is_released)
        assert nvml.releases == 1
        assert "NVML is closed while another program changes MIG" in log.getvalue()

    asyncio.run(run())


def test_it_stays_open_for_changes_beside_devices_that_stay_and_for_the_agents_own(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        nvml = FakeNvml()
        async with following(nvml, tmp_path, io.StringIO()):
            with another_program(tmp_path, "((9, 0),)"):
                await asyncio.sleep(0.1)
            with pause.announce(str(tmp_path), {"GPU-1": ()}):
                assert pause.read(str(tmp_path)) == {"GPU-1": frozenset()}
                await asyncio.sleep(0.1)
        assert nvml.releases == 0

    asyncio.run(run())


def test_one_that_does_not_close_is_told(tmp_path: Path) -> None:
    async def run() -> None:
        nvml, log = FakeNvml(), io.StringIO()
        nvml.failure = NvmlError("NVML hangs")
        async with following(nvml, tmp_path, log):
            with another_program(tmp_path, "()"):
                await until(lambda: "NVML stays open" in log.getvalue())

    asyncio.run(run())
