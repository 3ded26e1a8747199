# SPDX-License-Identifier: Apache-2.0
"""The host from inside a container: its files, its programs, and how its engine is reloaded.

The engine's main file and drop-in are mounted somewhere, the rest of the host below one folder.
The engine's configuration has the host's paths. Programs run in the host's root. The engine is
reloaded by a signal to the owner of its socket, or by systemd.
"""

from __future__ import annotations

import os
import posixpath
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from nvct.engine import command, detect, modules, processes, reload
from nvct.engine.command import Completed, Enter, Run
from nvct.engine.detect import Ask
from nvct.engine.model import Engine, Files, without_var
from nvct.engine.reload import Reload, Reloader
from nvct.errors import EngineError
from nvct.host import procfs
from nvct.installer.request import Request

NO_CHROOT = "SYSTEMD_IGNORE_CHROOT"
"""Keeps systemctl from taking the host's root for a chroot, in which it does nothing."""


class HostFiles(Files):
    """The host's files, as seen from this container.

    `unmoved` folders have the same path here, or belong to this container; `mounts` are pairs of a
    host's folder and its mount point here.
    """

    def __init__(
        self,
        host_root: str = "/",
        unmoved: Sequence[str] = (),
        mounts: Sequence[tuple[str, str]] = (),
    ) -> None:
        super().__init__("/")
        self._host_root = "/" if host_root == "/" else host_root.rstrip("/")
        self._unmoved = tuple(unmoved)
        self._mounts = tuple(mounts)

    def at(self, path: str) -> str:
        """Return a path of the engine as a path of this process."""
        for _, mount_point in self._mounts:
            if _is_in(path, mount_point):
                return path
        for host, mount_point in self._mounts:
            if _is_in(path, host):
                return mount_point + path[len(host) :]
        if self._host_root == "/" or _is_in(path, self._host_root):
            return path
        if any(_is_in(path, folder) for folder in self._unmoved):
            return path
        return self._host_root + path


def files_of(request: Request) -> HostFiles:
    """Return the host's files with the mounts of the request.

    Files that the user names have paths of this container; the usual files may exist only below
    the host's root.
    """
    if request.paths_are_of_host:
        return HostFiles(_root(request))
    config = posixpath.dirname(request.config)
    usual = request.config == modules.CONFIG.get(request.engine)
    unmoved = [config] if os.path.isdir(config) or not usual else []
    mounts = []
    if request.drop_in:
        mount_point = posixpath.dirname(request.drop_in)
        if request.drop_in_host:
            mounts.append((posixpath.dirname(request.drop_in_host), mount_point))
        else:
            unmoved.append(mount_point)
    return HostFiles(_root(request), unmoved, mounts)


def socket_of(request: Request) -> str:
    """Return the engine's socket as a path of this process: mounted, or below the host's root."""
    path = request.socket
    if not path or os.path.exists(path):
        return path
    mounted = here(request, path)
    return mounted if os.path.exists(mounted) else path


def here(request: Request, path: str) -> str:
    """Return a path of the host as a path of this process."""
    return HostFiles(_root(request)).at(path)


def _root(request: Request) -> str:
    return request.host_root if os.path.isdir(request.host_root) else "/"


class HostPrograms:
    """Runs the host's programs in the host's root."""

    def __init__(self, root: str) -> None:
        self.root = root

    def __call__(
        self,
        argv: Sequence[str],
        timeout_s: float = command.TIMEOUT_S,
        env: dict[str, str] | None = None,
        enter: Enter | None = None,
        executable: str | None = None,
    ) -> Completed:
        """Run a program to its end; see `command.run`."""
        if self.root == "/":
            return command.run(argv, timeout_s, env=env, enter=enter, executable=executable)
        env = {**(env or command.ENV), NO_CHROOT: "1"}

        def enter_root() -> None:
            if enter:
                enter()
            os.chroot(self.root)
            os.chdir("/")

        try:
            return command.run(argv, timeout_s, env=env, enter=enter_root, executable=executable)
        except OSError as error:
            if enter:
                raise
            reason = f"{self.root} cannot be entered: {error.strerror}"
            return command.Completed(status=command.NOT_ENTERED, err=reason)


def programs_of(request: Request) -> HostPrograms:
    """Return the runner of the host's programs."""
    return HostPrograms(_root(request))


def _is_in(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


# Reload

ATTEMPTS = 6
PAUSE_S = 5.0
ANSWER_S = 5.0
END_S = 30.0
UCRED = struct.Struct("iII")
# An HTTP/2 preface with empty settings (RFC 9113, 3.4): gRPC servers answer with theirs.
HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
MESSAGES = {"containerd": HTTP2, "docker": b"GET /_ping HTTP/1.0\r\n\r\n"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How often and how long to wait for an engine."""

    attempts: int = ATTEMPTS
    pause_s: float = PAUSE_S
    end_s: float = END_S
    sleep: Callable[[float], None] = time.sleep


def hang_up(engine: str, path: str, patience: Patience, proc: str = "/proc") -> None:
    """Send SIGHUP to an engine; wait for containerd's end. EngineError if it does not answer."""
    reason = ""
    for attempt in range(patience.attempts):
        if attempt:
            patience.sleep(patience.pause_s)
        try:
            _hang_up(engine, path, patience, proc)
        except OSError as error:
            reason = error.strerror or str(error)
        else:
            return
    raise EngineError(
        f"{engine} does not answer on {path}: {reason}",
        hint="name its socket by --socket, or use --restart-mode=systemd",
    )


def peer(engine: str, path: str) -> int:
    """Return the PID that answers on a socket, 0 if it is invisible here; OSError if none does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        connection.settimeout(ANSWER_S)
        connection.connect(path)
        connection.sendall(MESSAGES[engine])
        _, parts, _, _ = connection.recvmsg(1024, socket.CMSG_SPACE(UCRED.size))
    for level, kind, data in parts:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
            pid: int = UCRED.unpack(data[: UCRED.size])[0]
            return pid
    raise OSError(0, "the kernel does not report its process")


def _hang_up(engine: str, path: str, patience: Patience, proc: str) -> None:
    pid = peer(engine, path)
    if pid <= 0:
        raise EngineError(
            f"{engine} answers on {path}, but its process is not visible here",
            hint="share the host's process IDs: hostPID in a pod, --pid=host with docker",
        )
    # SIGHUP ends containerd, and its service manager starts it again.
    wait_s = patience.end_s if engine == "containerd" else 0.0
    reload.hang_up(pid, lambda: _check_name(engine, path, pid, proc), wait_s)


def _check_name(engine: str, path: str, pid: int, proc: str) -> None:
    program = modules.PROGRAM[engine]
    with open(f"{proc}/{pid}/comm", encoding="utf-8", errors="replace") as file:
        name = file.read().strip()
    if name != program:
        raise EngineError(
            f"{name} (process {pid}) answers on {path}, not {program}",
            hint="name the engine's own socket by --socket",
        )


OPT_OUT = "--restart-mode=none"
TIMEOUT_S = 60.0  # for an engine to be healthy again


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerReloader(Reloader):
    """Reloads an engine of the host that this container runs on."""

    engine: str  # its name, which is also that of its unit
    mode: str  # "signal", "systemd" or "none"
    socket: str  # of the engine, as a path of this process
    command: tuple[str, ...] = ()  # runs on the host in place of `mode`, unless that is "none"
    patience: Patience = field(default_factory=Patience)

    def opt_out(self) -> str:
        """Return the option that prevents the reload."""
        return "" if self.mode == "none" else OPT_OUT

    def choose(self, *, restart: bool, removing: bool) -> Reload:
        """Return what to do."""
        del restart, removing  # the user's restart mode has decided
        if self.mode == "none":
            note = f"{self.engine} is not restarted ({OPT_OUT}): its next start reads the change"
            return Reload(note=note)
        if self.command:
            return Reload(action="restart", argv=self.command)
        if self.mode == "systemd":
            return Reload(action="restart", argv=("systemctl", "restart", self.engine))
        return Reload(action="signal")

    def carry_out(self, decision: Reload, run: Run, *, restored: bool) -> str:
        """Reload the engine; return a note."""
        if decision.action == "restart":
            completed = run(list(decision.argv), reload.RESTART_TIMEOUT_S)
            if completed.status:
                raise EngineError(
                    f"{self.engine} does not start again: {completed.reason}",
                    hint="see its log on the host; --host-root is where the host's files are",
                )
            return ""
        patience = replace(self.patience, attempts=1) if restored else self.patience
        try:
            hang_up(self.engine, self.socket, patience)
        except EngineError:
            if not restored:
                raise  # if restored, the failed files stopped it: its service manager starts it
        return ""


# The engine that runs this container. An ancestor of this process says which one it is:
# containerd's shim has the socket on its command line, and CRI-O's containers have its monitor,
# conmon. That needs the host's process IDs.

SHIM, MONITOR = "containerd-shim", "conmon"
DOCKERS_NAMESPACE = "moby"
HINT = "name it: --runtime=containerd, crio or docker"


class Starter(NamedTuple):
    """The engine of a container: containerd, crio or docker; and containerd's socket."""

    engine: str
    socket: str = ""


def find(host_here: str, proc: str = "/proc", pid: int = 0, ask: Ask | None = None) -> Engine:
    """Return the engine that runs the container of the process `pid`, 0 for this. EngineError."""
    starter = starter_of(pid or os.getpid(), proc)
    if starter is None:
        raise EngineError(
            "the engine of this container is not visible among the ancestors of this process",
            hint=f"share the host's process IDs (hostPID in a pod), or {HINT}",
        )
    root = "/" if host_here == "/" else host_here.rstrip("/")
    for engine in detect.engines(Files(root), ask or _asking(root), proc):
        is_starter = engine.engine == starter.engine and (
            not starter.socket or without_var(engine.socket) == without_var(starter.socket)
        )
        if engine.pid and not engine.foreign and is_starter:
            return engine
    at = f" on {starter.socket}" if starter.socket else ""
    raise EngineError(f"{starter.engine}{at} runs this container, but was not found", hint=HINT)


def starter_of(pid: int, proc: str = "/proc") -> Starter | None:
    """Return the engine that runs the container of a process, None if there is none."""
    for words in _ancestors(pid, proc):
        name, rest = os.path.basename(words[0]), words[1:]
        if name.startswith(SHIM):
            if processes.option(rest, "namespace") == DOCKERS_NAMESPACE:
                return Starter("docker")
            return Starter("containerd", processes.option(rest, "address"))
        if name.startswith(MONITOR):
            return Starter("crio")
    return None


def _ancestors(pid: int, proc: str) -> Iterator[list[str]]:
    """Yield the command lines of a process's ancestors, the nearest one first."""
    seen = set[int]()
    while pid := procfs.parent(f"{proc}/{pid}"):
        if pid in seen:  # PIDs were reused meanwhile
            return
        seen.add(pid)
        words = (procfs.read_text(f"{proc}/{pid}/cmdline") or "").split("\0")
        if words[0]:
            yield words


def _asking(root: str) -> Ask:
    def ask(program: str, argv: list[str]) -> str:
        path = program.removeprefix(root.rstrip("/"))
        return HostPrograms(root)(argv, detect.VERSION_TIMEOUT_S, executable=path).out

    return ask
