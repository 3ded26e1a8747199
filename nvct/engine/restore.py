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
from dataclasses import dataclass, field

from nvct.engine import toml_file
from nvct.engine.model import ABSENT, Absent
from nvct.engine.spans import same
from nvct.engine.syntax import RUNTIMES, KeyEdit, Path, Syntax, Table, find, has_values, program
from nvct.errors import EngineConfigError

IMPORTS = ("imports",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Versions:
    """One file: before configure, as configure left it, and now; None is no file."""

    path: str
    original: bytes | None
    configured: bytes | None
    current: bytes | None


@dataclass(slots=True, kw_only=True)
class Restored:
    """A file without our changes."""

    data: bytes | None
    notes: list[str] = field(default_factory=list)
    has_settings: bool = False


@dataclass(slots=True, kw_only=True)
class _Work:
    """The restoration of one file: its content before, after, now, and the result."""

    versions: Versions
    syntax: Syntax
    before: Table
    configured: Table
    current: Table
    result: Table
    removable: frozenset[str]  # new runtimes that still have the program that we named
    handlers: frozenset[str]  # runtimes, new or changed, that the user asked for
    edits: list[KeyEdit] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def restored(
    versions: Versions, syntax: Syntax, handlers: Collection[str], remaining: Sequence[str] = ()
) -> Restored:
    """Return a file without our changes; a list in it may name other files that are `remaining`.

    Raises:
        EngineConfigError: the file cannot be understood or edited any more.
    """
    path, current = versions.path, versions.current
    if current is None:
        was_removed = versions.configured is not None and versions.original is not None
        note = f"{path} was removed by someone else: it is left so"
        return Restored(data=None, notes=[note] if was_removed else [])
    work = _prepare(versions, syntax, handlers)
    if current == versions.original:
        return Restored(data=current, has_settings=has_values(work.current))
    if versions.configured is None:
        return Restored(
            data=current, notes=[f"{path} was made by others: it stays"], has_settings=True
        )
    _decide(work, remaining)
    if current == versions.configured and same(
        toml_file.pruned(work.result), toml_file.pruned(work.before)
    ):
        return Restored(data=versions.original, has_settings=has_values(work.before))
    return _result(work)


def _prepare(versions: Versions, syntax: Syntax, handlers: Collection[str]) -> _Work:
    before, configured, current = (
        {} if data is None else syntax.parse(data, versions.path)
        for data in (versions.original, versions.configured, versions.current)
    )
    removable = frozenset(
        path[-1]
        for path, old, new in differences(before, configured)
        if _is_runtime(path)
        and isinstance(old, Absent)
        and not isinstance(there := find(current, path), Absent)
        and program(there) == program(new)
    )
    return _Work(
        versions=versions, syntax=syntax, before=before, configured=configured, current=current,
        result=copy.deepcopy(current), removable=removable, handlers=frozenset(handlers),
    )  # fmt: skip


def _decide(work: _Work, remaining: Sequence[str]) -> None:
    helpers: list[Path] = []
    version = False
    for path, before, configured in differences(work.before, work.configured):
        if path == ("version",) and isinstance(before, Absent):
            version = True
        elif _is_runtime(path) and isinstance(before, Absent) and path[-1] not in work.handlers:
            helpers.append(path)  # such as runc: containerd 1.x drops its own if a file names one
        else:
            _revert(work, path, before, configured, remaining)
    for path in helpers:
        siblings, before = (find(document, path[:-1]) for document in (work.result, work.before))
        expected = {helper[-1] for helper in helpers}
        expected.update(before if isinstance(before, dict) else ())
        # The helpers stay if others have registered a runtime since.
        if isinstance(siblings, dict) and set(siblings) <= expected:
            _revert(work, path, ABSENT, find(work.configured, path), remaining)
    # Settings that others added may need this version, so it stays beside them.
    if version and not has_values({k: v for k, v in work.result.items() if k != "version"}):
        _revert(work, ("version",), ABSENT, work.configured["version"], remaining)


def differences(
    before: Mapping[str, object], after: Mapping[str, object], prefix: Path = ()
) -> Iterator[tuple[Path, object, object]]:
    """Yield the keys that differ: path, value before, value after; a new runtime is one value."""
    for key in dict.fromkeys((*before, *after)):
        path = (*prefix, key)
        old, new = before.get(key, ABSENT), after.get(key, ABSENT)
        if isinstance(old, dict) and (isinstance(new, dict) or (old and isinstance(new, Absent))):
            yield from differences(old, new if isinstance(new, dict) else {}, path)
        elif isinstance(old, Absent) and isinstance(new, dict) and not _is_runtime(path):
            yield from differences({}, new, path)
        elif not same(old, new):
            yield path, old, new


def _is_runtime(path: Path) -> bool:
    return path[-2:-1] == (RUNTIMES,)


def _revert(
    work: _Work, path: Path, before: object, configured: object, remaining: Sequence[str]
) -> None:
    """Restore the former value of a key if it still has ours."""
    current = find(work.current, path)
    value = _value(work, path, (before, configured, current), remaining)
    if isinstance(value, Absent) and isinstance(current, Absent):
        return
    if same(value, current):
        if not same(current, before):
            note = f"{work.versions.path}: {'.'.join(path)} was changed by others and stays"
            work.notes.append(note)
        return
    work.edits.append((path, value))
    _set(work.result, path, value)


def _value(
    work: _Work, path: Path, values: tuple[object, object, object], remaining: Sequence[str]
) -> object:
    before, configured, current = values
    if _is_runtime(path) and isinstance(before, Absent) and not isinstance(current, Absent):
        return ABSENT if path[-1] in work.removable else current
    if path[-1] == work.syntax.default and current in work.removable & work.handlers:
        return before  # others chose another one of ours
    original = before if isinstance(before, list) else []
    used = [
        item
        for item in (configured if isinstance(configured, list) else ())
        if item not in original and work.syntax.needed(path, item, remaining)
    ]
    if same(current, configured) and not used:
        return before
    # A list that replaces the engine's own default is one value, unless it had elements before.
    if (
        not isinstance(current, list)
        or not isinstance(configured, list)
        or not (original or path == IMPORTS)
    ):
        return current
    elements = [
        item for item in current if item in used or item in original or item not in configured
    ]
    elements += [item for item in original if item not in configured and item not in elements]
    return elements if elements or original else before


def _set(document: Table, path: Path, value: object) -> None:
    parent = document
    for name in path[:-1]:
        inner = parent.setdefault(name, {})
        if not isinstance(inner, dict):
            raise EngineConfigError(f"{'.'.join(path)} cannot be put back: {name} is no table")
        parent = inner
    if isinstance(value, Absent):
        parent.pop(path[-1], None)
    else:
        parent[path[-1]] = copy.deepcopy(value)


def _result(work: _Work) -> Restored:
    """Return the file with the result; the bytes of others are unchanged."""
    path = work.versions.path
    data = _edited(work) if work.edits else work.versions.current
    note = f"{path} was changed by others: only our part is taken out"
    if not work.edits:
        note = f"{path} was changed by others and holds nothing of ours: it is left alone"
    if work.versions.original is None and work.syntax.is_empty(data or b"", path):
        data = None
    return Restored(data=data, notes=[note, *work.notes], has_settings=has_values(work.result))


def _edited(work: _Work) -> bytes:
    """Return the file with the keys edited; comments of others stay, at its end if necessary."""
    versions, current = work.versions, work.versions.current or b""
    data = work.syntax.edit(current, work.edits, versions.path)
    known = [
        line.strip() for line in (*(versions.configured or b"").splitlines(), *data.splitlines())
    ]
    comments = [
        line
        for line in current.splitlines()
        if line.strip().startswith(b"#") and line.strip() not in known
    ]
    if not comments:
        return data
    end = b"" if not data or data.endswith(b"\n") else b"\n"
    return data + end + b"".join(line + b"\n" for line in comments)
