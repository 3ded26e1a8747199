# SPDX-License-Identifier: Apache-2.0
"""Finds the engines of this host and the files that each of them really reads.

For a running engine, the command line of its process decides: two containerds have two
configurations. For an installed engine that does not run, the command line in its unit decides.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from nvct.config.tables import find
from nvct.engine import command, crio, modules, platforms, processes
from nvct.engine.model import Engine, Files
from nvct.engine.platforms import sentences
from nvct.engine.processes import ROOTLESS, Process, option, options
from nvct.errors import DocumentError

# (file to execute, argv) → what it printed; "" if it cannot be run.
Ask: TypeAlias = Callable[[str, list[str]], str]

PROGRAM_DIRS = ("/usr/bin", "/usr/local/bin", "/usr/sbin", "/usr/local/sbin", "/bin", "/sbin")
VERSION_TIMEOUT_S = 5.0
SOCKET_KEYS = {
    "docker": ("hosts",), "containerd": ("grpc", "address"), "crio": ("crio", "api", "listen"),
}  # fmt: skip


def engines(
    files: Files,
    ask: Ask | None = None,
    proc: str = "/proc",
    uid: int = 0,
    environ: Mapping[str, str] | None = None,
) -> list[Engine]:
    """Return the host's engines: Docker, containerd, CRI-O, Podman; of each, running ones first.

    `ask` runs a program and returns what it prints. Podman has no daemon: its files are those of
    the user `uid` with the environment `environ`.
    """
    installed = (_installed(name, files, uid, environ or {}) for name in modules.ENGINES)
    every = [
        of_process(process, files, ask, proc, uid=uid)
        for process in (*processes.running(proc, files.root), *filter(None, installed))
    ]
    running = [engine for engine in every if engine.pid]
    every = [engine for engine in every if engine.pid or not _is_running(engine, running)]
    every += platforms.without_process(files)
    return sorted(every, key=lambda engine: (modules.ENGINES.index(engine.engine), not engine.pid))


def _is_running(installed: Engine, running: Sequence[Engine]) -> bool:
    """Report whether an installed engine runs; dockerd's own containerd does not count."""
    return any(
        not engine.foreign
        and (engine.engine, engine.root) == (installed.engine, installed.root)
        and engine.platform != "Docker"
        and (engine.unit == installed.unit != "" or engine.binary == installed.binary)
        for engine in running
    )


def of_process(
    process: Process, files: Files, ask: Ask | None = None, proc: str = "/proc", *, uid: int = 0
) -> Engine:
    """Return the engine that a process is.

    A program of another user or in another file system is never run, and its files are not read:
    they could attack root, who runs this.
    """
    is_ours = process.root == "/"
    trusted = is_ours and process.uid in (0, uid)
    program = f"{proc}/{process.pid}/exe" if process.pid else files.at(process.exe)
    engine = Engine(
        engine=process.engine,
        pid=process.pid,
        binary=_binary(process, files) if trusted else process.exe,
        version=_ask(ask, program, process.engine) if trusted else "",
        unit=process.unit,
        user_unit=process.user_unit,
        uid=process.uid,
        path=process.env.get("PATH", "") if process.pid and process.env else None,
        root=files.root if is_ours else process.root,
        leave=not trusted,
        foreign=not trusted,
        advice=_advice(process, uid),
        notes=_notes(process),
    )
    return _with_files(engine, process, files if is_ours else Files(process.root))


def _binary(process: Process, files: Files) -> str:
    """Return the program to call: that of k3s is a link beside its executable."""
    program = f"{posixpath.dirname(process.exe)}/{modules.PROGRAM[process.engine]}"
    return program if os.access(files.at(program), os.X_OK) else process.exe


def _advice(process: Process, uid: int) -> tuple[str, ...]:
    if process.uid not in (0, uid):
        return sentences(platforms.OTHER_USER, uid=str(process.uid))
    return sentences(platforms.OTHER_FILE_SYSTEM) if process.root != "/" else ()


def _notes(process: Process) -> tuple[str, ...]:
    notes = []
    if process.replaced:
        notes.append(f"{process.exe} was replaced after its start: the old program still runs")
    if process.container:
        notes.append("it runs in a container")
    return tuple(notes)


def _installed(name: str, files: Files, uid: int, environ: Mapping[str, str]) -> Process | None:
    """Return an installed engine as its unit would start it; None if it is not installed."""
    candidates = (f"{folder}/{modules.PROGRAM[name]}" for folder in PROGRAM_DIRS)
    binary = next((path for path in candidates if os.access(files.at(path), os.X_OK)), "")
    if not binary:
        return None
    process = replace(processes.of_unit(name, files), exe=binary)
    # Podman needs no unit.
    return replace(process, env=environ, uid=uid) if name == "podman" else process


def _with_files(engine: Engine, process: Process, files: Files) -> Engine:
    """Return an engine with files and socket, by its command line and its platform."""
    args, env = process.args[1:], process.env
    config = process.path(_config(engine.engine, args, env, engine.uid))
    folder = process.path(_config_dir(engine.engine, args, env, config))
    engine = replace(engine, config=config, config_dir=folder)
    if engine.engine == "crio" and folder != crio.CONFIG_DIR:
        engine = replace(engine, drop_in=f"{folder}/{posixpath.basename(crio.DROP_IN)}")
    socket = process.path(_socket(engine, args, files, env))
    return platforms.adapt(replace(engine, socket=socket), files, env)


def run(program: str, argv: list[str]) -> str:
    """Return what a program prints, "" if it cannot be run or is too slow; the default `ask`."""
    return command.run(argv, VERSION_TIMEOUT_S, executable=program).out


def version(printed: str) -> str:
    """Return the version in what a program printed, "" if there is none."""
    match = command.VERSION.search(printed)
    return match[0].removeprefix("v") if match else ""


def _ask(ask: Ask | None, program: str, name: str) -> str:
    """Return a program's version; k3s acts as containerd if it is called by that name."""
    return version((ask or run)(program, [modules.PROGRAM[name], "--version"]))


def _config(name: str, args: Sequence[str], env: Mapping[str, str], uid: int) -> str:
    default = modules.CONFIG[name]
    if name in ("docker", "podman") and (uid != 0 or ROOTLESS in env):
        home = env.get("XDG_CONFIG_HOME") or f"{env.get('HOME', '')}/.config"
        file = "docker/daemon.json" if name == "docker" else "containers/containers.conf"
        default = f"{home}/{file}"
    if name == "podman":
        return env.get("CONTAINERS_CONF") or default
    if name == "docker":
        return option(args, "config-file") or default
    if name == "crio":
        default = env.get("CONTAINER_CONFIG", default)
    return option(args, "config", "c") or default


def _config_dir(name: str, args: Sequence[str], env: Mapping[str, str], config: str) -> str:
    if name == "crio":
        option_value = option(args, "config-dir", "d")
        return option_value or env.get("CONTAINER_CONFIG_DIR", crio.CONFIG_DIR)
    return f"{config}.d" if name == "podman" else ""


def _socket(engine: Engine, args: Sequence[str], files: Files, env: Mapping[str, str]) -> str:
    """Return the path of an engine's API socket; the command line overrides the file."""
    named = {
        "docker": options(args, "H", "host"),
        "containerd": [option(args, "address", "a")],
        "crio": [option(args, "listen")],
        "podman": [arg for arg in args if arg.startswith("unix:")],
    }[engine.engine]
    for value in (*named, *_configured_sockets(engine, files)):
        if value.startswith(("/", "unix:")):
            return "/" + value.removeprefix("unix:").lstrip("/")
    if engine.engine in ("docker", "podman") and env.get("XDG_RUNTIME_DIR") and engine.uid:
        socket_name = "docker.sock" if engine.engine == "docker" else "podman/podman.sock"
        return f"{env['XDG_RUNTIME_DIR']}/{socket_name}"
    return modules.SOCKET[engine.engine]


def _configured_sockets(engine: Engine, files: Files) -> list[str]:
    """Return the sockets that an engine's main file names; [] if it is unreadable or foreign."""
    if engine.foreign or engine.engine not in SOCKET_KEYS:
        return []
    try:
        data = files.read(engine.config) or b""
        document = modules.of(engine.engine).SYNTAX.parse(data, engine.config)
    except DocumentError:
        return []
    configured = find(document, SOCKET_KEYS[engine.engine])
    values = configured if isinstance(configured, list) else [configured]
    return [value for value in values if isinstance(value, str)]
