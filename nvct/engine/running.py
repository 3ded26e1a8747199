# SPDX-License-Identifier: Apache-2.0
"""Asks running engines whether they are healthy, and which settings are in force.

dockerd and CRI-O answer HTTP on their sockets, and report their configuration (GET /info and
GET /config). containerd is asked by its client ctr, which also reports a CRI plugin that failed to
load; its files are in force unless one changed after containerd started. Podman reads its files at
each run.

Contract: only reads; each request has a time limit.
"""

from __future__ import annotations

import json
import os
import re
import socket
import time
import urllib.parse
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias, TypeVar

from nvct.engine import command, crio
from nvct.engine.command import Run
from nvct.engine.model import Engine, EngineOptions, Files, State
from nvct.errors import NvctError
from nvct.host import procfs

Ask: TypeAlias = Callable[[str, str], tuple[int, bytes]]
Kind = TypeVar("Kind")

TIMEOUT_S = 20.0
ANSWER_TIMEOUT_S = 5.0
PAUSE_S = 0.1
ANSWER_LIMIT = 16 << 20
CRI_PLUGINS = ("io.containerd.grpc.v1.cri", "io.containerd.grpc.v1", "io.containerd.cri.v1")


def ask(path: str, target: str) -> tuple[int, bytes]:
    """Return status and body of an HTTP GET over a Unix socket; OSError if nobody answers."""
    import http.client

    connection = http.client.HTTPConnection("localhost", timeout=ANSWER_TIMEOUT_S)
    connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.sock.settimeout(ANSWER_TIMEOUT_S)
        connection.sock.connect(path)
        connection.request("GET", target)
        answer = connection.getresponse()
        return answer.status, answer.read(ANSWER_LIMIT)
    except http.client.HTTPException as error:
        raise OSError(0, f"malformed answer: {error!r}") from error
    finally:
        connection.close()


def wait(find_problem: Callable[[], str], timeout_s: float = TIMEOUT_S) -> str:
    """Wait until no problem is left, and return ""; after the time limit, return the problem."""
    end = time.monotonic() + timeout_s
    while problem := find_problem():
        if time.monotonic() >= end:
            break
        time.sleep(PAUSE_S)
    return problem


def find_problem(engine: str, path: str, names: Collection[str], run: Run, address: str) -> str:
    """Return what is wrong with a running engine, "" if nothing; dockerd must list `names`.

    `path` is its socket for this process, `address` for programs that `run` starts, or "".
    """
    try:
        if engine == "docker":
            missing = sorted(set(names) - runtimes(path))
            return f"it does not list the runtime {missing[0]}" if missing else ""
        if engine == "crio":
            status, _ = ask(path, "/info")
            return "" if status == 200 else f"{path} answers {status}"
        return _containerd_problem(path, run, address)
    except OSError as error:
        return f"{path}: {error.strerror or error}"


def reloaded(path: str, since: float) -> bool:
    """Report whether dockerd has sent an event `reload` since a time (Docker's GET /events).

    It sends none if it refuses its files.
    """
    filters = urllib.parse.quote('{"type":["daemon"],"event":["reload"]}')
    try:
        status, body = ask(
            path, f"/events?since={since:.9f}&until={time.time():.9f}&filters={filters}"
        )
    except OSError:
        return False
    return status == 200 and b"reload" in body


def runtimes(path: str) -> set[str]:
    """Return the runtimes that dockerd lists. Raises OSError if it does not answer."""
    status, body = ask(path, "/info")
    try:
        if status == 200:
            return set(member(document(body), "Runtimes", dict, {}))
    except ValueError:
        pass
    raise OSError(0, f"GET /info answers {status} without a list of runtimes")


def document(body: bytes) -> dict[str, object]:
    """Return the JSON object in a daemon's answer; ValueError if it is something else."""
    try:
        data = json.loads(body)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(data, dict):
        raise ValueError("it is not an object")  # noqa: TRY004  as json's own errors
    return data


def member(data: Mapping[str, object], name: str, kind: type[Kind], default: Kind) -> Kind:
    """Return a member, the default if it is null or missing; ValueError if of another type."""
    value = data.get(name)
    if value is None:
        return default
    if not isinstance(value, kind):
        raise ValueError(f"{name} is {value!r:.60}")  # noqa: TRY004  as json's own errors
    return value


def _containerd_problem(path: str, run: Run, address: str) -> str:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(ANSWER_TIMEOUT_S)
        connection.connect(path)
    finally:
        connection.close()
    if not address:
        return ""  # it listens, but its address for ctr is unknown
    completed = run(["ctr", f"--address={address}", "plugins", "ls"], ANSWER_TIMEOUT_S)
    if completed.status == command.NOT_FOUND:
        return ""  # it listens; without ctr nothing more can be known
    return completed.reason if completed.status else failed_plugin(completed.out)


def failed_plugin(table: str) -> str:
    """Return a sentence about a CRI plugin that failed to load, from `ctr plugins ls`; or ""."""
    for line in table.splitlines():
        columns = line.split()
        cri = columns[:1] and (columns[0] in CRI_PLUGINS[2:] or columns[1:2] == ["cri"])
        if cri and columns[-1] == "error":
            return f"its plugin {columns[0]}.{columns[1]} fails to load"
    return ""


# In force

Started: TypeAlias = Callable[[int], float | None]

FILES = "its files"
SPEC_DIRS_TELL_CDI = (25, 0)
"""From this release on, dockerd reports its CDI folders, and none if CDI is off."""
SNAPSHOT = re.compile(r"\+.*|-.*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """The settings that a running engine has in force."""

    by: str = FILES  # the source: "GET /info", "GET /config", or "its files"
    state: State | None = None
    devices: tuple[str, ...] = ()  # CDI devices that it lists
    problem: str = ""
    younger: tuple[str, ...] = ()  # files that changed after it started, so it has not read them


def of(
    engine: Engine, files: State | None, ask: Ask = ask, started: Started | None = None
) -> Running | None:
    """Return the settings in force in a running engine; None if it does not run or is foreign.

    `files` is what its files say, None if they cannot be read; `started` returns when a process
    started, in seconds since the epoch.
    """
    if not engine.pid or engine.foreign:
        return None
    if engine.engine == "containerd":
        return _by_files(engine, files, started or procfs.started)
    reader = {"docker": _docker, "crio": _crio}.get(engine.engine)
    if reader is None:
        return None
    if not engine.socket:
        return Running(problem=f"the socket of {engine.engine} is unknown")
    try:
        return reader(engine, engine.root.rstrip("/") + engine.socket, ask)
    except OSError as error:
        reason = error.strerror or str(error)
        return Running(problem=f"the running {engine.engine} does not answer: {reason}")
    except (ValueError, NvctError) as error:
        return Running(problem=f"the running {engine.engine} gave a malformed answer: {error}")


def _get(socket: str, target: str, ask: Ask) -> bytes:
    status, body = ask(socket, target)
    if status != 200:
        raise OSError(0, f"GET {target} answers {status}")
    return body


def _docker(engine: Engine, socket: str, ask: Ask) -> Running:
    info = document(_get(socket, "/info", ask))
    runtimes = member(info, "Runtimes", dict, {})
    folders = tuple(map(str, member(info, "CDISpecDirs", list, [])))
    version = SNAPSHOT.sub("", member(info, "ServerVersion", str, ""))
    numbers = engine.numbers or tuple(map(int, filter(str.isdecimal, version.split("."))))
    state = State(
        handlers={
            name: member(member(runtimes, name, dict, {}), "path", str, "") for name in runtimes
        },
        default=member(info, "DefaultRuntime", str, ""),
        cdi=bool(folders) if numbers >= SPEC_DIRS_TELL_CDI else None,
        spec_dirs=folders,
    )
    discovered = member(info, "DiscoveredDevices", list, [])
    devices = [str(device.get("ID", "")) for device in discovered if isinstance(device, dict)]
    return Running(by="GET /info", state=state, devices=tuple(devices))


def _crio(engine: Engine, socket: str, ask: Ask) -> Running:
    dump = _get(socket, "/config", ask).decode()
    options = EngineOptions(engine="crio", handlers=(), dump=dump, engine_version=engine.numbers)
    return Running(by="GET /config", state=replace(crio.state(options, Files()), files=()))


def _by_files(engine: Engine, files: State | None, started: Started) -> Running:
    start = started(engine.pid)
    if start is None or files is None:
        return Running(problem=f"the time {engine.engine} started is unknown" if files else "")
    root = engine.root.rstrip("/")
    younger = tuple(
        path
        for path in dict.fromkeys((*files.files, engine.config))
        if _changed(root + path) > start + procfs.CLOCK_TICK_S
    )
    return Running(state=None if younger else files, younger=younger)


def _changed(path: str) -> float:
    """Return when a file was moved into place or changed there, 0 if there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return 0.0
    return max(status.st_mtime, status.st_ctime)


def differences(
    engine: Engine, files: State, running: Running, registered: Iterable[str]
) -> list[str]:
    """Return sentences about settings of the files that are not in force.

    `registered` are the names of the runtimes in the files whose program is NVIDIA's.
    """
    name, state = engine.engine, running.state
    if running.younger:
        names = " and ".join(running.younger)
        return [f"{names} changed after {name} started: it has not read that; {_restart(engine)}"]
    if state is None or running.by == FILES:
        return []
    sentences = []
    missing = sorted(set(registered) - set(state.handlers))
    if missing:
        sentences.append(
            f"the running {name} does not know {', '.join(missing)}, which its files name: "
            + ("nvct runtime configure, or SIGHUP" if name == "docker" else _restart(engine))
        )
    if files.default and state.default != files.default:
        sentences.append(
            f"the running {name} has {state.default or 'its own'} as the default runtime, "
            f"its files {files.default}: {_restart(engine)}"
        )
    if state.cdi is not None and files.cdi is not None and state.cdi != files.cdi:
        labels = {True: "on", False: "off"}
        sentences.append(
            f"CDI is {labels[state.cdi]} in the running {name} and {labels[files.cdi]} by its"
            f" files: {_restart(engine)}"
        )
    elif state.cdi and files.spec_dirs and set(files.spec_dirs) != set(state.spec_dirs):
        folders = ", ".join(state.spec_dirs)
        sentences.append(
            f"the running {name} looks for CDI specs in {folders}: {_restart(engine)}"
        )
    return sentences


def _restart(engine: Engine) -> str:
    if engine.restart:
        return " ".join(engine.restart)
    user = "--user " if engine.user_unit else ""
    return f"systemctl {user}restart {engine.unit.removesuffix('.service') or engine.engine}"
