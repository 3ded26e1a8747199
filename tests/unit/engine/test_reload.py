# SPDX-License-Identifier: Apache-2.0
"""Unit tests for nvct.engine.reload."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from nvct.engine import reload
from nvct.engine.command import Completed
from nvct.engine.model import Engine
from nvct.engine.processes import Process
from nvct.engine.reload import HostReloader, Reload
from nvct.errors import EngineError

DOCKER = Engine(engine="docker", pid=7, unit="docker.service")
CONTAINERD = Engine(engine="containerd", pid=8, unit="containerd.service")


def reloader(
    engine: Engine | None,
    name: str = "docker",
    mode: str = "auto",
    process: Callable[[int], Process | None] = lambda _: None,
) -> HostReloader:
    return HostReloader(
        engine=name, detected=engine, mode=mode, find_process=process, find_engine=lambda: engine
    )


def test_dockerd_is_sent_a_signal_that_leaves_its_containers_running() -> None:
    assert reloader(DOCKER, "docker", "auto").choose(restart=False).action == "signal"


def test_dockerd_is_restarted_only_on_request() -> None:
    chosen = reloader(DOCKER, "docker", "auto").choose(restart=True)

    assert chosen.action == "signal"
    leaving = reloader(DOCKER, "docker", "auto").choose(restart=True, removing=True)
    assert leaving == Reload(note=chosen.note)
    assert "stops containers" in chosen.note
    assert "--reload=restart" in chosen.note
    assert reloader(DOCKER, "docker", "restart").choose(restart=True).argv == (
        "systemctl", "restart", "docker.service",
    )  # fmt: skip


@pytest.mark.parametrize("restart", [True, False])
@pytest.mark.parametrize("method", ["auto", "restart"])
def test_containerd_is_restarted_by_its_unit(method: str, *, restart: bool) -> None:
    chosen = reloader(CONTAINERD, "containerd", method).choose(restart=restart)

    assert chosen == Reload(action="restart", argv=("systemctl", "restart", "containerd.service"))


def test_a_users_unit_is_restarted_by_the_users_manager() -> None:
    engine = replace(DOCKER, user_unit=True)

    assert reloader(engine, "docker", "restart").choose(restart=True).argv[:2] == (
        "systemctl", "--user",
    )  # fmt: skip


def test_a_platform_has_its_own_restart_command() -> None:
    engine = replace(CONTAINERD, restart=("snap", "restart", "microk8s.daemon-containerd"))

    assert reloader(engine, "containerd", "auto").choose(restart=True).argv == engine.restart


def test_a_stopped_engine_is_not_reloaded() -> None:
    assert reloader(None, "docker", "auto").choose(restart=True) == Reload()
    assert reloader(replace(DOCKER, pid=0), "docker", "auto").choose(restart=True) == Reload()


def test_an_engine_without_a_unit_is_not_restarted() -> None:
    engine = replace(CONTAINERD, unit="")

    assert reloader(engine, "containerd", "auto").choose(restart=True).note == (
        "restart containerd (process 8): no unit runs it"
    )


def test_no_engine_is_reloaded_if_the_user_opts_out() -> None:
    assert reloader(DOCKER, "docker", "none").choose(restart=False) == Reload(
        note="It is recommended that docker daemon be restarted."
    )


def test_a_failed_restart_quotes_the_engine() -> None:
    log = (
        'level=info msg="starting"\nlevel=error msg="invalid config: line 3"\n'
        "systemd[1]: containerd.service: Failed with result\n"
    )

    def run(argv: Sequence[str], _timeout_s: float) -> Completed:
        if argv[0] == "systemctl":
            return Completed(status=1, err="Job for containerd.service failed.\n")
        if argv[1:] == ["--sync"]:
            synced.append(True)
            return Completed(status=0)
        assert "_SYSTEMD_UNIT=containerd.service" in argv
        assert int(argv[-1].removeprefix("--since=@")) >= start, "an earlier run's errors"
        return Completed(status=0, out=log if synced else "")

    synced: list[bool] = []
    start = int(time.time())
    chosen = reloader(CONTAINERD, "containerd", "auto").choose(restart=True)
    with pytest.raises(EngineError, match="does not start again: invalid config: line 3"):
        reloader(CONTAINERD).carry_out(chosen, run)


def test_only_the_error_of_a_log_line_is_reported() -> None:
    lines = [
        'time="2026-01-01T00:00:00Z" level=warning msg="failed to load" error="no \\"x\\""',
        'time="2026-01-01T00:00:01Z" level=info msg="containerd successfully booted"',
        "systemd[1]: failed, as ever",
    ]

    assert reload.pick(lines) == 'no "x"'
    assert reload.pick(["invalid character"]) == "invalid character"
    assert reload.pick(["all is well"]) == ""
    assert (
        reload.pick(['level=info msg="Start cri plugin with config {IgnoreErrors:false}"']) == ""
    )


def test_without_a_log_systemctls_message_is_reported() -> None:
    def run(argv: Sequence[str], _timeout_s: float) -> Completed:
        return Completed(status=1, err=f"{argv[0]} failed\n")

    chosen = reloader(CONTAINERD, "containerd", "auto").choose(restart=True)
    with pytest.raises(EngineError, match="does not start again: systemctl failed"):
        reloader(CONTAINERD).carry_out(chosen, run)


WAITS = (
    "import signal,sys; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP]);"
    "print('up', flush=True); signal.sigwait([signal.SIGHUP]); sys.exit(42)"
)


def test_the_signal_reaches_the_engine() -> None:
    with subprocess.Popen([sys.executable, "-c", WAITS], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        engine = replace(DOCKER, pid=process.pid)

        sender = reloader(
            engine, process=lambda pid: Process(engine="docker", pid=pid, exe="/usr/bin/dockerd")
        )
        sender.carry_out(Reload(action="signal"), lambda *_: Completed(status=1))

        assert process.wait(20) == 42


@pytest.mark.parametrize(
    "visible",
    [None, Process(engine="podman", pid=1, exe="/usr/bin/podman")],
    ids=["none", "other"],
)
def test_a_reused_process_number_gets_no_signal(visible: Process | None) -> None:
    with subprocess.Popen([sys.executable, "-c", WAITS], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        engine = replace(DOCKER, pid=process.pid)

        with pytest.raises(EngineError, match="has just ended"):
            reloader(engine, process=lambda _: visible).carry_out(
                Reload(action="signal"), lambda *_: Completed(status=1)
            )

        assert process.poll() is None
        process.send_signal(signal.SIGKILL)


def test_an_ended_process_is_reported() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    engine = replace(DOCKER, pid=process.pid)

    with pytest.raises(EngineError, match="has just ended"):
        reloader(engine).carry_out(Reload(action="signal"), lambda *_: Completed(status=1))
    assert os.getpid() != process.pid
