# SPDX-License-Identifier: Apache-2.0
"""config-manager: which file, what a bad one does, who gets the signal."""

import asyncio
import contextlib
import io
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from nvct.agent.config_manager import settings as options
from nvct.agent.config_manager import task
from nvct.agent.config_manager.settings import Settings
from nvct.agent.config_manager.task import ConfigManager
from nvct.agent.core.logs import Log
from nvct.agent.kubernetes.cluster import ClusterError
from nvct.errors import HostError, NvctError, UsageError
from tests.unit.agent.device_plugin.fake_kubelet import until

LABEL = "nvidia.com/device-plugin.config"
GOOD, OTHER = "version: v1\nflags: {migStrategy: mixed}\n", "version: v1\n"
BAD = "version: v1\nflags: {migStrategy: 7}\n"


@pytest.mark.parametrize(
    ("label", "default", "fallbacks", "available", "name"),
    [
        ("a", "b", (), ["a", "b"], "a"),
        (None, "b", (), ["a", "b"], "b"),
        ("", "b", (), ["a", "b"], "b"),
        (None, "", ("named", "single"), ["a", "default"], "default"),
        (None, "", ("named", "single"), ["a"], "a"),
        (None, "", ("single", "empty"), ["a", "b"], ""),
    ],
)
def test_the_label_comes_before_the_default_and_that_before_fallbacks(
    label: str | None, default: str, fallbacks: tuple[str, ...], available: list[str], name: str
) -> None:
    settings = Settings(default=default, fallbacks=fallbacks)

    assert task.choose(settings, label, available) == name


@pytest.mark.parametrize(
    ("label", "default", "sentence"),
    [
        ("c", "a", "label nvidia.com/device-plugin.config of node n names the config file 'c'"),
        (None, "c", "the default names the config file 'c', which /available-configs lacks"),
        (None, "", "no config file for node n: it has no label"),
    ],
)
def test_without_a_file_a_sentence_says_why(
    label: str | None, default: str, sentence: str
) -> None:
    with pytest.raises(HostError) as caught:
        task.choose(Settings(node_name="n", default=default), label, ["a", "b"])
    assert sentence in caught.value.message
    assert "the folder has a, b" in caught.value.hint


def test_options_are_the_incumbents() -> None:
    assert options.resolve([], {}) == (Settings(), ())
    env = {"FALLBACK_STRATEGIES": "named,single", "SIGNAL": "10", "SEND_SIGNAL": "false"}
    settings, _ = options.resolve(["--default-config=a"], env)
    assert (settings.fallbacks, settings.signal) == (("named", "single"), 10)
    assert (settings.send_signal, settings.default) == (False, "a")
    for words in (["--signal=1,2"], ["--signal=99"], ["--signal="], ["--fallback-strategies=x"]):
        with pytest.raises(UsageError):
            options.resolve(words, {})
    assert "--process-to-signal" in options.PROGRAM.help_text()


class Api:
    """Stands for the API server: one Node, whose labels a test changes."""

    def __init__(self, **labels: str) -> None:
        self.labels = labels
        self.error: ClusterError | None = None
        self.changed = asyncio.Event()

    async def find(self, _kind: object, name: str) -> dict[str, Any]:
        return {"metadata": {"name": name, "labels": self.labels}}

    async def changes(self, kind: object, name: str) -> AsyncGenerator[dict[str, Any], None]:
        while True:
            if self.error:
                raise self.error
            yield await self.find(kind, name)
            await self.changed.wait()
            self.changed.clear()

    async def close(self) -> None:
        pass


class Lab:
    """Config files, a node and the task."""

    def __init__(self, folder: Path, api: Api, **settings: Any) -> None:
        self.source = folder / "available-configs"
        self.source.mkdir()
        (self.source / "a").write_text(GOOD)
        (self.source / "b").write_text(OTHER)
        self.target = folder / "config/config.yaml"
        self.text = io.StringIO()
        self.signals = 0
        known = Settings(
            source=str(self.source), target=str(self.target), node_name="n", **settings
        )
        self.task = ConfigManager(known, api, self.notify, Log(target=self.text))  # type: ignore[arg-type]

    def notify(self) -> int:
        self.signals += 1
        return 1

    def content(self) -> str:
        return self.target.read_text() if self.target.exists() else ""

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        runs = asyncio.create_task(self.task.run())
        try:
            yield
        finally:
            runs.cancel()
            await asyncio.gather(runs, return_exceptions=True)


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task, "FILES_S", 0.02)
    monkeypatch.setattr("nvct.agent.core.waiting.DELAYS_S", (0.01,))


def test_a_file_with_mps_is_a_good_one(tmp_path: Path) -> None:
    """Its programs know where MPS has its folder, and this one need not."""
    path = tmp_path / "mps"
    path.write_text("sharing: {mps: {resources: [{name: gpu, replicas: 2}]}}")

    assert task._checked(str(path)) == path.read_bytes()


async def test_label_and_file_are_followed_and_the_program_is_told(tmp_path: Path) -> None:
    api = Api()
    lab = Lab(tmp_path, api, default="b")
    async with lab.running():
        await until(lambda: (lab.content(), lab.signals) == (OTHER, 1))
        api.labels = {LABEL: "a"}
        api.changed.set()
        await until(lambda: (lab.content(), lab.signals) == (GOOD, 2))
        (lab.source / "a").write_text(f"{GOOD}# again\n")
        await until(lambda: (lab.content(), lab.signals) == (f"{GOOD}# again\n", 3))
        assert lab.task.describe()[0] == {
            "resource": "config", "state": "written", "reason": "", "file": "a",
        }  # fmt: skip


async def test_a_bad_file_or_label_leaves_the_old_one_in_force_and_says_why(
    tmp_path: Path,
) -> None:
    api = Api(**{LABEL: "a"})
    lab = Lab(tmp_path, api)
    async with lab.running():
        await until(lambda: lab.content() == GOOD)
        (lab.source / "a").write_text(BAD)
        await until(lambda: "flags.migStrategy in" in lab.task.problem.text)
        (lab.source / "a").write_text(GOOD)
        await until(lambda: lab.task.problem.text == "")
        api.labels = {LABEL: "nothing"}
        api.changed.set()
        await until(lambda: "names the config file 'nothing'" in lab.task.problem.text)
        assert (lab.content(), lab.signals) == (GOOD, 1)
        assert "; a stays in force" in lab.text.getvalue()


async def test_an_api_server_that_does_not_answer_is_asked_again(tmp_path: Path) -> None:
    api = Api(**{LABEL: "a"})
    api.error = ClusterError("it does not answer")
    lab = Lab(tmp_path, api)
    async with lab.running():
        await until(lambda: lab.task.problem.text == "it does not answer")
        assert lab.content() == ""
        api.error = None
        await until(lambda: lab.content() == GOOD)


def test_a_link_of_the_incumbent_is_replaced_not_written_through(tmp_path: Path) -> None:
    lab = Lab(tmp_path, Api(**{LABEL: "a"}), oneshot=True, default="b")
    lab.target.parent.mkdir()
    lab.target.symlink_to(lab.source / "b")
    asyncio.run(lab.task.run())  # once, the label is known at the first look
    assert (lab.content(), (lab.source / "b").read_text()) == (GOOD, OTHER)
    assert lab.signals == 0


def test_once_without_a_good_file_is_an_error(tmp_path: Path) -> None:
    lab = Lab(tmp_path, Api(**{LABEL: "a"}), oneshot=True)
    (lab.source / "a").write_text("{")
    with pytest.raises(NvctError, match="is malformed"):
        asyncio.run(lab.task.run())
    (lab.source / "a").unlink()
    (lab.source / "b").unlink()
    lab.source.rmdir()
    with pytest.raises(HostError, match=r"the folder of config files .*: No such file"):
        asyncio.run(lab.task.run())


FORKS = (
    "import os, signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP}); "
    'child = os.fork(); os.write(1, b"%d\\n" % os.getpid()); '
    "signal.sigwait({signal.SIGHUP}); sys.exit(0 if child else 7)"
)
"""A signal that comes before sigwait waits for it; before a sleep, it would be lost."""


def test_a_program_gets_the_signal_and_what_it_forked_does_not() -> None:
    name = f"nvct-test-{os.getpid()}"
    process = subprocess.Popen(
        ["bash", "-c", f"exec -a {name} {sys.executable} -c '{FORKS}'"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    pids = {int(process.stdout.readline()) for _ in range(2)}
    (child,) = pids - {process.pid}
    try:
        assert task.processes(name) == [process.pid]
        assert task.signal_processes(name, signal.SIGHUP) == 1
        assert process.wait(20) == 0
        os.kill(child, 0)  # it lives
    finally:
        os.kill(child, signal.SIGKILL)
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_process_of_another_user_does_not_keep_the_signal_from_the_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = []

    def kill(pid: int, number: int) -> None:
        if pid == 1:
            raise PermissionError
        told.append((pid, number))

    monkeypatch.setattr(task, "processes", lambda _name: [1, 2])
    monkeypatch.setattr(os, "kill", kill)

    assert task.signal_processes("nvidia-device-plugin", signal.SIGHUP) == 1
    assert told == [(2, signal.SIGHUP)]
