# SPDX-License-Identifier: Apache-2.0
"""The configuration that a running engine has in force, and its differences from the files.

dockerd (GET /info) and CRI-O (GET /config) report it on their sockets. containerd does not: its
files are in force unless one is younger than its process. Podman reads its files at each run.
Contract: only reads, never raises; each request has a time limit.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TypeAlias

from nvct.engine import crio, probe
from nvct.engine.model import Engine, EngineOptions, Files, State
from nvct.engine.probe import Ask
from nvct.errors import NvctError
from nvct.host import procfs

Started: TypeAlias = Callable[[int], float | None]

FILES = "its files"
SPEC_DIRS_TELL_CDI = (25, 0)
"""From here on dockerd lists its CDI folders, and none where CDI is off."""
SNAPSHOT = re.compile(r"\+.*|-.*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """What a running engine has in force."""

    by: str = FILES  # the source: "GET /info", "GET /config", or "its files"
    state: State | None = None
    # names of the CDI devices that it has found; () if it lists none
    devices: tuple[str, ...] = ()
    problem: str = ""
    younger: tuple[str, ...] = ()  # files that changed after it started, and that it has not read


def of(
    engine: Engine, files: State | None, ask: Ask = probe.ask, started: Started | None = None
) -> Running | None:
    """Return what a running engine has in force; None if it does not run.

    `files` is what its files say, None if they cannot be read; `started` returns when a process
    started, in seconds of the epoch.
    """
    if not engine.pid or engine.foreign:
        return None
    if engine.engine == "containerd":
        return _by_files(engine, files, started or procfs.started)
    reader = {"docker": _docker, "crio": _crio}.get(engine.engine)
    if reader is None:
        return None
    if not engine.socket:
        return Running(problem=f"{engine.engine} has no socket that is known")
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
    info = probe.document(_get(socket, "/info", ask))
    runtimes = probe.member(info, "Runtimes", dict, {})
    folders = tuple(map(str, probe.member(info, "CDISpecDirs", list, [])))
    numbers = engine.numbers or _numbers(probe.member(info, "ServerVersion", str, ""))
    state = State(
        handlers={
            name: probe.member(probe.member(runtimes, name, dict, {}), "path", str, "")
            for name in runtimes
        },
        default=probe.member(info, "DefaultRuntime", str, ""),
        cdi=bool(folders) if numbers >= SPEC_DIRS_TELL_CDI else None,
        spec_dirs=folders,
    )
    discovered = probe.member(info, "DiscoveredDevices", list, [])
    devices = [str(device.get("ID", "")) for device in discovered if isinstance(device, dict)]
    return Running(by="GET /info", state=state, devices=tuple(devices))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in SNAPSHOT.sub("", version).split(".") if part.isdecimal())


def _crio(engine: Engine, socket: str, ask: Ask) -> Running:
    dump = _get(socket, "/config", ask).decode()
    options = EngineOptions(engine="crio", handlers=(), dump=dump, engine_version=engine.numbers)
    return Running(by="GET /config", state=replace(crio.state(options, Files()), files=()))


def _by_files(engine: Engine, files: State | None, started: Started) -> Running:
    start = started(engine.pid)
    if start is None or files is None:
        return Running(problem=f"when {engine.engine} started cannot be told" if files else "")
    root = engine.root.rstrip("/")
    younger = tuple(
        path
        for path in dict.fromkeys((*files.files, engine.config))
        if _changed(root + path) > start + procfs.CLOCK_TICK_S
    )
    return Running(state=None if younger else files, younger=younger)


def _changed(path: str) -> float:
    """Return when a file was moved to its place or changed there, 0 if there is none."""
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
