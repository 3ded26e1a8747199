# SPDX-License-Identifier: Apache-2.0
"""Checks the engines of this host: their files, their runtimes, and whether they can give GPUs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from nvct.config import toml_file
from nvct.config.tables import find
from nvct.doctor import engine_access, kubelet
from nvct.doctor.engine_access import Access
from nvct.doctor.model import Finding, Part, Severity, count
from nvct.doctor.node import Node
from nvct.doctor.reasons import Reason
from nvct.engine import crio, modules
from nvct.engine.model import Engine, EngineOptions, Files
from nvct.engine.status import Status, is_nvidia
from nvct.errors import NvctError
from nvct.host import procfs
from nvct.paths import RUNTIME_HOOK_PROGRAM

WITHOUT_RUNTIME = ("GKE",)
"""Platforms whose own device plugin gives device nodes and libraries without a runtime or CDI."""


def check(node: Node) -> Part:
    """Report each engine of this host; if the host has GPUs, an engine without them is a fault."""
    statuses, inventory = node.statuses, node.inventory
    local = [status for status in statuses if not status.engine.foreign]
    others = f"{count(len(statuses) - len(local), 'engine')} of a container or another user"
    if not local:
        more = f", {others}" if statuses else ""
        return Part.absent(f"none on this host{more}")
    accesses = [(status, engine_access.of(status, node.registry)) for status in local]
    has_gpu = inventory is not None and bool(inventory.gpus or inventory.devices)
    gives_gpus = any(access.gives_gpus for _, access in accesses)
    said: list[str | Finding] = []
    for status, access in accesses:
        is_needed = has_gpu and _is_needed(status.engine, node, gives_gpus=gives_gpus)
        said += _engine(status, access, is_needed=is_needed)
    said += of_unread_files(local)
    said += _without_rules(accesses) if node.settings.cli_no_cgroups else ()
    said += [f"{others}, not checked"] if len(statuses) > len(local) else []
    return Part.of(*said, health="ok" if has_gpu or gives_gpus else "absent")


def _is_needed(engine: Engine, node: Node, *, gives_gpus: bool) -> bool:
    """Report whether it is a fault if an engine gives no GPU.

    An engine that does not run is needed only if no engine gives GPUs (`gives_gpus`) and all
    processes are visible. A containerd beside Docker is not needed, because Docker has its own
    runtimes, unless it serves pods, too.
    """
    proc = node.roots.proc
    if engine.engine == "containerd":
        near = [status.engine for status in node.statuses if not status.engine.foreign]
        has_docker = any(other.engine == "docker" and other.pid for other in near)
        if engine.platform == "Docker" or (has_docker and not kubelet.processes(proc)):
            return False
    is_asked = bool(engine.pid) or not (gives_gpus or procfs.hidden_processes(proc))
    return is_asked and engine.platform not in WITHOUT_RUNTIME


def _without_rules(accesses: Sequence[tuple[Status, Access]]) -> Iterator[Finding]:
    """Yield a finding for each engine of root that no-cgroups keeps from giving GPUs.

    no-cgroups is for engines of users, which may not change a cgroup, but root's engines read the
    same config.toml.
    """
    for status, access in accesses:
        if access.hook.endswith(RUNTIME_HOOK_PROGRAM) and not status.engine.uid:
            text = f"config.toml has no-cgroups = true, but {status.engine.engine} runs as root: "
            text += "the cgroup denies a container of `--gpus` its device nodes"
            yield Finding(Reason.CgroupRulesOff, "warning", text)


def _engine(status: Status, access: Access, *, is_needed: bool) -> Iterator[str | Finding]:
    name = " ".join(word for word in (status.engine.engine, status.engine.version) if word)
    if access.runtimes:
        default = ", the default" if status.is_default else ""
        yield f"{name}: {', '.join(access.runtimes)}{default}"
    elif not status.problem and (
        finding := engine_access.finding(status.engine, access, is_needed=is_needed)
    ):
        yield finding
    if status.problem:
        severity: Severity = "unknown" if status.is_closed else "error"
        yield Finding(Reason.EngineConfigurationInvalid, severity, f"{name}: {status.problem}")
        if status.is_closed:
            return
    for text in status.differences:
        yield Finding(Reason.EngineNotReloaded, "error", f"{name}: {text}")
    for text in status.missing_programs():
        yield Finding(Reason.RuntimeProgramMissing, "error", f"{name}: {text}")
    for fault in status.faults:
        severity = "error" if fault.is_severe else "warning"
        yield Finding(Reason.EngineConfigurationInvalid, severity, f"{name}: {fault.text}")


FOLDERS = {
    "docker": (),
    "containerd": (("/etc/containerd/conf.d", ".toml"),),
    "crio": ((crio.CONFIG_DIR, ""), ("/etc/crio/conf.d", "")),
}
"""Usual folders of drop-ins, and the suffix of a drop-in's name. Podman has no daemon."""
USUAL = ("", "k3s", "RKE2")
"""Platforms on which users may edit the engine's usual files by mistake. Other platforms, and
Docker's containerd, have files of their own, which `nvct runtime status` explains."""
LIMIT = 16  # Limit of files that are read in a folder


def of_unread_files(statuses: Sequence[Status], files: Files | None = None) -> Iterator[Finding]:
    """Yield a finding for each usual file with NVIDIA's runtimes that its engine does not read."""
    tree = files or Files()
    read = {
        os.path.realpath(tree.at(path))
        for one in statuses
        for path in (one.engine.config, one.engine.edit, *(one.state.files if one.state else ()))
    }
    for status in statuses:
        engine = status.engine
        is_usual = engine.platform in USUAL and engine.engine in FOLDERS and not engine.uid
        for path in _usual(engine, tree) if status.state and is_usual else ():
            if os.path.realpath(tree.at(path)) in read:
                continue
            with suppress(NvctError, OSError):  # skip an unreadable file
                handlers = _handlers(engine.engine, path, tree).items()
                if names := sorted(name for name, program in handlers if is_nvidia(name, program)):
                    yield _finding(status, path, names)


def _usual(engine: Engine, files: Files) -> Iterator[str]:
    yield modules.CONFIG[engine.engine]
    for folder, suffix in FOLDERS[engine.engine]:
        with suppress(NvctError, OSError):
            yield from files.names(folder, suffix)[:LIMIT]


def _handlers(engine: str, path: str, files: Files) -> Mapping[str, str]:
    if engine != "crio":
        options = EngineOptions(engine=engine, handlers=(), config=path, drop_in="")
        return modules.of(engine).state(options, files).handlers
    table = find(toml_file.parse(files.read(path) or b"", path), crio.RUNTIMES)
    programs = table.items() if isinstance(table, dict) else ()
    return {
        str(name): str(values.get("runtime_path", "")) if isinstance(values, dict) else ""
        for name, values in programs
    }


def _finding(status: Status, path: str, names: Sequence[str]) -> Finding:
    engine = status.engine
    is_lost = not engine_access.nvidia_handlers(status.in_force)
    process = f" (process {engine.pid})" if engine.pid else ""
    folder = f" and {engine.config_dir}" if engine.config_dir else ""
    text = f"{engine.engine}{process} reads {engine.config}{folder}, not {path}, which registers "
    text += ", ".join(names)
    remedy = f"Run `nvct runtime configure --runtime={engine.engine}`, and remove {path}."
    if engine.leave:
        remedy = f"Do what `nvct runtime status` says about {engine.platform}, and remove {path}."
    severity: Severity = "error" if is_lost and engine.pid else "note"
    return Finding(Reason.EngineFileUnread, severity, text, remedy)
