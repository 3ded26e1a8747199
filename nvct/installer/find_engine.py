# SPDX-License-Identifier: Apache-2.0
"""Finds the engine that runs this container, and the files that it reads on its platform.

An ancestor of this process says which engine it is: containerd's shim has the socket on its
command line, and CRI-O's containers have its monitor, conmon. Needs the host's process IDs.
`nvct.engine.platforms` knows what a platform makes of an engine's files.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from typing import NamedTuple

from nvct.engine import command, detect
from nvct.engine.detect import Ask
from nvct.engine.model import Engine, Files
from nvct.engine.processes import option
from nvct.errors import EngineError

SHIM, MONITOR = "containerd-shim", "conmon"
DOCKERS_NAMESPACE = "moby"
LIMIT = 1 << 16
HINT = "name it: --runtime=containerd, crio or docker"


class Starter(NamedTuple):
    """The engine of a container: containerd, crio or docker; and containerd's socket."""

    engine: str
    socket: str = ""


def find(host_here: str, proc: str = "/proc", pid: int = 0, ask: Ask | None = None) -> Engine:
    """Return the engine of a process's container.

    Args:
        host_here: where the host's root is mounted.
        proc: where procfs is, with the processes of the host.
        pid: of the process, 0 for this one.
        ask: runs a program of the host.

    Raises:
        EngineError: the process is in no container, or the engine's own process is not visible.
    """
    starter = starter_of(pid or os.getpid(), proc)
    if starter is None:
        raise EngineError(
            "the engine of this container is not visible: no ancestor of this process is of one",
            hint=f"share the host's process IDs (hostPID in a pod), or {HINT}",
        )
    root = "/" if host_here == "/" else host_here.rstrip("/")
    for engine in detect.engines(Files(root), ask or _asking(root), proc):
        if engine.pid and not engine.foreign and _is(engine, starter):
            return engine
    at = f" on {starter.socket}" if starter.socket else ""
    raise EngineError(f"{starter.engine}{at} runs this container, but was not found", hint=HINT)


def starter_of(pid: int, proc: str = "/proc") -> Starter | None:
    """Return the engine that runs the container of a process, None if there is none."""
    for words in _ancestors(pid, proc):
        name, rest = os.path.basename(words[0]), words[1:]
        if name.startswith(SHIM):
            if option(rest, "namespace") == DOCKERS_NAMESPACE:
                return Starter("docker")
            return Starter("containerd", option(rest, "address"))
        if name.startswith(MONITOR):
            return Starter("crio")
    return None


def _is(engine: Engine, starter: Starter) -> bool:
    if engine.engine != starter.engine:
        return False
    return not starter.socket or _usual(engine.socket) == _usual(starter.socket)


def _usual(path: str) -> str:
    """Return a path with the usual name of /run."""
    return path.removeprefix("/var") if path.startswith("/var/run/") else path


def _ancestors(pid: int, proc: str) -> Iterator[list[str]]:
    """Yield the command lines of a process's ancestors, the nearest one first."""
    seen = set[int]()
    while pid := _parent(pid, proc):
        if pid in seen:  # numbers were reused meanwhile
            return
        seen.add(pid)
        words = _read(f"{proc}/{pid}/cmdline").decode(errors="replace").split("\0")
        if words[0]:
            yield words


def _parent(pid: int, proc: str) -> int:
    """Return the parent of a process, 0 if there is none: field 4 of proc_pid_stat(5)."""
    fields = _read(f"{proc}/{pid}/stat").rpartition(b")")[2].split()
    return int(fields[1]) if len(fields) > 1 and fields[1].isdigit() else 0


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(LIMIT)
    except OSError:
        return b""


def _asking(root: str) -> Ask:
    """Return a function that runs programs in the host's root, where their libraries are."""

    def enter() -> None:
        os.chroot(root)
        os.chdir("/")

    def ask(program: str, argv: list[str]) -> str:
        try:
            return subprocess.run(
                argv, executable=program.removeprefix(root.rstrip("/")), check=False,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                timeout=detect.VERSION_TIMEOUT_S, env=command.ENV, text=True, errors="replace",
                preexec_fn=enter,
            ).stdout  # fmt: skip
        except (OSError, subprocess.SubprocessError):
            return ""

    return ask
