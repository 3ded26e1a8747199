# SPDX-License-Identifier: Apache-2.0
"""What is wrong with containerd's files together, though each of them is valid.

The installers of others write drop-ins of a version that the main file has not, drop-ins that
replace the main file's CRI settings before containerd 2.0, and drop-ins that no file imports any
more. containerd logs that, if at all. Contract: only reads.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from nvct.engine import containerd_load as loading
from nvct.engine import toml_file
from nvct.engine.containerd_load import CRI, Config, Loaded, Table
from nvct.engine.model import EngineOptions, Files
from nvct.errors import NvctError
from nvct.paths import SHIM_PROGRAM

MOVED = ("containerd", "cni", "registry", "sandbox_image", "enable_cdi", "cdi_spec_dirs")
"""Keys of the CRI's table of version 2 that have another place in version 3."""
DROP_INS = "conf.d"
IMPORTS_BY_ITSELF = (2, 2)
"""The first release that may read DROP_INS without an import."""
NAMED = 3


class Fault(NamedTuple):
    """A sentence, and whether runtimes of NVIDIA's or settings are lost."""

    text: str
    is_severe: bool


def of(options: EngineOptions, files: Files) -> list[Fault]:
    """Return the faults of the files together; none if a file cannot be read."""
    try:
        config = loading.load(options, files)
        return [
            *_unread(config), *_replaced(config), *_without_type(config),
            *_not_imported(config, options, files),
        ]  # fmt: skip
    except NvctError:
        return []


def _unread(config: Config) -> Iterator[Fault]:
    """Yield a fault for the CRI settings of another version than the one in force."""
    named = [loaded.path for loaded in config.files if loaded.version == config.version]
    for loaded in config.files:
        for name in dict.fromkeys(CRI.values()):
            table = toml_file.find(loaded.document, ("plugins", name))
            if name in config.names or not isinstance(table, dict):
                continue
            if not any(key in table for key in MOVED):
                continue
            # containerd 2 reads no settings of version 1, whatever the other files say.
            why = (
                f"{named[-1]} makes it version {config.version}"
                if config.modern and loaded.version > 1 and named
                else f"it reads {config.names[0]}"
            )
            text = f"containerd does not read [plugins.{name!r}] of {loaded.path}: {why}"
            yield Fault(text, is_severe=True)


def _replaced(config: Config) -> Iterator[Fault]:
    """Yield a fault for each file whose CRI settings a later file replaces without having them."""
    if config.modern:
        return
    last = config.winner()
    effective = dict(_values(config.effective()))
    for loaded in config.files:
        if loaded.path == last.path:
            return
        cri = config.cri(loaded) or {}
        lost = [key for key, value in _values(cri) if _is_lost(key, value, effective)]
        if lost:
            rest = f" and {len(lost) - NAMED} more" if len(lost) > NAMED else ""
            names = ", ".join(lost[:NAMED]) + rest
            text = f"{last.path} replaces the CRI settings of {loaded.path}: not in force: {names}"
            yield Fault(text, is_severe=False)


def _is_lost(key: str, value: object, effective: Mapping[str, object]) -> bool:
    """Return whether a setting is not in force; another default runtime is chosen on purpose."""
    if key.startswith("containerd.default_runtime") and key in effective:
        return False
    return effective.get(key) != value


def _values(table: Table, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield each value that is set, with its path."""
    for key, value in loading.set_only(table).items():
        if isinstance(value, dict):
            yield from _values(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _without_type(config: Config) -> Iterator[Fault]:
    for name, table in loading.runtimes(config.effective()).items():
        program = posixpath.basename(loading.binary(table) or name)
        if program.startswith((SHIM_PROGRAM, "nvidia")) and not table.get("runtime_type"):
            text = f"its runtime {name} has no runtime_type: no container can be started by it"
            yield Fault(text, is_severe=True)


def _not_imported(config: Config, options: EngineOptions, files: Files) -> Iterator[Fault]:
    """Yield a fault for each drop-in with a runtime of NVIDIA's that no file imports."""
    if config.root.data is None or options.engine_version >= IMPORTS_BY_ITSELF:
        return
    folder = f"{posixpath.dirname(config.root.path)}/{DROP_INS}"
    for path in files.names(folder, ".toml"):
        if config.get(path) is None and _registers(path, files):
            text = f"{path} registers a runtime of NVIDIA's, and no file imports it"
            yield Fault(text, is_severe=False)


def _registers(path: str, files: Files) -> bool:
    loaded: Loaded = loading.read_file(path, files)
    return any(
        name.startswith("nvidia") or SHIM_PROGRAM in loading.binary(table)
        for plugin in dict.fromkeys(CRI.values())
        if isinstance(cri := toml_file.find(loaded.document, ("plugins", plugin)), dict)
        for name, table in loading.runtimes(cri).items()
    )
