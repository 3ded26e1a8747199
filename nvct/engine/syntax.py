# SPDX-License-Identifier: Apache-2.0
"""Reads and edits the files of any engine by key: JSON or TOML, and where runtimes are.

In the files of every engine, the table `runtimes` and the key of the default runtime have the same
parent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nvct.engine import json_file, toml_file
from nvct.engine.model import ABSENT, EngineOptions, FileEdit, Files, text_of
from nvct.engine.spans import KeyEdit, Path, Table

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
    # reports whether an engine of this version uses only the tables of the last file, so that a
    # drop-in of ours holds a copy of the others
    copies: Callable[[tuple[int, ...]], bool] = lambda _: False
    # returns the default after a removal by the remaining runtimes, the engine's version and the
    # path of the table; ABSENT for the engine's own
    next_default: Callable[[Table, tuple[int, ...], Path], object] = lambda *_: ABSENT
    # returns the edits of a removal with what goes beside our runtimes, such as an import; None if
    # that is only a drop-in without settings
    cleared: Callable[[EngineOptions, Files, Sequence[FileEdit]], tuple[FileEdit, ...]] | None = (
        None
    )

    def parse(self, data: bytes, path: str) -> Table:
        """Return what a file says.

        Raises:
            EngineConfigError: it is malformed.
        """
        if self.is_json:
            return json_file.parse(data, path).data
        # Some engines accept bytes that are not UTF-8; others have refused them before.
        return toml_file.parse(text_of(data), path)

    def edit(self, data: bytes, edits: Sequence[KeyEdit], path: str) -> bytes:
        """Return a file with keys set or removed.

        Raises:
            EngineConfigError: it is malformed, or cannot be edited.
        """
        if self.is_json:
            return json_file.edit(data, edits, path) or b""
        return toml_file.edit(data, edits, path)

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
        tables = [table.get(RUNTIMES) for _, table in self.parents(document)]
        return {name for table in tables if isinstance(table, dict) for name in table}


def program(runtime: object) -> str:
    """Return the program of a registered runtime, "" if none is named."""
    if isinstance(runtime, list):  # Podman's: the first that exists
        return next((item for item in runtime if isinstance(item, str)), "")
    if not isinstance(runtime, dict):
        return ""
    options = runtime.get("options")
    options = options if isinstance(options, dict) else {}
    candidates = [options.get("BinaryName"), options.get("Runtime")]
    candidates += [value for key, value in runtime.items() if key.lower() in PROGRAM_KEYS]
    return next((value for value in candidates if isinstance(value, str) and value), "")


def has_values(table: Table) -> bool:
    """Report whether a table holds a value, at any depth."""
    return any(has_values(value) if isinstance(value, dict) else True for value in table.values())


def find(document: object, path: Path) -> object:
    """Return the value at a path, ABSENT if there is none."""
    return toml_file.find(document, path, ABSENT)
