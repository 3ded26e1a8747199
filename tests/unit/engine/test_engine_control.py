# SPDX-License-Identifier: Apache-2.0
"""Unit tests for nvct.engine.engine_control."""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from nvct.engine.command import Completed
from nvct.engine.engine_control import EngineControl
from nvct.engine.model import Engine, EngineOptions, Handler
from nvct.engine.processes import Process
from nvct.engine.reload import HostReloader
from nvct.errors import EngineError
from tests.support.memory import in_memory
from tests.unit.engine.test_running import answer, info, serving

OPTIONS = EngineOptions(
    engine="docker",
    handlers=(Handler(name="nvidia", path="/usr/bin/nvidia-container-runtime"),),
    config="/etc/docker/daemon.json",
)
WAITS = (
    "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN); print('up', flush=True);"
    "signal.pause()"
)
RELOADED = answer('{"Type":"daemon","Action":"reload"}')


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    with in_memory(tmp_path) as folder:
        yield folder / "sock"


@pytest.fixture
def pid() -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-c", WAITS], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.kill()


def control(
    pid: int,
    path: Path,
    run: object = None,
    mode: str = "auto",
    *,
    runs_again: bool = True,
    **more: object,
) -> EngineControl:
    engine = Engine(engine="docker", pid=pid, unit="docker.service", socket=str(path))

    def look(pid: int) -> Process:
        return Process(engine="docker", pid=pid, exe="/usr/bin/dockerd")

    engine_control = EngineControl(
        options=OPTIONS, program="", socket=engine.socket,
        run=run or (lambda *_: Completed(status=1)),  # type: ignore[arg-type]
        reloader=HostReloader(
            engine="docker", detected=engine, mode=mode, find_process=look, find_engine=lambda: engine if runs_again else None
        ),
    )  # fmt: skip
    return replace(engine_control, **more)  # type: ignore[arg-type]


def test_a_signal_and_the_runtime_is_listed(pid: int, path: Path) -> None:
    answers = info("runc"), RELOADED, info("runc"), info("runc", "nvidia")
    with serving(path, *answers):
        notes = control(pid, path).activate(restart=False)

    assert notes == [f"docker (process {pid}) reads its file again; its containers keep running"]


def test_runtimes_are_in_force_before_the_restart_that_cdi_needs(pid: int, path: Path) -> None:
    answers = info("runc"), RELOADED, info("runc"), info("runc", "nvidia")
    with serving(path, *answers):
        notes = control(pid, path).activate(restart=True)

    assert "reads its file again" in notes[0]
    assert "--reload=restart" in notes[1]


def test_an_earlier_problem_is_not_blamed_on_the_change(pid: int, path: Path) -> None:
    notes = control(pid, path).activate(restart=False)

    assert len(notes) == 2
    assert notes[1].startswith(
        "docker was not healthy before the reload, so it was not checked after it ("
    )


def test_an_engine_that_stops_answering_is_reported_with_its_last_error(
    pid: int, path: Path
) -> None:

    def run(argv: Sequence[str], _timeout_s: float) -> Completed:
        assert argv[0] == "journalctl"
        return Completed(status=0, out='level=error msg="no such runtime"\n')

    with (
        serving(path, info("runc"), RELOADED, info("runc")),
        pytest.raises(EngineError, match="no such runtime"),
    ):
        control(pid, path, run, timeout_s=0).activate(restart=False)


def test_a_dockerd_that_silently_refuses_its_files_is_reported(pid: int, path: Path) -> None:
    with (
        serving(path, info("runc", "nvidia"), answer("")),
        pytest.raises(EngineError, match="dockerd did not reload its files in 0 s"),
    ):
        control(pid, path, timeout_s=0).activate(restart=False)


def test_runtimes_that_dockerd_keeps_after_an_undo_are_reported(pid: int, path: Path) -> None:
    listed = info("runc", "nvidia")
    with serving(path, listed, RELOADED, listed, listed):
        notes = control(pid, path, removing=True).activate(restart=False)

    assert notes[1:] == ["dockerd keeps nvidia until it is restarted"]


def test_restored_files_need_not_have_the_runtime(pid: int, path: Path) -> None:
    with serving(path, info("runc"), RELOADED, info("runc"), info("runc")):
        assert control(pid, path).activate(restart=False, restored=True) == []


def test_an_engine_that_does_not_run_after_its_restart_is_reported(pid: int, path: Path) -> None:
    engine_control = control(
        pid, path, lambda *_: Completed(status=0), mode="restart", runs_again=False, timeout_s=0
    )

    with (
        serving(path, info("runc")),
        pytest.raises(EngineError, match="does not run after its restart"),
    ):
        engine_control.activate(restart=True)


def test_files_with_an_unknown_path_in_the_engines_root_are_not_checked(
    path: Path, tmp_path: Path
) -> None:
    engine_control = control(0, path, program="dockerd", root=str(tmp_path / "host"))

    assert engine_control.check([]) == [
        "not checked by docker itself: docker's path of /etc/docker/daemon.json is unknown"
    ]


def test_an_engine_that_must_be_healthy_is_not_excused(pid: int, path: Path) -> None:
    with pytest.raises(EngineError, match="dockerd did not reload its files"):
        control(pid, path, must_be_healthy=True, timeout_s=0).activate(restart=False)


def test_a_stopped_engine_is_left_alone(path: Path) -> None:
    engine_control = control(0, path)

    assert engine_control.activate(restart=False) == []
    assert engine_control.check([]) == []
