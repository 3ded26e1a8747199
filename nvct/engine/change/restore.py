# SPDX-License-Identifier: Apache-2.0
"""Removes our changes, key by key, from files that others have changed since. No side effects.

Our changes are the differences between the file before and after configure. Where a key still has
our value, it gets its former value or is removed; values that others set stay. A runtime that we
registered is one unit: it is removed completely if its program is still the one that we named,
and stays completely if others gave it another program.
"""

from __future__ import annotations

import copy
import difflib
from dataclasses import dataclass, field

from nvct.engine.files import toml_file
from nvct.engine.files.syntax import ABSENT, RUNTIMES, Absent, find, program
from nvct.errors import EngineConfigError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from nvct.engine.files.syntax import KeyEdit, Path, Syntax, Table


IMPORTS = ("imports",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Versions:
    """One file: before configure, as configure left it, and now; None is no file."""

    path: str
    original: bytes | None
    ours: bytes | None
    now: bytes | None


@dataclass(slots=True, kw_only=True)
class Restored:
    """A file without our changes.

    Attributes:
        data: its bytes, None for no file.
        notes: sentences about what stays and why.
        says: whether it holds a setting.
    """

    data: bytes | None
    notes: list[str] = field(default_factory=list)
    says: bool = False


@dataclass(slots=True, kw_only=True)
class _Work:
    """The restoration of one file: its content before, after, now, and the result."""

    versions: Versions
    syntax: Syntax
    before: Table
    ours: Table
    now: Table
    result: Table
    going: frozenset[str]  # names of the new runtimes with the program that we gave them
    handlers: frozenset[str]  # of these, or changed: that configure was asked for
    edits: list[KeyEdit] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)


def restored(
    versions: Versions, syntax: Syntax, handlers: Collection[str], left: Sequence[str] = ()
) -> Restored:
    """Return a file without our changes.

    Args:
        versions: of the file.
        syntax: of the engine's files.
        handlers: names of the runtimes that configure registered.
        left: the other files that remain: a list may name them.

    Raises:
        EngineConfigError: the file cannot be understood or edited any more.
    """
    path, now = versions.path, versions.now
    if now is None:
        gone = versions.ours is not None and versions.original is not None
        said = f"{path} was removed by someone else: it is left so"
        return Restored(data=None, notes=[said] if gone else [])
    work = _work(versions, syntax, handlers)
    if now == versions.original:
        return Restored(data=now, says=_says(work.now))
    if versions.ours is None:
        return Restored(data=now, notes=[f"{path} was made by others: it stays"], says=True)
    _decide(work, left)
    if now == versions.ours and toml_file.same(
        toml_file.pruned(work.result), toml_file.pruned(work.before)
    ):
        return Restored(data=versions.original, says=_says(work.before))
    return _written(work)


def _work(versions: Versions, syntax: Syntax, handlers: Collection[str]) -> _Work:
    before, ours, now = (
        {} if data is None else syntax.parse(data, versions.path)
        for data in (versions.original, versions.ours, versions.now)
    )
    result = copy.deepcopy(now)
    going = frozenset(
        path[-1]
        for path, old, new in differences(before, ours)
        if _is_runtime(path) and isinstance(old, Absent) and _is_same_program(find(now, path), new)
    )
    return _Work(
        versions=versions, syntax=syntax, before=before, ours=ours, now=now, result=result,
        going=going, handlers=frozenset(handlers),
    )  # fmt: skip


def _is_same_program(now: object, ours: object) -> bool:
    return not isinstance(now, Absent) and program(now) == program(ours)


def _decide(work: _Work, left: Sequence[str]) -> None:
    """Find the edits that revert our changes, and apply them to the result."""
    helpers: list[Path] = []
    version = False
    for path, before, ours in differences(work.before, work.ours):
        if path == ("version",) and isinstance(before, Absent):
            version = True
        elif _is_runtime(path) and isinstance(before, Absent) and path[-1] not in work.handlers:
            helpers.append(path)  # such as runc, which containerd 1.x forgets beside others
        else:
            _take_back(work, path, before, ours, left)
    for path in helpers:
        rest, before = (find(said, path[:-1]) for said in (work.result, work.before))
        known = {*(before if isinstance(before, dict) else ()), *(one[-1] for one in helpers)}
        if isinstance(rest, dict) and set(rest) <= known:  # others registered none since
            _take_back(work, path, ABSENT, find(work.ours, path), left)
    _drop_empty_tables(work)
    # What others wrote beside it may be read by that version only.
    if version and not _says({k: v for k, v in work.result.items() if k != "version"}):
        _take_back(work, ("version",), ABSENT, work.ours["version"], left)


def differences(
    before: Mapping[str, object], ours: Mapping[str, object], above: Path = ()
) -> Iterator[tuple[Path, object, object]]:
    """Yield the keys that differ: path, value before, value after; a new runtime is one value."""
    for key in dict.fromkeys((*before, *ours)):
        path = (*above, key)
        old, new = before.get(key, ABSENT), ours.get(key, ABSENT)
        if isinstance(old, dict) and (isinstance(new, dict) or (old and isinstance(new, Absent))):
            yield from differences(old, new if isinstance(new, dict) else {}, path)
        elif isinstance(old, Absent) and isinstance(new, dict) and not _is_runtime(path):
            yield from differences({}, new, path)
        elif not toml_file.same(old, new):
            yield path, old, new


def _is_runtime(path: Path) -> bool:
    return path[-2:-1] == (RUNTIMES,)


def _take_back(work: _Work, path: Path, before: object, ours: object, left: Sequence[str]) -> None:
    """Restore the former value of a key if it still has ours."""
    now = find(work.now, path)
    value = _value(work, path, (before, ours, now), left)
    if isinstance(value, Absent) and isinstance(now, Absent):
        return
    if toml_file.same(value, now):
        if not toml_file.same(now, before):
            said = f"{work.versions.path}: {'.'.join(path)} was changed by others and stays"
            work.kept.append(said)
        return
    work.edits.append((path, value))
    _set(work.result, path, value)


def _value(
    work: _Work, path: Path, values: tuple[object, object, object], left: Sequence[str]
) -> object:
    """Return the restored value of a key."""
    before, ours, now = values
    if _is_runtime(path) and isinstance(before, Absent) and not isinstance(now, Absent):
        return ABSENT if path[-1] in work.going else now
    if path[-1] == work.syntax.default and now in work.going & work.handlers:
        return before  # others chose another one of ours
    had = before if isinstance(before, list) else []
    used = [
        item
        for item in (ours if isinstance(ours, list) else ())
        if item not in had and work.syntax.needed(path, item, left)
    ]
    if toml_file.same(now, ours) and not used:
        return before
    # A list that replaces the engine's own default is one value, unless it had elements before.
    if not isinstance(now, list) or not isinstance(ours, list) or not (had or path == IMPORTS):
        return now
    rest = [item for item in now if item in used or item in had or item not in ours]
    rest += [item for item in had if item not in ours and item not in rest]
    return rest if rest or had else before


def _set(document: Table, path: Path, value: object) -> None:
    inside = document
    for name in path[:-1]:
        inner = inside.setdefault(name, {})
        if not isinstance(inner, dict):
            raise EngineConfigError(f"{'.'.join(path)} cannot be put back: {name} is no table")
        inside = inner
    if isinstance(value, Absent):
        inside.pop(path[-1], None)
    else:
        inside[path[-1]] = copy.deepcopy(value)


def _drop_empty_tables(work: _Work) -> None:
    """Remove the tables that we created and that are empty now."""
    for path in list(_empty_tables(work.result, work.before, work.ours)):
        _set(work.result, path, ABSENT)
        work.edits = [edit for edit in work.edits if edit[0][: len(path)] != path]
        work.edits.append((path, ABSENT))


def _empty_tables(
    table: Mapping[str, object], before: object, ours: object, above: Path = ()
) -> Iterator[Path]:
    for key, value in table.items():
        mine = find(ours, (key,))
        if not isinstance(value, dict) or not isinstance(mine, dict):
            continue
        old = find(before, (key,))
        if isinstance(old, Absent) and not _says(value):
            yield (*above, key)
        else:
            yield from _empty_tables(value, old, mine, (*above, key))


def _says(table: Mapping[str, object]) -> bool:
    """Report whether a table holds a value, at any depth."""
    return any(_says(value) if isinstance(value, dict) else True for value in table.values())


def _written(work: _Work) -> Restored:
    """Return the file with the result; the bytes of others are unchanged."""
    versions, syntax = work.versions, work.syntax
    data = versions.now
    if work.edits:
        merged = _merged(work) if syntax.by_lines else None
        data = _edited(work) if merged is None else merged
    note = f"{versions.path} was changed by others: only our part is taken out"
    if not work.edits:
        note = f"{versions.path} was changed by others and holds nothing of ours: it is left alone"
    says = _says(work.result)
    comments = b"#" in (data or b"").replace(syntax.header.encode(), b"")
    if versions.original is None and not says and not comments:
        data = None
    return Restored(data=data, notes=[note, *work.kept], says=says)


def _merged(work: _Work) -> bytes | None:
    """Return the file merged by lines, without our lines; None if that fails.

    The merge counts only if it means the same as the restoration by keys.
    """
    versions = work.versions
    ours = (versions.ours or b"").splitlines(keepends=True)
    dropped: set[int] = set()
    inserted: dict[int, list[bytes]] = {}
    for other in (versions.original, versions.now):
        lines = (other or b"").splitlines(keepends=True)
        matcher = difflib.SequenceMatcher(None, ours, lines, autojunk=False)
        for tag, start, end, first, last in matcher.get_opcodes():
            if tag != "equal":
                dropped.update(range(start, end))
                inserted.setdefault(start, []).extend(lines[first:last])
    merged: list[bytes] = []
    for number in range(len(ours) + 1):
        merged += inserted.get(number, [])
        merged += [ours[number]] if number < len(ours) and number not in dropped else []
    data = b"".join(merged)
    try:
        said = work.syntax.parse(data, versions.path)
    except EngineConfigError:
        return None
    return data if toml_file.same(toml_file.pruned(said), toml_file.pruned(work.result)) else None


def _edited(work: _Work) -> bytes:
    """Return the file with the keys edited; comments of others stay, at its end if necessary."""
    versions, now = work.versions, work.versions.now or b""
    data = work.syntax.edit(now, work.edits, versions.path)
    known = [line.strip() for line in (versions.ours or b"").splitlines()]
    present = [line.strip() for line in data.splitlines()]
    lost = [
        line
        for line in now.splitlines()
        if line.strip().startswith(b"#")
        and line.strip() not in known
        and line.strip() not in present
    ]
    if not lost:
        return data
    end = b"" if not data or data.endswith(b"\n") else b"\n"
    return data + end + b"".join(line + b"\n" for line in lost)
