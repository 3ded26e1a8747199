# SPDX-License-Identifier: Apache-2.0
"""Plans the edits that undo a configuration, with the journal or without it.

Contract: no side effects. No edit leaves a default runtime that is no longer registered: such an
engine does not start, or starts without its CRI.
"""

from __future__ import annotations

import posixpath
from dataclasses import replace

from nvct.engine.change import restore
from nvct.engine.change.restore import Versions
from nvct.engine.containerd.dropin import After
from nvct.engine.files.syntax import ABSENT, RUNTIMES, Absent, find, program
from nvct.engine.model import Change, FileEdit, Handler
from nvct.paths import SHIM_PROGRAM

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from nvct.engine.change.journal import Entry, Record
    from nvct.engine.files.syntax import KeyEdit, Path, Syntax, Table
    from nvct.engine.model import EngineOptions, Files
    from nvct.engine.modules import Module

VENDORS = "/usr/"  # files of packages


def by_journal(record: Record, module: Module, files: Files) -> Change:
    """Return the edits that restore the keys from before a record.

    Raises:
        EngineConfigError: a file cannot be understood or edited any more.
    """
    options = replace(record.options, dump="")
    names = {handler.name for handler in options.handlers}
    every = [_versions(entry, files) for entry in reversed(record.entries)]
    first = {one.path: restore.restored(one, module.SYNTAX, names) for one in every}
    left = _left(options, first, module, files)
    edits, notes = [], []
    for versions in every:
        if versions.original is None and versions.path in left:
            versions = _beside_copy(versions, options, module, record)
        found = restore.restored(versions, module.SYNTAX, names, left)
        notes += found.notes
        if versions.now != found.data:
            edits.append(FileEdit(path=versions.path, before=versions.now, after=found.data))
    change = Change(
        engine=options.engine, edits=tuple(edits), restart=record.restart, notes=tuple(notes)
    )
    former = {entry.path: entry.original for entry in record.entries}
    return _with_defaults(change, options, module, files, former)


def without_ours(options: EngineOptions, module: Module, files: Files) -> Change:
    """Return the edits that remove every runtime whose program is NVIDIA's, and no other.

    Raises:
        DocumentError: a file cannot be read or understood.
    """
    plain = replace(options, dump="", cdi=False, spec_dirs=(), hooks_dir="")
    state = module.state(plain, files)
    found = {name: path for name, path in state.handlers.items() if is_ours(path)}
    for path in state.files:
        keys = _keys_of_ours(files.read(path) or b"", path, module.SYNTAX)
        found.update({where[-1]: path for where, path in keys.items()})
    if not found:
        return Change(engine=options.engine)
    handlers = tuple(Handler(name=name, path=path) for name, path in found.items())
    plain = replace(plain, handlers=handlers)
    change = _everywhere(module.removal(plain, files), plain, module, files)
    return _with_defaults(change, plain, module, files, {})


def _everywhere(change: Change, options: EngineOptions, module: Module, files: Files) -> Change:
    """Return a removal that also covers the files that configure does not edit."""
    after = After(files, change.edits)
    edits = list(change.edits)
    for path in module.state(options, after).files:
        data = after.read(path)
        keys = _keys_of_ours(data or b"", path, module.SYNTAX)
        if data is not None and keys and not path.startswith(VENDORS):
            less = module.SYNTAX.edit(data, [(where, ABSENT) for where in keys], path)
            edits = _with_edit(edits, FileEdit(path=path, before=files.read(path), after=less))
    return replace(
        change, edits=tuple(edits), restart=change.restart or len(edits) > len(change.edits)
    )


def _keys_of_ours(data: bytes, path: str, syntax: Syntax) -> dict[Path, str]:
    """Return the runtimes of a file whose program is NVIDIA's: path of the key → program."""
    found: dict[Path, str] = {}
    for where, table in syntax.parents(syntax.parse(data, path)):
        runtimes = table.get(RUNTIMES)
        for name, runtime in runtimes.items() if isinstance(runtimes, dict) else ():
            if is_ours(program(runtime)):
                key = (*where, RUNTIMES, name)
                found[key] = program(runtime)
    return found


def is_ours(path: str) -> bool:
    """Report whether a program is NVIDIA's runtime or a variant of it."""
    return posixpath.basename(path).startswith(SHIM_PROGRAM)


def merged(old: Record | None, made: Record, module: Module) -> Record | None:
    """Return the record that undo reverts after another configure."""
    entries = {entry.path: entry for entry in (old.entries if old else ())}
    names = [handler.name for handler in (old.options.handlers if old else ())]
    for entry in made.entries:
        first = entries.get(entry.path)
        if first is None:
            entries[entry.path] = entry
        elif first.ours == entry.original:
            folders = first.folders or entry.folders
            entries[entry.path] = replace(first, ours=entry.ours, folders=folders)
        else:
            # Others changed it since: undo is to restore their file without our part.
            versions = Versions(
                path=entry.path, original=first.original, ours=first.ours, now=entry.original
            )
            former = restore.restored(versions, module.SYNTAX, names, (entry.path,))
            entries[entry.path] = replace(entry, original=former.data)
    kept = tuple(entry for entry in entries.values() if entry.original != entry.ours)
    restart = made.restart or (old is not None and old.restart)
    return replace(made, entries=kept, restart=restart, reloaded=False) if kept else None


def _versions(entry: Entry, files: Files) -> Versions:
    return Versions(
        path=entry.path, original=entry.original, ours=entry.ours, now=files.read(entry.path)
    )


def _beside_copy(
    versions: Versions, options: EngineOptions, module: Module, record: Record
) -> Versions:
    """Return the versions of a drop-in that others added to: it keeps its copy of other tables.

    If the tables of the last file replace those of the others, their additions alone would hide
    the rest.
    """
    syntax = module.SYNTAX
    if versions.ours is None or not syntax.copies(options.engine_version):
        return versions
    main = next((one.original for one in record.entries if one.path == options.config), None)
    root = {} if main is None else syntax.parse(main, options.config)
    ours = syntax.parse(versions.ours, versions.path)
    table = {"plugins": root.get("plugins", {})}
    keys: list[KeyEdit] = [
        (path, value)
        for path, value, _ in restore.differences(table, {"plugins": ours.get("plugins", {})})
        if not isinstance(find(ours, path[:2]), Absent)
    ]
    return replace(versions, original=syntax.edit(versions.ours, keys, versions.path))


def _left(
    options: EngineOptions, found: Mapping[str, restore.Restored], module: Module, files: Files
) -> tuple[str, ...]:
    """Return the files that hold settings after undo, without the main file."""
    left = [path for path in module.state(options, files).files if path not in found]
    left += [path for path, file in found.items() if file.data is not None and file.says]
    return tuple(path for path in left if path != options.config)


# The default


def _with_defaults(
    change: Change,
    options: EngineOptions,
    module: Module,
    files: Files,
    former: Mapping[str, bytes | None],
) -> Change:
    """Return a change after which no file names a default that is no longer registered.

    Args:
        change: the edits so far.
        options: of the engine, with the runtimes to remove.
        module: of the engine.
        files: of the host.
        former: path → bytes before configure.
    """
    syntax, after = module.SYNTAX, After(files, change.edits)
    documents = {
        path: syntax.parse(data, path)
        for path in module.state(options, after).files
        if (data := after.read(path)) is not None
    }
    before = {path: syntax.parse(data, path) for path, data in former.items() if data is not None}
    gone = {handler.name for handler in options.handlers}
    gone.update(*map(syntax.names, before.values()))
    gone.difference_update(*map(syntax.names, documents.values()))
    edits, notes = list(change.edits), list(change.notes)
    for path, document in documents.items():
        keys = _default_edits(document, before.get(path, {}), gone, syntax)
        if keys:
            notes += [_default_note(path, find(document, where), new) for where, new in keys]
            data = syntax.edit(after.read(path) or b"", keys, path)
            edits = _with_edit(edits, FileEdit(path=path, before=files.read(path), after=data))
    restart = change.restart or any(_frees_default(edit, syntax) for edit in edits)
    return replace(change, edits=tuple(edits), notes=tuple(notes), restart=restart)


def _default_edits(
    document: Table, before: Table, gone: Collection[str], syntax: Syntax
) -> list[KeyEdit]:
    """Return the edits of keys whose default is gone: to the former default, or to none."""
    edits: list[KeyEdit] = []
    for path, table in syntax.parents(document) if syntax.default else ():
        where = (*path, syntax.default)
        if _is_among(table.get(syntax.default), gone):
            value = find(before, where)
            edits.append((where, ABSENT if _is_among(value, gone) else value))
    return edits


def _is_among(value: object, names: Collection[str]) -> bool:
    return isinstance(value, str) and value in names


def _default_note(path: str, now: object, value: object) -> str:
    to = "the engine's own" if value is ABSENT else value
    return f"{path}: the default runtime {now} is not registered any more: it is {to} again"


def _with_edit(edits: Sequence[FileEdit], more: FileEdit) -> list[FileEdit]:
    """Return edits with one replaced or put first: a default is removed before its runtime."""
    if all(edit.path != more.path for edit in edits):
        return [more, *edits]
    return [more if edit.path == more.path else edit for edit in edits]


def _frees_default(edit: FileEdit, syntax: Syntax) -> bool:
    """Report whether an edit removes the default: dockerd keeps it until a restart."""
    before, after = (
        {} if data is None else syntax.parse(data, edit.path) for data in (edit.before, edit.after)
    )
    return any(
        syntax.default in table and find(after, (*path, syntax.default)) is ABSENT
        for path, table in syntax.parents(before)
    )
