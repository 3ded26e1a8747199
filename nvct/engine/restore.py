# SPDX-License-Identifier: Apache-2.0
"""Removes our changes, key by key, from files that others have changed since. No side effects.

Our changes are the differences between the file before and after configure. Where a key still has
our value, it gets its former value or is removed; values that others set stay. A runtime that we
registered is one unit: it is removed completely if its program is still the one that we named,
and stays completely if others gave it another program.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Mapping, Sequence

from nvct.config import toml_file
from nvct.config.tables import (
    ABSENT,
    KeyEdit,
    Path,
    find,
    has_values,
    pruned,
    same,
    subtable,
)
from nvct.engine.journal import Entry
from nvct.engine.modules import RUNTIMES, Syntax, program

IMPORTS = ("imports",)
VERSION = ("version",)


def restored(
    entry: Entry,
    current: bytes | None,
    syntax: Syntax,
    handlers: Collection[str],
    remaining: Sequence[str] = (),
) -> tuple[bytes | None, list[str]]:
    """Return the present bytes `current` of a file without the change of an entry; and notes.

    `handlers` are the runtimes that the user asked for. Files that are `remaining` stay imported.
    Raises EngineConfigError if the file can no longer be parsed or edited.
    """
    path, original, configured = entry.path, entry.before.content, entry.after.content
    if current is None:
        was_removed = configured is not None and original is not None
        note = f"{path} was removed by others: it stays removed"
        return None, [note] if was_removed else []
    file = _File(entry, current, syntax, handlers, remaining)
    if current == original:
        return current, []
    if configured is None:
        return current, [f"{path} was created by others: it stays"]
    file.revert()
    if current == configured and same(pruned(file.result), pruned(file.before)):
        return original, []
    note = f"{path} was changed by others: only nvct's part is removed"
    if not file.edits:
        note = f"{path} was changed by others and has nothing of nvct's: it stays"
    data: bytes | None = _edited(current, configured, file.edits, syntax, path)
    if original is None and syntax.is_empty(data or b"", path):
        data = None
    return data, [note, *file.notes]


class _File:
    """The content of one file before configure, after it and now; and the edits to the result."""

    def __init__(
        self,
        entry: Entry,
        current: bytes,
        syntax: Syntax,
        handlers: Collection[str],
        remaining: Sequence[str],
    ) -> None:
        self.path, self.syntax = entry.path, syntax
        self.handlers, self.remaining = handlers, remaining
        self.before, self.configured, self.current = (
            {} if data is None else syntax.parse(data, entry.path)
            for data in (entry.before.content, entry.after.content, current)
        )
        self.result = copy.deepcopy(self.current)
        self.changes = list(differences(self.before, self.configured))
        self.removable = {  # new runtimes that still have the program that we named
            path[-1]
            for path, old, new in self.changes
            if _is_runtime(path)
            and old is ABSENT
            and (now := find(self.current, path)) is not ABSENT
            and program(now) == program(new)
        }
        self.edits: list[KeyEdit] = []
        self.notes: list[str] = []

    def revert(self) -> None:
        helpers: list[Path] = []
        has_new_version = False
        for path, before, configured in self.changes:
            if path == VERSION and before is ABSENT:
                has_new_version = True
            elif _is_runtime(path) and before is ABSENT and path[-1] not in self.handlers:
                helpers.append(path)  # such as runc: containerd 1.x drops its own beside another
            else:
                self._revert(path, before, configured)
        for path in helpers:
            expected = {helper[-1] for helper in helpers} | subtable(self.before, path[:-1]).keys()
            # Helpers stay if others have registered a runtime since.
            if subtable(self.result, path[:-1]).keys() <= expected:
                self._revert(path, ABSENT, find(self.configured, path))
        # Settings that others added may need this version, so it stays beside them.
        rest = {key: value for key, value in self.result.items() if key not in VERSION}
        if has_new_version and not has_values(rest):
            self._revert(VERSION, ABSENT, self.configured["version"])

    def _revert(self, path: Path, before: object, configured: object) -> None:
        """Restore the former value of a key if it still has our value."""
        current = find(self.current, path)
        value = self._value(path, before, configured, current)
        if value is ABSENT and current is ABSENT:
            return
        if same(value, current):
            if not same(current, before):
                self.notes.append(f"{self.path}: {'.'.join(path)} was changed by others and stays")
            return
        self.edits.append((path, value))
        toml_file.put(self.result, path, value)

    def _value(self, path: Path, before: object, configured: object, current: object) -> object:
        if _is_runtime(path) and before is ABSENT and current is not ABSENT:
            return ABSENT if path[-1] in self.removable else current
        is_default = path[-1] == self.syntax.default and isinstance(current, str)
        if is_default and current in self.removable and current in self.handlers:
            return before  # others chose another one of our runtimes
        ours = configured if isinstance(configured, list) else []
        original = before if isinstance(before, list) else []
        used = [
            item
            for item in ours
            if item not in original and self.syntax.needed(path, item, self.remaining)
        ]
        if same(current, configured) and not used:
            return before
        # A list that the file did not have before is one value, because it replaces the engine's.
        is_united = isinstance(configured, list) and (original or path == IMPORTS)
        if not isinstance(current, list) or not is_united:
            return current
        elements = [
            item for item in current if item in used or item in original or item not in ours
        ]
        elements += [item for item in original if item not in ours and item not in elements]
        return elements if elements or original else before


def differences(
    before: Mapping[str, object], after: Mapping[str, object], prefix: Path = ()
) -> Iterator[tuple[Path, object, object]]:
    """Yield the keys that differ: path, value before, value after; a new runtime is one value."""
    for key in dict.fromkeys((*before, *after)):
        path = (*prefix, key)
        old, new = before.get(key, ABSENT), after.get(key, ABSENT)
        if isinstance(old, dict) and (isinstance(new, dict) or (old and new is ABSENT)):
            yield from differences(old, new if isinstance(new, dict) else {}, path)
        elif old is ABSENT and isinstance(new, dict) and not _is_runtime(path):
            yield from differences({}, new, path)
        elif not same(old, new):
            yield path, old, new


def _is_runtime(path: Path) -> bool:
    return path[-2:-1] == (RUNTIMES,)


def _edited(
    current: bytes, configured: bytes, edits: Sequence[KeyEdit], syntax: Syntax, path: str
) -> bytes:
    """Return the file with the keys edited; comments of others stay, at its end if necessary."""
    if not edits:
        return current
    data = syntax.edit(current, edits, path)
    known = [line.strip() for line in (*configured.splitlines(), *data.splitlines())]
    comments = [
        line
        for line in current.splitlines()
        if line.strip().startswith(b"#") and line.strip() not in known
    ]
    end = b"\n" if comments and data and not data.endswith(b"\n") else b""
    return data + end + b"".join(line + b"\n" for line in comments)
