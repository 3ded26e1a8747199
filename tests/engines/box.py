# SPDX-License-Identifier: Apache-2.0
"""A private machine with the engines of another release and a simulated node in it.

It has its own mount, PID, network, UTS and IPC namespaces. When its first process ends, so do all
its processes; files in its /etc, /run, /dev and in the engines' folders in /var/lib vanish. So
tests can use the usual paths. Files elsewhere, as in the work folder, stay.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from nvct.errors import ContainerNotPossibleError
from nvct.paths import DEFAULT_PATH_DIRS
from nvct_sim import attach
from nvct_sim.tree import Node
from tests.engines.inside import READY
from tests.support.cpu import Limit

REPOSITORY = Path(__file__).parents[2]
PROGRAMS = Path(sys.executable).parent
SIGNALS = ("env", "--default-signal")
"""Resets signals: under nohup, engines that reload on SIGHUP would ignore it."""
DIE_WITH_TESTS = ("setpriv", "--pdeathsig=KILL")
"""Ends the machine with the tests, even if they are killed."""
GROUP = "nvct-test-"
NAMESPACES = ("mount", "net", "uts", "ipc", "pid")
START = (
    "import sys; sys.path.insert(0, {repository!r}); from tests.engines.inside import main; "
    "main(*sys.argv[1:])"
)
TRACEBACK = "Traceback (most recent call last)"
GO = {"GOGC": "off", "GOMEMLIMIT": "512MiB"}
"""Go's programs collect garbage at this size only: an API server starts with two thirds of the CPU time."""
CALL_TIMEOUT_S = 120.0
START_TIMEOUT_S = 120.0


class Box:
    """A running private machine.

    Attributes:
        work: a folder that it shares with the host.
        cgroup: name of the control group of its containers, with the id of a process that lives as
            long as the machine; removed at the end.
    """

    def __init__(self, engines: Path, node: Node, work: Path, driver_root: str) -> None:
        """Start the machine.

        Raises:
            ContainerNotPossibleError: its mounts or namespaces cannot be made here.
            AssertionError: its first process fails for another reason, a bug of the tests.
        """
        self.work = work
        _remove_abandoned_groups()
        self._daemons: list[BoxedProcess] = []
        path = ":".join([str(PROGRAMS), *DEFAULT_PATH_DIRS])
        self._env = {"PATH": path, "HOME": "/root", **GO}
        code = START.format(repository=str(REPOSITORY))
        command = [
            *SIGNALS, *DIE_WITH_TESTS, "unshare", *(f"--{name}" for name in NAMESPACES), "--fork", "--kill-child",
            "--mount-proc", "--propagation=private",
            sys.executable, "-c", code, str(engines), str(node.tree), str(work), driver_root,
        ]  # fmt: skip
        self._process = subprocess.Popen(
            command, env=self._env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        self.cgroup = f"{GROUP}{self._process.pid}"
        assert self._process.stdout is not None
        output = self._process.stdout.readline()
        if output != READY:
            output += self._end()
            assert TRACEBACK not in output, output
            last = (output.strip().splitlines() or ["no reason given"])[-1]
            raise ContainerNotPossibleError(f"no private machine here: {last}")
        pid = self._process.pid
        self.init = int(Path(f"/proc/{pid}/task/{pid}/children").read_text())

    @property
    def root(self) -> Path:
        """Return the path of its root, for use from outside."""
        return Path(f"/proc/{self.init}/root")

    def see(self, folder: str) -> None:
        """Add a folder of this host to PATH."""
        self._env["PATH"] += f":{folder}"

    def write(self, path: str, text: str) -> None:
        """Write a file in it."""
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text.encode("utf-8", "surrogateescape"))

    def read(self, path: str) -> str:
        """Return the text of a file in it."""
        return (self.root / path.lstrip("/")).read_text(encoding="utf-8")

    def accepts(self, path: str) -> bool:
        """Report whether a program accepts connections on a Unix socket in it.

        This costs nothing; a client of the program costs up to 0.1 s of CPU time.
        """
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            try:
                client.connect(str(self.root / path.lstrip("/")))
            except OSError:
                return False
        return True

    def start(self, arguments: list[str], log: str) -> BoxedProcess:
        """Start a daemon in it; the output goes to a file in the work folder."""
        with (self.work / log).open("ab") as file:
            daemon = BoxedProcess(
                self._into(arguments), env=self._env, stdin=subprocess.DEVNULL, stdout=file,
                stderr=file,
            )  # fmt: skip
        self._daemons.append(daemon)
        return daemon

    def call(
        self,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        timeout: float = CALL_TIMEOUT_S,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program in it to its end."""
        return subprocess.run(
            self._into(list(arguments)), env={**self._env, **(env or {})}, capture_output=True,
            text=True, check=False, timeout=timeout, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def until(
        self, ready: Callable[[], bool], log: str, timeout_s: float = START_TIMEOUT_S
    ) -> None:
        """Wait until a condition holds.

        Raises:
            ContainerNotPossibleError: the time is up; the error has the end of the log.
        """
        limit = Limit(timeout_s)
        while not ready():
            if limit.is_over:
                text = (self.work / log).read_text(encoding="utf-8", errors="replace")
                raise ContainerNotPossibleError(f"it does not start here: {text[-400:]}")
            time.sleep(0.1)

    def _end(self) -> str:
        """Wait for the first process to end, or kill it; return the rest of its output."""
        try:
            return self._process.communicate(timeout=START_TIMEOUT_S)[0]
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.communicate()[0]

    def close(self) -> None:
        """End all processes in it, and remove its control groups."""
        self._process.kill()
        self._process.communicate()
        for daemon in self._daemons:
            daemon.wait()
        for top in _groups(self.cgroup):
            _remove_groups(top)

    @property
    def env(self) -> Mapping[str, str]:
        """Return the variables of programs in it."""
        return self._env

    @property
    def entrance(self) -> list[str]:
        """Return the command that enters it; options of nsenter, "--" and a command follow."""
        kinds = (f"--{name}" for name in NAMESPACES)
        return [*SIGNALS, "nsenter", f"--target={self.init}", *kinds]

    def _into(self, arguments: list[str]) -> list[str]:
        return [*self.entrance, "--", *arguments]


class BoxedProcess(subprocess.Popen[bytes]):
    """A program that was started in a box, a child of nsenter."""

    def program(self) -> int | None:
        """Return the program's process id outside of the box; None if it has ended."""
        try:
            children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text("ascii")
        except OSError:
            return None
        return int(children.split()[0]) if children else None

    def send_signal(self, sig: int) -> None:
        """Send a signal to the program: nsenter would end without passing it on."""
        program = self.program() if self.poll() is None else None
        if program is None:
            super().send_signal(sig)
        else:
            os.kill(program, sig)


def _groups(pattern: str) -> list[Path]:
    hierarchies = Path("/sys/fs/cgroup")
    return [*hierarchies.glob(pattern), *hierarchies.glob(f"*/{pattern}")]


def _remove_groups(top: Path) -> None:
    for folder, _, _ in os.walk(top, topdown=False):
        for _ in range(50):
            try:
                os.rmdir(folder)
                break
            except OSError:
                time.sleep(0.02)  # its processes have not all ended yet


def _remove_abandoned_groups() -> None:
    """Remove the control groups of tests that were killed."""
    for top in _groups(f"{GROUP}*"):
        if not Path("/proc", top.name.removeprefix(GROUP)).exists():
            _remove_groups(top)


DRIVER_ROOT = attach.DRIVER_ROOT
