# SPDX-License-Identifier: Apache-2.0
"""Finds files that register a runtime of NVIDIA's with an engine, which does not read them.

An engine reads the files that its command line and environment name (`nvct.engine.detect`), and
the usual ones only if these name none. Cold; only reads.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence

from nvct.doctor.model import Finding
from nvct.doctor.reasons import Reason
from nvct.engine import crio, modules, toml_file
from nvct.engine.model import Engine, EngineOptions, Files
from nvct.engine.status import Status, is_nvidia
from nvct.errors import NvctError

FOLDERS = {
    "docker": (),
    "containerd": (("/etc/containerd/conf.d", ".toml"),),
    "crio": ((crio.CONFIG_DIR, ""), ("/etc/crio/conf.d", "")),
}
"""Usual folders of drop-ins, and the end of a drop-in's name. Podman has no daemon."""
LIMIT = 16
"""Files of a folder that are read."""


def findings(statuses: Sequence[Status], files: Files | None = None) -> Iterator[Finding]:
    """Yield a finding for each file that an engine was to read, and does not."""
    tree = files or Files()
    read = {os.path.realpath(tree.at(path)) for status in statuses for path in _read(status)}
    for status in statuses:
        engine = status.engine
        if engine.engine in FOLDERS and status.state and not engine.uid and _may_misread(engine):
            for path in _usual(engine, tree):
                if os.path.realpath(tree.at(path)) in read:
                    continue
                if names := _registered(engine, path, tree):
                    yield _finding(status, path, names)


def _may_misread(engine: Engine) -> bool:
    """Return whether users take an engine's files for the usual ones: Docker's containerd is not.

    Other platforms have files of their own, which `nvct runtime status` explains.
    """
    return engine.platform in ("", "k3s", "RKE2")


def _read(status: Status) -> tuple[str, ...]:
    engine, state = status.engine, status.state
    return (engine.config, engine.edit, *(state.files if state else ()))


def _usual(engine: Engine, files: Files) -> Iterator[str]:
    """Yield the files that an engine reads unless its command line says something else."""
    yield modules.CONFIG[engine.engine]
    for folder, suffix in FOLDERS[engine.engine]:
        try:
            yield from files.names(folder, suffix)[:LIMIT]
        except (NvctError, OSError):
            continue


def _registered(engine: Engine, path: str, files: Files) -> list[str]:
    """Return the runtimes of NVIDIA's that a file registers; none if it cannot be read."""
    try:
        handlers = _handlers(engine.engine, path, files)
    except (NvctError, OSError):
        return []
    return sorted(name for name, program in handlers.items() if is_nvidia(name, program))


def _handlers(engine: str, path: str, files: Files) -> Mapping[str, str]:
    """Return the runtimes that one file has, with their programs.

    Raises:
        NvctError, OSError: it cannot be read.
    """
    if engine != "crio":
        options = EngineOptions(engine=engine, handlers=(), config=path, drop_in="")
        return modules.of(engine).state(options, files).handlers
    table = toml_file.find(toml_file.parse(files.read(path) or b"", path), crio.RUNTIMES)
    programs = table.items() if isinstance(table, dict) else ()
    return {
        str(name): str(values.get("runtime_path", "")) if isinstance(values, dict) else ""
        for name, values in programs
    }


def _finding(status: Status, path: str, names: Sequence[str]) -> Finding:
    engine = status.engine
    known = status.in_force.handlers if status.in_force else {}
    is_lost = not any(is_nvidia(name, program) for name, program in known.items())
    process = f" (process {engine.pid})" if engine.pid else ""
    folder = f" and {engine.config_dir}" if engine.config_dir else ""
    text = f"{engine.engine}{process} reads {engine.config}{folder}, not {path}, which registers "
    text += ", ".join(names)
    remedy = f"Run `nvct runtime configure --runtime={engine.engine}`, and remove {path}."
    if engine.leave:
        remedy = f"Do what `nvct runtime status` says of {engine.platform}, and remove {path}."
    return Finding(
        reason=Reason.EngineFileUnread,
        severity="error" if is_lost and engine.pid else "note",
        evidence=text,
        remedy=remedy,
    )
