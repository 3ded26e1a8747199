# SPDX-License-Identifier: Apache-2.0
"""An engine that refuses a change gets its former files, runs, and its error is reported."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from nvct.engine import containerd as containerd_files
from nvct.engine import docker as docker_files
from nvct.engine import modules
from nvct.engine.command import Completed
from nvct.engine.engine_control import EngineControl
from nvct.engine.journal import Journal
from nvct.engine.model import Change, Engine, EngineOptions, Files, Handler, State
from nvct.engine.processes import Process
from nvct.engine.reload import HostReloader
from nvct.engine.transaction import Transaction
from nvct.errors import EngineError
from tests.engines.box import Box
from tests.engines.configured import started
from tests.engines.daemons import Containerd, Daemon, Docker
from tests.engines.releases import in_full, of_release

pytestmark = pytest.mark.slow
HANDLERS = (Handler(name="nvidia", path="/usr/bin/nvidia-container-runtime"),)
PLUGIN = {2: "io.containerd.grpc.v1.cri", 3: "io.containerd.cri.v1.runtime"}
TIMEOUT_S = 4.0
DEFAULT = re.compile(rb"""(default_runtime_name = ["'])nvidia""")


class Restartable(Containerd):
    """containerd that a test restarts without waiting for it to be well."""

    def start_again(self) -> None:
        self.stop()
        self._process = self.box.start(self._command(), "containerd.log")


class Known(Docker):
    """dockerd whose process a test knows."""

    @property
    def pid(self) -> int:
        assert self._process is not None
        program = self._process.program()
        assert program is not None
        return program


class BadContainerd:
    """Registers the handler, and names a default runtime that is none."""

    SYNTAX = containerd_files.SYNTAX

    @staticmethod
    def state(options: EngineOptions, files: Files) -> State:
        return containerd_files.state(options, files)

    @staticmethod
    def plan(options: EngineOptions, files: Files) -> Change:
        change = containerd_files.plan(replace(options, default="nvidia"), files)
        edits = [
            replace(edit, after=DEFAULT.sub(rb"\1nosuch", edit.after or b""))
            for edit in change.edits
        ]
        assert tuple(edits) != change.edits
        return replace(change, edits=tuple(edits))


class BadDocker:
    """Writes a word that daemon.json does not have."""

    SYNTAX = docker_files.SYNTAX

    @staticmethod
    def state(options: EngineOptions, files: Files) -> State:
        return docker_files.state(options, files)

    @staticmethod
    def plan(options: EngineOptions, files: Files) -> Change:
        change = docker_files.plan(options, files)
        bad = (change.edits[0].after or b"").replace(b'"runtimes"', b'"nosuch": 1, "runtimes"')
        return replace(change, edits=(replace(change.edits[0], after=bad),))


def _control(
    daemon: Daemon, options: EngineOptions, pid: int, run: Callable[..., Completed]
) -> EngineControl:
    sockets = {"docker": "docker.sock", "containerd": "containerd/containerd.sock"}
    engine = Engine(
        engine=daemon.engine, pid=pid, unit=f"{daemon.engine}.service",
        socket=f"{daemon.box.root}/run/{sockets[daemon.engine]}",
    )  # fmt: skip
    return EngineControl(
        options=options, program="", socket=engine.socket, run=run, timeout_s=TIMEOUT_S,
        reloader=HostReloader(
            engine=daemon.engine, detected=engine, mode="auto", find_engine=lambda: engine,
            find_process=lambda number: Process(engine=daemon.engine, pid=number, exe="/usr/sbin/dockerd"),
        ),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("release", "version"),
    [
        of_release("trixie", "trixie", 2),
        *in_full("bookworm", "bookworm", 2),
        *in_full("forky", "forky", 3),
        *in_full("resolute", "resolute", 3),
    ],
)
def test_a_containerd_whose_cri_plugin_fails_goes_back(
    machine_of: Callable[[str], Box], tmp_path: Path, release: str, version: int
) -> None:
    daemon = started(lambda: Restartable(machine_of(release), version))
    root = str(daemon.box.root)
    options = EngineOptions(
        engine="containerd", handlers=HANDLERS, config="/etc/containerd/config.toml",
        engine_version=daemon.version(),
    )  # fmt: skip
    restarts = []

    def run(argv: Sequence[str], _timeout_s: float = 0) -> Completed:
        if argv[0] == "systemctl":
            restarts.append(list(argv))
            daemon.start_again()
            return Completed(status=0)
        if argv[0] == "journalctl":
            log = daemon.box.work / "containerd.log"
            return Completed(status=0, out=log.read_text(encoding="utf-8"))
        output = daemon.box.call(*(word.replace(root, "") for word in argv))
        return Completed(status=output.returncode, out=output.stdout, err=output.stderr)

    control = _control(daemon, options, 1, run)
    journal = Journal(str(tmp_path / "state"))
    try:
        with pytest.raises(
            EngineError, match=rf"its plugin {PLUGIN[version]} fails to load: .*no "
        ):
            Transaction(BadContainerd, Files(root), journal, control).configure(options)

        assert restarts == [["systemctl", "restart", "containerd.service"]] * 2
        assert daemon.snapshot() == daemon.original
        assert journal.paths() == []
        assert daemon.run("echo runs").stdout == "runs\n"
    finally:
        daemon.stop()


@pytest.mark.parametrize(
    "release", [of_release("trixie"), *in_full("bookworm"), *in_full("resolute")]
)
def test_a_dockerd_that_refuses_its_file_in_silence_goes_back(
    machine_of: Callable[[str], Box], tmp_path: Path, release: str
) -> None:
    daemon = started(lambda: Known(machine_of(release)))
    options = EngineOptions(engine="docker", handlers=HANDLERS, config="/etc/docker/daemon.json")
    control = _control(daemon, options, daemon.pid, lambda *_: Completed(status=1))
    journal = Journal(str(tmp_path / "state"))
    files = Files(str(daemon.box.root))
    try:
        with pytest.raises(EngineError, match="dockerd did not reload its files in 4 s"):
            Transaction(BadDocker, files, journal, control).configure(options)

        assert daemon.snapshot() == daemon.original
        assert journal.paths() == []
        outcome = Transaction(modules.of("docker"), files, journal, control).configure(options)
        assert [edit.path for edit in outcome.edits] == [options.config]
        runtimes = daemon.docker(
            "info", "--format={{range $name, $_ := .Runtimes}}{{$name}} {{end}}"
        )
        assert "nvidia" in runtimes.stdout.split()
    finally:
        daemon.stop()
        daemon.reset()
