# SPDX-License-Identifier: Apache-2.0
"""The agent's handles of NVML: closed while another program changes a MIG mode."""

import asyncio
import contextlib
import io
import math
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from nvct.agent.core.logs import Log
from nvct.agent.nvml import release
from nvct.agent.nvml.release import Release
from nvct.errors import NvmlError
from nvct.mig import pause
from tests.unit.agent.device_plugin.fake_kubelet import until
from tests.unit.agent.machines import REPOSITORY

ANNOUNCE = """
import sys
from nvct.mig import pause
with pause.announce(sys.argv[1], {"GPU-1": eval(sys.argv[2])}):
    print("announced", flush=True)
    sys.stdin.read()
"""


class FakeNvml:
    """A client that counts how often it was released, and lets the driver go."""

    def __init__(self) -> None:
        self.refusal = ""
        self.is_let_go = False
        self.releases = 0
        self.is_released = False
        self.failure: NvmlError | None = None
        self.answers = True
        self.chooses_library = False
        self.reports = 0

    def ending(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    async def report(self) -> None:
        self.reports += 1
        if not self.answers:
            raise NvmlError("libnvidia-ml.so.1 cannot be loaded")

    @contextlib.asynccontextmanager
    async def released(self, limit_s: int) -> AsyncIterator[None]:
        assert limit_s == release.LIMIT_S
        self.releases += 1
        if self.failure:
            raise self.failure
        self.is_released = True
        yield
        self.is_released = False

    async def let_go(self, reason: str) -> None:
        self.refusal = reason
        self.releases += 1
        if self.failure:
            raise self.failure
        self.is_let_go = True


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
    release = Release(nvml, Log(target=log), str(folder))  # type: ignore[arg-type]
    task = asyncio.create_task(release.follow())
    yield
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release, "LOOK_S", 0.01)


async def test_nvml_is_closed_while_a_mode_changes(tmp_path: Path) -> None:
    nvml, log = FakeNvml(), io.StringIO()
    async with following(nvml, tmp_path, log):
        with another_program(tmp_path, "()"):
            await until(lambda: nvml.is_released)
        await until(lambda: not nvml.is_released)
    assert nvml.releases == 1
    assert "NVML is closed while another program changes MIG" in log.getvalue()


async def test_it_stays_open_for_changes_beside_devices_that_stay_and_for_the_agents_own(
    tmp_path: Path,
) -> None:
    nvml = FakeNvml()
    async with following(nvml, tmp_path, io.StringIO()):
        with another_program(tmp_path, "((9, 0),)"):
            await asyncio.sleep(0.1)
        with pause.announce(str(tmp_path), {"GPU-1": ()}):
            assert pause.read(str(tmp_path)) == {"GPU-1": frozenset()}
            await asyncio.sleep(0.1)
    assert nvml.releases == 0


async def test_one_that_does_not_close_is_told(tmp_path: Path) -> None:
    nvml, log = FakeNvml(), io.StringIO()
    nvml.failure = NvmlError("NVML hangs")
    async with following(nvml, tmp_path, log):
        with another_program(tmp_path, "()"):
            await until(lambda: "NVML stays open" in log.getvalue())


PAUSED = "paused-for-driver-upgrade"
STATE = "nvidia.com/gpu-driver-upgrade-state"
CLIENT = "nvidia.com/gpu.deploy.client"


class Host:
    """A machine with a driver, whose clock and labels a test sets."""

    def __init__(self, folder: Path) -> None:
        self.nvml, self.log, self.folder = FakeNvml(), io.StringIO(), str(folder)
        # Whole seconds, of which sums are exact.
        self.now, self.has_driver = float(math.ceil(time.monotonic())), True
        self.release = Release(
            self.nvml, Log(target=self.log), self.folder,  # type: ignore[arg-type]
            lambda: self.has_driver, lambda: self.now,
        )  # fmt: skip

    def look(self) -> str:
        """Look, and return why the driver is not to be used."""
        asyncio.run(self.release.look())
        return self.nvml.refusal


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def see(host: Host, labels: dict[str, str]) -> str:
    host.release.see({"metadata": {"labels": labels}})
    return host.look()


def test_a_release_by_command_lasts_until_resume_or_its_time_is_over(tmp_path: Path) -> None:
    host = Host(tmp_path / "agent")
    assert host.look() == ""
    release.request(60, host.folder)
    assert host.look() == "the driver is being replaced, as `nvct agent release` says"
    assert host.nvml.is_let_go
    assert release.withdraw(host.folder)
    assert host.look() == ""
    assert not release.withdraw(host.folder)  # twice does no harm
    release.request(60, host.folder)
    assert host.look()
    host.now += 61
    assert host.look() == ""


def test_an_agent_that_starts_meanwhile_leaves_the_driver_alone(tmp_path: Path) -> None:
    release.request(60, str(tmp_path))
    assert Host(tmp_path).look()


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"until": "x"}', "[" * 900, '{"until": NaN}', '{"until": Infinity}',
     '{"until": 1e300}', '{"until": 1' + "0" * 400 + "}"],
)  # fmt: skip
def test_a_file_of_another_form_releases_nothing(content: str, tmp_path: Path) -> None:
    (tmp_path / release.FILE).write_text(content)
    (tmp_path / release.FILE).chmod(0o600)
    assert Host(tmp_path).look() == ""


@pytest.mark.parametrize(
    ("key", "value", "is_paused"),
    [
        (CLIENT, PAUSED, True),
        ("nvidia.com/gpu.deploy.device-plugin", f"custom_{PAUSED}", True),
        (CLIENT, "true", False),
        (CLIENT, "paused-for-mig-change", False),
        (CLIENT, f"not{PAUSED}", False),
        ("nvidia.com/other", PAUSED, False),
        (STATE, "pod-restart-required", True),
        (STATE, "validation-required", False),
    ],
)
def test_labels_release_by_nvidias_protocol(
    key: str, value: str, *, is_paused: bool, host: Host
) -> None:
    reason = f"the driver is being replaced: label {key} is {value}" if is_paused else ""
    assert see(host, {key: value}) == reason
    assert host.nvml.is_let_go is is_paused


def test_a_driver_that_is_not_loaded_yet_is_waited_for(host: Host) -> None:
    """The manager takes the labels back before its container loads the driver."""
    assert see(host, {CLIENT: PAUSED})
    host.has_driver = False
    assert see(host, {CLIENT: "true"}) == "the driver is being replaced: none is loaded yet"
    host.now += release.LOADING_S - 1
    assert host.look()
    host.has_driver = True
    assert host.look() == ""
    host.has_driver = False  # it was unloaded later, which is another matter
    assert host.look() == ""


def test_a_driver_whose_files_are_not_there_yet_is_waited_for(host: Host) -> None:
    """A manager that keeps the module takes the driver container's folder away for a while."""
    assert see(host, {CLIENT: PAUSED})
    host.nvml.answers = False
    for _ in range(3):
        assert see(host, {CLIENT: "true"}) == release.NOT_YET
    assert host.nvml.reports == 1  # not each time
    host.now += release.FILES_LOOK_S
    host.nvml.answers = True
    assert host.look() == ""
    assert "a driver is there again" in host.log.getvalue()


def test_a_library_that_a_task_names_is_not_asked_before(host: Host) -> None:
    """It is that of the former driver."""
    host.nvml.answers, host.nvml.chooses_library = False, True
    assert see(host, {CLIENT: PAUSED})
    assert see(host, {CLIENT: "true"}) == ""


@pytest.mark.parametrize(
    ("part", "lasts_s"),
    [("answers", release.FILES_S), ("has_driver", release.LOADING_S + 1)],
    ids=["does not work", "never comes"],
)
def test_a_driver_that_does_not_work_or_never_comes_is_no_upgrade_in_the_end(
    part: str, lasts_s: float, host: Host
) -> None:
    see(host, {CLIENT: PAUSED})
    setattr(host.nvml if part == "answers" else host, part, False)
    assert see(host, {})
    host.now += lasts_s
    assert host.look() == ""


def test_the_state_does_not_count_when_the_driver_has_come_back(host: Host) -> None:
    """It changes when the driver's pod is Ready, which may take a minute more."""
    state = {STATE: "pod-restart-required"}
    assert see(host, state)
    host.has_driver = False
    assert see(host, {**state, CLIENT: PAUSED})
    host.has_driver = True
    assert see(host, {**state, CLIENT: PAUSED})
    assert see(host, state) == ""
    assert see(host, {STATE: "upgrade-done"}) == ""
    assert see(host, state)  # the next upgrade


def test_one_that_cannot_let_go_says_so_and_tries_again(host: Host) -> None:
    host.nvml.failure = NvmlError("process 7 waits in the driver")
    release.request(600, host.folder)
    assert host.look()
    assert "this agent still uses the driver: process 7 waits in the driver" in host.log.getvalue()
    host.look()
    assert host.nvml.releases == 1
    host.nvml.failure = None
    host.now += release.RETRY_S
    host.look()
    assert host.nvml.is_let_go


def test_a_change_of_mig_ends_first(host: Host) -> None:
    release.request(60, host.folder)
    with pause.announce(host.folder, {"GPU-1": ((1, 0),)}):
        assert host.look() == ""
    assert host.look()


def test_a_deleted_node_changes_nothing(host: Host) -> None:
    assert see(host, {CLIENT: PAUSED})
    host.release.see(None)
    assert host.look()
