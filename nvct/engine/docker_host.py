# SPDX-License-Identifier: Apache-2.0
"""Collects what decides whether `docker run --gpus` works: client, daemons, programs, GPUs.

`look` reads; `nvct.doctor.docker` judges. Contract: only reads, never raises: a value that
does not exist or is not accessible is None.
"""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, replace

from nvct import paths
from nvct.config.tables import string
from nvct.engine import detect, docker, processes, running
from nvct.engine.detect import Ask
from nvct.engine.engine_files import read_object
from nvct.engine.journal import Journal
from nvct.engine.model import Engine, EngineOptions, Files, State
from nvct.engine.processes import Process
from nvct.engine.running import Ask as Get
from nvct.engine.running import Running
from nvct.errors import NvctError
from nvct.host import modes, procfs
from nvct.host.gpu import pci
from nvct.host.procfs import started
from nvct.host.roots import Roots

HOOKS = (paths.RUNTIME_HOOK_PROGRAM, paths.HOOK_PROGRAM)
KIND = paths.GPU_KIND
DEFAULT_ENDPOINT = "unix:///var/run/docker.sock"
WSL_DESKTOP = "/mnt/wsl/docker-desktop"
OPT_DIRS = ("/usr/local/nvidia/toolkit", "/snap/bin", "/run/current-system/sw/bin")
"""Folders searched besides the usual ones, to tell the user where a program is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program, and when it was put into its place, in seconds since the epoch."""

    path: str
    arrived: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """The `docker` command of the calling user."""

    program: str = ""
    podman: bool = False
    endpoint: str = DEFAULT_ENDPOINT
    source: str = "by default"  # of the address: DOCKER_HOST, a context, or the default


@dataclass(frozen=True, slots=True, kw_only=True)
class Daemon:
    """A running dockerd."""

    engine: Engine
    started: float | None = None  # in seconds since the epoch; None if that is unknown
    programs: Mapping[str, Program]  # those of HOOKS on its PATH; if unknown, the usual PATH
    state: State | None = None  # of its daemon.json; None if malformed, and `problem` says why
    problem: str = ""
    configured: float | None = None  # when that file was written; None if there is none
    former: tuple[str, ...] = ()  # programs of its runtimes before nvct changed that file
    apart: bool = False  # whether it has a PID namespace of its own: no client here talks to it
    spec_dirs: tuple[str, ...] = paths.CDI_SPEC_DIRS
    specs: tuple[str, ...] = ()  # the files there that describe NVIDIA GPUs
    running: Running | None = None  # the settings in force that it reports; None if not asked


@dataclass(frozen=True, slots=True, kw_only=True)
class DockerHost:
    """The input of `nvct.doctor.docker.why_docker_cannot`."""

    client: Client = Client()
    daemons: tuple[Daemon, ...] = ()
    programs: Mapping[str, Program]  # those of HOOKS in usual folders or on the user's PATH
    gpus: int = 0
    driver: str = ""
    elsewhere: str = ""  # another driver that a GPU is bound to: nouveau, vfio-pci, or ""
    system_runtimes: tuple[str, ...] = ()
    hidden: str = ""  # why running daemons may be invisible, "" if none is


def look(
    files: Files,
    roots: Roots,
    environ: Mapping[str, str],
    ask: Ask | None = None,
    proc: str = "/proc",
    *,
    get: Get = running.ask,
) -> DockerHost:
    """Return what decides on this host whether `docker run --gpus` works."""
    dockerds = [p for p in processes.running(proc, files.root) if p.engine == "docker"]
    bound = pci.bound_elsewhere(roots)
    system_state, _ = _state("", files.root)
    return DockerHost(
        client=client(files, environ),
        daemons=tuple(
            _daemon(detect.of_process(process, files, ask, proc), process, files, proc, get)
            for process in dockerds
        ),
        programs=_on_path(
            ":".join((*paths.DEFAULT_PATH_DIRS, *OPT_DIRS, environ.get("PATH", ""))), files.at("/")
        ),
        # The GPUs of WSL and Tegra are on no PCI bus.
        gpus=len(procfs.gpus(roots)) or pci.count(roots) or int(modes.detect(roots) != "nvml"),
        driver=procfs.driver_version(roots) or ("WSL" if modes.is_wsl(roots) else ""),
        elsewhere=bound[0].driver if bound else "",
        system_runtimes=tuple(system_state.handlers) if system_state else (),
        hidden=procfs.hidden_processes(proc),
    )


def client(files: Files, environ: Mapping[str, str]) -> Client:
    """Return which program `docker` is, and which daemon it talks to.

    DOCKER_HOST precedes DOCKER_CONTEXT, which precedes the chosen context (docker(1)).
    """
    docker_program = _find("docker", environ.get("PATH", ""), files.at("/"))
    program = docker_program.path if docker_program else ""
    real = os.path.realpath(files.at(program)) if program else ""
    podman = posixpath.basename(real).startswith("podman") or _is_podman_script(real)
    if files.root != "/":
        real = real.removeprefix(files.root.rstrip("/"))
    base = Client(program=real if real.startswith(WSL_DESKTOP) else program, podman=podman)
    if environ.get("DOCKER_HOST"):
        return replace(base, endpoint=environ["DOCKER_HOST"], source="by DOCKER_HOST")
    folder = environ.get("DOCKER_CONFIG") or f"{environ.get('HOME', '')}/.docker"
    config = read_object(files.at(f"{folder}/config.json"))
    name = environ.get("DOCKER_CONTEXT") or string(config, "currentContext")
    if name in ("", "default"):
        return base
    # docker names a context's folder by the hash of its name.
    context_digest = hashlib.sha256(name.encode()).hexdigest()
    meta = read_object(files.at(f"{folder}/contexts/meta/{context_digest}/meta.json"))
    endpoints = meta.get("Endpoints")
    endpoint = endpoints.get("docker") if isinstance(endpoints, dict) else None
    return replace(base, endpoint=string(endpoint, "Host"), source=f"by the context {name}")


def _is_podman_script(path: str) -> bool:
    """Report whether a file is the script of the package podman-docker, which runs podman."""
    try:
        with open(path, "rb") as file:
            head = file.read(4096)
    except OSError:
        return False
    return head.startswith(b"#!") and b"podman" in head


def _daemon(engine: Engine, process: Process, files: Files, proc: str, get: Get) -> Daemon:
    root = _root(process, files, proc)
    state, problem = _state(engine.config, root)
    option_dirs = processes.options(process.args, "cdi-spec-dir")
    apart = process.container or _has_own_processes(process.pid, proc)
    reported = None if apart else running.of(replace(engine, root=root), state, get)
    spec_dirs = tuple(option_dirs) or (state.spec_dirs if state else ()) or paths.CDI_SPEC_DIRS
    return Daemon(
        engine=engine,
        started=started(process.pid, proc),
        programs=_on_path(
            ":".join(paths.DEFAULT_PATH_DIRS) if engine.path is None else engine.path, root
        ),
        state=state,
        problem=problem,
        configured=_written(Files(root).at(engine.config)),
        former=_former(engine.config, root),
        apart=apart,
        running=reported,
        spec_dirs=spec_dirs,
        specs=_specs(spec_dirs, root),
    )


def _written(path: str) -> float | None:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return None


def _former(config: str, root: str) -> tuple[str, ...]:
    """Return the programs of a file's runtimes before nvct changed it, from nvct's journal."""
    journal = Journal(Files(root).at(paths.STATE_DIR))
    try:
        record = journal.load(journal.path("docker", config)).done
        entries = record.entries if record else ()
        (text,) = (entry.before.text for entry in entries if entry.path == config)
        runtimes = json.loads(text)["runtimes"]
        return tuple(runtime["path"] for runtime in runtimes.values())
    except (NvctError, ValueError, LookupError, TypeError, AttributeError):
        return ()


def _root(process: Process, files: Files, proc: str) -> str:
    """Return the daemon's root directory as a path of this process; ours if it is not accessible.

    Rootless Docker and Docker from snap have mounts of their own below the same root directory.
    """
    process_root = f"{proc}/{process.pid}/root"
    return process_root if os.path.isdir(f"{process_root}/") else files.at("/")


def _has_own_processes(pid: int, proc: str) -> bool:
    try:
        return os.readlink(f"{proc}/{pid}/ns/pid") != os.readlink(f"{proc}/self/ns/pid")
    except OSError:
        return False


def _state(config: str, root: str) -> tuple[State | None, str]:
    options = EngineOptions(engine="docker", handlers=(), config=config)
    try:
        return docker.state(options, Files(root)), ""
    except NvctError as error:
        return None, error.message


def _on_path(path: str, root: str) -> dict[str, Program]:
    """Return the programs of HOOKS that are on a PATH, below a root directory."""
    return {name: program for name in HOOKS if (program := _find(name, path, root))}


def _find(name: str, path: str, root: str) -> Program | None:
    folders = (folder for folder in path.split(":") if folder.startswith("/"))
    return next(filter(None, (_program(f"{folder}/{name}", root) for folder in folders)), None)


def _program(path: str, root: str) -> Program | None:
    """Return a program, None if the file is not executable, as Go's LookPath requires.

    Its ctime shows when it was moved or linked into place; a package keeps the mtime of its build.
    """
    full_path = root.rstrip("/") + path
    try:
        status, link = os.stat(full_path), os.lstat(full_path)
    except OSError:
        return None
    if not os.path.isfile(full_path) or not status.st_mode & 0o111:
        return None
    return Program(path=path, arrived=max(status.st_ctime, link.st_ctime))


def _specs(spec_dirs: tuple[str, ...], root: str) -> tuple[str, ...]:
    from nvct.cdi.read import registry  # YAML is loaded only if there are specs in that format

    tree = root.rstrip("/")
    scanned = registry.scan([tree + folder for folder in spec_dirs])
    return tuple(
        file.path.removeprefix(tree)
        for file in scanned.specs
        if file.spec.get("kind") == KIND and file.spec.get("devices")
    )
