# SPDX-License-Identifier: Apache-2.0
"""Plans the edits that undo a configuration, with the journal or without it.

Contract: no side effects. The edits leave no default runtime that is no longer registered: with
one, an engine does not start, or starts without its CRI.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from nvct.config.tables import ABSENT, KeyEdit, Path, Table, find, has_values, subtable
from nvct.engine import restore, writing
from nvct.engine.journal import NOTHING, Entry, Record
from nvct.engine.model import Change, EditedFiles, EngineOptions, FileEdit, Files, Handler, State
from nvct.engine.modules import RUNTIMES, Module, Syntax, program
from nvct.paths import SHIM_PROGRAM

OWN = "the engine's own"
VENDORS = "/usr/"  # where packages have their files
RESTARTED = ("containerd", "crio")
"""Only a restart removes their runtimes; dockerd reads its own on SIGHUP, Podman at each run."""


def by_journal(record: Record, module: Module, files: Files) -> Change:
    """Return the edits that undo a record, key by key; EngineConfigError if that is impossible."""
    options, syntax = replace(record.options, dump=""), module.SYNTAX
    names = {handler.name for handler in options.handlers}
    current = {entry.path: files.read(entry.path) for entry in reversed(record.entries)}
    entries = {entry.path: entry for entry in record.entries}
    remaining = []  # the files that hold settings afterwards; the main file may import them
    for path, data in current.items():
        after, _ = restore.restored(entries[path], data, syntax, names)
        if after is not None and has_values(syntax.parse(after, path)):
            remaining.append(path)
    others = [path for path in module.state(options, files).files if path not in current]
    remaining = [path for path in (*remaining, *others) if path != options.config]
    edits, notes = [], []
    for path, data in current.items():
        entry = entries[path]
        if entry.before.content is None and path in remaining:
            entry = _with_copied_tables(entry, record, module)
        after, file_notes = restore.restored(entry, data, syntax, names, remaining)
        notes += file_notes
        if data != after:
            edits.append(FileEdit(path=path, before=data, after=after))
    change = Change(edits=tuple(edits), restart=record.restart, notes=tuple(notes))
    originals = {path: entry.before.content for path, entry in entries.items()}
    return _with_defaults(change, options, module, files, originals)


def without_nvidia(options: EngineOptions, module: Module, files: Files) -> Change:
    """Return the edits that remove every runtime whose program is NVIDIA's, and no other.

    A default runtime among them is removed, too, as are drop-ins that then have no settings.
    Raises DocumentError if a file cannot be read or parsed.
    """
    plain, syntax = replace(options, dump="", handlers=()), module.SYNTAX
    names: dict[str, str] = {}
    edits: list[FileEdit] = []
    notes: list[str] = []
    for path in module.state(plain, files).files:
        data = files.read(path) or b""
        programs = _nvidia_runtimes(data, path, syntax)
        names |= {where[-1]: program for where, program in programs.items()}
        if programs and not path.startswith(VENDORS):
            after = syntax.edit(data, [(where, ABSENT) for where in programs], path)
            document = syntax.parse(after, path)
            gone = {where[-1] for where in programs} - syntax.names(document)
            keys = _default_edits(document, {}, gone, syntax, options.engine_version)
            notes += _default_notes(path, document, keys)
            edits.append(FileEdit(path=path, before=data, after=syntax.edit(after, keys, path)))
    handlers = tuple(Handler(name=name, path=path) for name, path in names.items())
    restart = bool(edits) and options.engine in RESTARTED
    change = Change(edits=tuple(edits), restart=restart, notes=tuple(notes))
    change = _with_defaults(change, replace(plain, handlers=handlers), module, files, {})
    if syntax.cleared:
        return replace(change, edits=syntax.cleared(plain, files, change.edits))
    return replace(change, edits=tuple(_cleared(edit, plain, syntax) for edit in change.edits))


def _cleared(edit: FileEdit, options: EngineOptions, syntax: Syntax) -> FileEdit:
    """Return the edit; if it leaves our drop-in without settings, one that removes the file."""
    name = posixpath.basename(edit.path)
    is_ours = edit.path == options.drop_in or name.startswith(writing.DROP_IN)
    is_empty = is_ours and syntax.is_empty(edit.after or b"", edit.path)
    return replace(edit, after=None) if is_empty else edit


def _nvidia_runtimes(data: bytes, path: str, syntax: Syntax) -> dict[Path, str]:
    return {
        (*where, RUNTIMES, name): program(runtime)
        for where, table in syntax.parents(syntax.parse(data, path))
        for name, runtime in subtable(table, (RUNTIMES,)).items()
        if is_nvidia_runtime(program(runtime))
    }


def is_nvidia_runtime(path: str) -> bool:
    """Report whether a program is NVIDIA's runtime or a variant of it."""
    return posixpath.basename(path).startswith(SHIM_PROGRAM)


def merged(old: Record | None, new: Record, module: Module) -> Record | None:
    """Return the record for undo after a second configure; None if no file differs any more."""
    entries = {entry.path: entry for entry in (old.entries if old else ())}
    names = [handler.name for handler in (old.options.handlers if old else ())]
    for entry in new.entries:
        first = entries.get(entry.path)
        if first is None:
            entries[entry.path] = entry
        elif first.after.is_like(entry.before):
            folders = first.folders or entry.folders
            entries[entry.path] = replace(first, after=entry.after, folders=folders)
        else:
            # Others have changed it since: undo must restore their file without our part.
            restored, _ = restore.restored(
                first, entry.before.content, module.SYNTAX, names, (entry.path,)
            )
            before = entry.before.with_content(restored)
            entries[entry.path] = replace(entry, before=before)
    changed = tuple(e for e in entries.values() if not e.before.is_like(e.after))
    restart = new.restart or (old is not None and old.restart)
    return replace(new, entries=changed, restart=restart, reloaded=False) if changed else None


def options_to_undo(options: EngineOptions, state: State, old: Record | None) -> EngineOptions:
    """Return the options that undo has to revert: those that this and earlier changes configure.

    Settings that the files had before nvct stay.
    """
    recorded = old.options if old else replace(NOTHING, engine=options.engine)
    names = {handler.name for handler in recorded.handlers}
    new = [
        handler
        for handler in options.handlers
        if handler.name not in names and state.handlers.get(handler.name) != handler.path
    ]
    current = {handler.name: handler for handler in options.handlers}
    has_spec_dirs = state.spec_dirs == options.spec_dirs
    spec_dirs = recorded.spec_dirs if has_spec_dirs else options.spec_dirs
    updated = (current.get(handler.name, handler) for handler in recorded.handlers)
    return replace(
        options,
        handlers=(*updated, *new),
        default=options.default if state.default != options.default else recorded.default,
        cdi=recorded.cdi or (options.cdi and state.cdi is not True),
        spec_dirs=spec_dirs,
        hooks_dir=options.hooks_dir or recorded.hooks_dir,
    )


def _with_copied_tables(entry: Entry, record: Record, module: Module) -> Entry:
    """Return the entry of a drop-in to which others added keys: undo keeps its copied tables.

    Where the last file's tables replace those of all files, a drop-in with only their additions
    would hide the other settings.
    """
    options, syntax, data = record.options, module.SYNTAX, entry.after.content
    if data is None or options.engine_version >= syntax.merges_from:
        return entry
    main = next((e.before.content for e in record.entries if e.path == options.config), None)
    root = {} if main is None else syntax.parse(main, options.config)
    configured = syntax.parse(data, entry.path)
    before, after = ({"plugins": table.get("plugins", {})} for table in (root, configured))
    keys: list[KeyEdit] = [
        (path, value)
        for path, value, _ in restore.differences(before, after)
        if find(configured, path[:2]) is not ABSENT
    ]
    copied = syntax.edit(data, keys, entry.path)
    return replace(entry, before=entry.after.with_content(copied))


# The default


def _with_defaults(
    change: Change,
    options: EngineOptions,
    module: Module,
    files: Files,
    originals: Mapping[str, bytes | None],
) -> Change:
    """Return a change after which no file names a default that is no longer registered.

    The options' handlers are removed; `originals` are the files' bytes before configure.
    """
    syntax, after = module.SYNTAX, EditedFiles(files, change.edits)
    documents = {
        path: syntax.parse(data, path)
        for path in module.state(options, after).files
        if (data := after.read(path)) is not None
    }
    original_documents = {
        path: syntax.parse(data, path) for path, data in originals.items() if data is not None
    }
    unregistered = {handler.name for handler in options.handlers}
    unregistered.update(*map(syntax.names, original_documents.values()))
    unregistered.difference_update(*map(syntax.names, documents.values()))
    edits, notes = list(change.edits), list(change.notes)
    for path, document in documents.items():
        original = original_documents.get(path, {})
        keys = _default_edits(document, original, unregistered, syntax, options.engine_version)
        if keys:
            notes += _default_notes(path, document, keys)
            data = syntax.edit(after.read(path) or b"", keys, path)
            edits = _with_edit(edits, FileEdit(path=path, before=files.read(path), after=data))
    restart = change.restart or any(_frees_default(edit, syntax) for edit in edits)
    return replace(change, edits=tuple(edits), notes=tuple(notes), restart=restart)


def _default_edits(
    document: Table,
    original: Table,
    unregistered: Collection[str],
    syntax: Syntax,
    version: tuple[int, ...],
) -> list[KeyEdit]:
    """Return the edits that replace unregistered defaults: by the former one, or the engine's."""
    edits: list[KeyEdit] = []
    for path, table in syntax.parents(document) if syntax.default else ():
        where = (*path, syntax.default)
        if not _is_among(table.get(syntax.default), unregistered):
            continue
        value = find(original, where)
        if value is ABSENT or _is_among(value, unregistered):
            value = syntax.next_default(subtable(table, (RUNTIMES,)), version, path)
        edits.append((where, value))
    return edits


def _is_among(value: object, names: Collection[str]) -> bool:
    return isinstance(value, str) and value in names


def _default_notes(path: str, document: Table, keys: Sequence[KeyEdit]) -> list[str]:
    return [
        f"{path}: the default runtime {find(document, where)} is no longer registered: the default"
        f" is {OWN if new is ABSENT else new} again"
        for where, new in keys
    ]


def _with_edit(edits: Sequence[FileEdit], addition: FileEdit) -> list[FileEdit]:
    """Return edits with one replaced or put first: a default is removed before its runtime."""
    if all(edit.path != addition.path for edit in edits):
        return [addition, *edits]
    return [addition if edit.path == addition.path else edit for edit in edits]


def _frees_default(edit: FileEdit, syntax: Syntax) -> bool:
    """Report whether an edit removes the default: dockerd keeps it until a restart."""
    before, after = (
        {} if data is None else syntax.parse(data, edit.path) for data in (edit.before, edit.after)
    )
    return any(
        syntax.default in table and find(after, (*path, syntax.default)) is ABSENT
        for path, table in syntax.parents(before)
    )
