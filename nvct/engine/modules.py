# SPDX-License-Identifier: Apache-2.0
"""The engines by name: modules, syntax, usual files, sockets, programs; our runtimes and hooks.

In the files of every engine, the table `runtimes` and the key of the default runtime have the same
parent.
"""

from __future__ import annotations

import importlib
import json
import posixpath
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

from nvct.config import toml_file
from nvct.config.tables import ABSENT, KeyEdit, Path, Table, has_values, subtable
from nvct.engine import json_file
from nvct.engine.model import Change, EngineOptions, FileEdit, Files, Handler, State, text_of
from nvct.errors import UsageError
from nvct.paths import DEFAULT_PATH_DIRS, SHIM_PROGRAM

RUNTIMES = "runtimes"
ANY = "*"
PROGRAM_KEYS = ("runtime_path", "path")  # CRI-O's, Docker's: in Go their case does not matter


@dataclass(frozen=True, slots=True, kw_only=True)
class Syntax:
    """The files of one engine."""

    is_json: bool = False  # they are JSON; else they are TOML
    parent: Path = ()  # path of the table that holds `runtimes` and the default; * is any name
    default: str = ""  # the key in it that names the default runtime; "" if there is none
    header: str = ""  # the first line of a drop-in of ours
    # reports whether the remaining files use an element that we added to a list
    needed: Callable[[Path, object, Sequence[str]], bool] = lambda *_: False
    # the first release that merges the tables of all files; older ones read only those of the last
    # file, so our drop-in holds a copy of the others
    merges_from: tuple[int, ...] = ()
    # returns the default after a removal, given the remaining runtimes, the engine's version and
    # the path of the table; ABSENT for the engine's own
    next_default: Callable[[Table, tuple[int, ...], Path], object] = lambda *_: ABSENT
    # adds to the edits of a removal what else must go, such as an import; None if that is only a
    # drop-in without settings
    cleared: Callable[[EngineOptions, Files, Sequence[FileEdit]], tuple[FileEdit, ...]] | None = (
        None
    )

    def parse(self, data: bytes, path: str) -> Table:
        """Return what a file says. Raises EngineConfigError if it is malformed."""
        if self.is_json:
            return json_file.parse(data, path).data
        # Some engines accept bytes that are not UTF-8; the others have refused the file already.
        return toml_file.parse(text_of(data), path)

    def edit(self, data: bytes | None, edits: Sequence[KeyEdit], path: str) -> bytes:
        """Return a file (None: a new one) with keys set or removed. Raises EngineConfigError."""
        if self.is_json:
            return json_file.edit(data, edits, path) or b""
        return toml_file.edit(self.header.encode() if data is None else data, edits, path)

    def is_empty(self, data: bytes, path: str) -> bool:
        """Report whether a file has no settings, and no comments except ours."""
        comments = b"#" in data.replace(self.header.encode(), b"")
        return not comments and not has_values(self.parse(data, path))

    def parents(self, document: Table) -> list[tuple[Path, Table]]:
        """Return the tables that may hold `runtimes` and the default, with their paths."""
        tables: list[tuple[Path, Table]] = [((), document)]
        for name in self.parent:
            tables = [
                ((*path, key), value)
                for path, table in tables
                for key, value in table.items()
                if name in (ANY, key) and isinstance(value, dict)
            ]
        return tables

    def names(self, document: Table) -> set[str]:
        """Return the names of the runtimes that a file registers."""
        parents = self.parents(document)
        return {name for _, table in parents for name in subtable(table, (RUNTIMES,))}


def program(runtime: object) -> str:
    """Return the program of a registered runtime, "" if the file names none."""
    if isinstance(runtime, list):  # Podman's: the first that exists
        return next((item for item in runtime if isinstance(item, str)), "")
    if not isinstance(runtime, dict):
        return ""
    options = subtable(runtime, ("options",))
    candidates = [options.get("BinaryName"), options.get("Runtime")]
    candidates += [value for key, value in runtime.items() if key.lower() in PROGRAM_KEYS]
    return next((value for value in candidates if isinstance(value, str) and value), "")


class Module(Protocol):
    """An engine's module; its functions have no side effects."""

    SYNTAX: Syntax

    @staticmethod
    def state(options: EngineOptions, files: Files) -> State:
        """Return what the engine's files say."""

    @staticmethod
    def plan(options: EngineOptions, files: Files) -> Change:
        """Return the smallest edit that configures the options."""


ENGINES = ("docker", "containerd", "crio", "podman")
CONFIG = {
    "docker": "/etc/docker/daemon.json",
    "containerd": "/etc/containerd/config.toml",
    "crio": "/etc/crio/crio.conf",
    "podman": "/etc/containers/containers.conf",
}
SOCKET = {
    "docker": "/run/docker.sock",
    "containerd": "/run/containerd/containerd.sock",
    "crio": "/var/run/crio/crio.sock",
    "podman": "/run/podman/podman.sock",
}
PROGRAM = {"docker": "dockerd", "containerd": "containerd", "crio": "crio", "podman": "podman"}


def of(engine: str) -> Module:
    """Return an engine's module: state and plan. Raises UsageError if there is no such engine."""
    if engine not in ENGINES:
        raise UsageError(f"unknown engine {engine!r}", hint=f"one of {', '.join(ENGINES)}")
    return cast("Module", importlib.import_module(f"nvct.engine.{engine}"))


SUITS_ENGINE = "RUNTIME_SPECIFIC_DEFAULT"
"""Value of an option that stands for the engine's own default, as in NVIDIA's installer."""
NAME = "nvidia"
SHIM_PATH = f"/usr/bin/{SHIM_PROGRAM}"
# Name of a runtime and suffix of its program, as in NVIDIA's installer.
VARIANTS = ((NAME, ""), ("nvidia-cdi", ".cdi"), ("nvidia-legacy", ".legacy"))


def handlers(program: str, first: str = NAME) -> tuple[Handler, ...]:
    """Return the three runtimes of a program and its variants; `first` names the first one."""
    return tuple(
        Handler(name=first if name == NAME else name, path=program + suffix)
        for name, suffix in VARIANTS
    )


def check_absolute(option: str, path: str) -> None:
    """Refuse an option's path that is not absolute: UsageError."""
    if not posixpath.isabs(path):
        raise UsageError(f"{option} {path!r} is not an absolute path", hint="begin it with /")


def drop_in(engine: str, option: str) -> str | None:
    """Return the drop-in that an option names, None for the engine's choice. Raises UsageError."""
    if option == SUITS_ENGINE:
        return "" if engine == "docker" else None
    if engine == "docker" and option:
        raise UsageError("docker does not support drop-in configs", hint="use --config")
    if option:
        check_absolute("the drop-in's path", option)
    return option


def check_name(name: str | None, option: str) -> None:
    """Refuse a runtime with an empty name (UsageError); None stands for the default name."""
    if name == "":
        raise UsageError("the runtime's name is empty", hint=f"{option}={NAME}")


def hook_file(program: str) -> bytes:
    """Return a hook file that runs a program before every container's start.

    Raises UsageError if the program's path is not absolute.
    """
    check_absolute("the hook's path", program)
    folder = posixpath.dirname(program)
    dirs = DEFAULT_PATH_DIRS if folder in DEFAULT_PATH_DIRS else (*DEFAULT_PATH_DIRS, folder)
    content = {
        "version": "1.0.0",
        "hook": {
            "path": program,
            "args": [posixpath.basename(program), "prestart"],
            "env": ["PATH=" + ":".join(dirs)],
        },
        "when": {"always": True, "commands": [".*"]},
        "stages": ["prestart"],
    }
    return (json.dumps(content, indent=2) + "\n").encode()
