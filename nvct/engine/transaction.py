# SPDX-License-Identifier: Apache-2.0
"""Carry a change of an engine's files out, whole or not at all, and take it back.

Order: lock, settle what a killed run left, read and plan, check with the engine itself, journal,
write, tell the engine, see that it is well, journal. Whatever fails after the journal has it puts
the bytes back. Contract: nothing else writes an engine's files; a kill at any point leaves files
that are whole, each as before or as planned, and a journal from which the next run goes back.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from nvct.engine import journal as journals
from nvct.engine import writing
from nvct.engine.journal import Entry, Page, Record
from nvct.engine.model import Change, FileEdit
from nvct.errors import EngineError, NvctError, UnsafePathError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Protocol

    from nvct.engine.journal import Journal
    from nvct.engine.model import Files, State, Wanted
    from nvct.linux.kernel import Kernel

    class Module(Protocol):
        """An engine's module: values only."""

        @staticmethod
        def state(wanted: Wanted, files: Files) -> State:
            """Return what the files say."""

        @staticmethod
        def plan(wanted: Wanted, files: Files) -> Change:
            """Return the smallest edit that makes them say what is wanted."""

        @staticmethod
        def removal(wanted: Wanted, files: Files) -> Change:
            """Return the smallest edit that takes our handlers out again."""

    class Hands(Protocol):
        """What can be done with an engine but for writing its files."""

        def check(self, edits: Sequence[FileEdit]) -> Sequence[str]:
            """Have the engine read files that are not in place yet; raise EngineError."""

        def activate(self, *, restart: bool, back: bool = False) -> Sequence[str]:
            """Tell a running engine to read its files, which may be `back`, and see that it does.

            Raises:
                EngineError: it does not.
            """


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What was done.

    Attributes:
        edits: that were made; () where everything was as it should be.
        restart: the engine has to be restarted to see them.
        notes: sentences for whoever asked.
    """

    edits: tuple[FileEdit, ...] = ()
    restart: bool = False
    notes: tuple[str, ...] = ()


class Transaction:
    """One engine's files, with what it takes to change them.

    Args:
        hands: of the engine; None only writes files.
    """

    def __init__(
        self, module: Module, files: Files, journal: Journal, hands: Hands | None = None
    ) -> None:
        self.module = module
        self.files = files
        self.journal = journal
        self.hands = hands

    @property
    def kernel(self) -> Kernel:
        """Return what asks the kernel to change something."""
        return self.journal.kernel

    def configure(self, wanted: Wanted) -> Outcome:
        """Make the files say what is wanted.

        Raises:
            DocumentError: a file, or the journal, cannot be understood.
            EngineError: the engine refuses the files or does not come back with them, a file
                cannot be written or was changed meanwhile; everything is as it was.
            HostError: another process has the lock.
        """
        with self._locked():
            path, page, notes = self._settled(wanted)
            change = self.module.plan(wanted, self.files)
            if not change.edits:
                return _outcome(change, notes)
            self._check_shared(path, change)
            state = self.module.state(wanted, self.files)
            told = journals.ours(wanted, state, page.done, change.imported)
            removal = self.module.removal(told, self.files)
            pending = self._record(told, change)
            done = _merged(page.done, pending, {edit.path: edit for edit in removal.edits})
            notes += self._commit(path, page.done, pending, done, change)
            return _outcome(change, notes)

    def undo(self, wanted: Wanted) -> Outcome:
        """Give the files their bytes back; where others changed one, take only ours out of it.

        Raises:
            as configure.
        """
        with self._locked():
            path, page, notes = self._settled(wanted)
            if page.done is None:
                return Outcome(notes=(*notes, f"nothing to undo for {wanted.engine}"))
            change = self._undoing(page.done)
            if change.edits:
                pending = self._record(page.done.wanted, change)
                notes += self._commit(path, page.done, pending, None, change)
            else:
                self._save(path, Page())
            for entry in page.done.entries:
                writing.remove_folders(self._at(entry.folders), self.kernel)
            return _outcome(change, notes)

    def remove(self, wanted: Wanted) -> Outcome:
        """Take handlers out that the journal knows nothing of.

        Raises:
            as configure.
        """
        with self._locked():
            path, page, notes = self._settled(wanted)
            change = self.module.removal(wanted, self.files)
            if change.edits:
                notes += self._commit(path, page.done, self._record(wanted, change), None, change)
            return _outcome(change, notes)

    # Steps.

    def _locked(self) -> _Locked:
        return _Locked(self.journal)

    def _settled(self, wanted: Wanted) -> tuple[str, Page, tuple[str, ...]]:
        """Return the page of an engine, after going back from a change that was cut short."""
        path = self.journal.path(wanted.engine, wanted.config)
        page = self.journal.load(path)
        if page.pending is None:
            return path, page, ()
        notes = [f"an earlier change of {wanted.engine} was cut short: its files are as before it"]
        notes += self._go_back(page.pending)
        if page.pending.told:
            notes += self._activate(restart=page.pending.restart)
        page = Page(done=page.done)
        self._save(path, page)
        return path, page, tuple(notes)

    def _commit(
        self, path: str, old: Record | None, pending: Record, done: Record | None, change: Change
    ) -> tuple[str, ...]:
        """Carry edits out, or leave everything as it was."""
        for edit in change.edits:
            self._check_unchanged(edit)
        notes = tuple(self.hands.check(change.edits)) if self.hands else ()
        self._save(path, Page(done=old, pending=pending))
        try:
            for entry in pending.entries:
                self._write(entry)
            if self.hands:
                pending = replace(pending, told=True)
                self._save(path, Page(done=old, pending=pending))
                notes += tuple(self.hands.activate(restart=change.restart))
            self._save(path, Page(done=done))
        except BaseException as error:
            self._take_back(path, old, pending, error)
            if isinstance(error, EngineError) and not error.hint:
                error.hint = "the former files are back in place"
            raise
        return notes

    def _take_back(
        self, path: str, old: Record | None, pending: Record, error: BaseException
    ) -> None:
        """Go back after a failure; raise only if that fails too."""
        try:
            self._go_back(pending)
            if pending.told:
                self._activate(restart=pending.restart)
            self._save(path, Page(done=old))
        except (NvctError, OSError) as second:
            first = error.message if isinstance(error, NvctError) else str(error)
            raise EngineError(
                f"{first}; and taking it back failed: {second}",
                hint=f"the former files are in {path}",
            ) from error

    def _go_back(self, pending: Record) -> list[str]:
        """Put the original bytes back wherever ours are."""
        notes = []
        for entry in reversed(pending.entries):
            now = self.files.read(entry.path)
            if now == entry.original:
                pass
            elif now == entry.ours:
                self._put(entry, entry.original)
            else:
                notes.append(f"{entry.path} was changed by someone else and is left as it is")
            writing.remove_folders(self._at(entry.folders), self.kernel)
        return notes

    def _activate(self, *, restart: bool) -> tuple[str, ...]:
        """Tell the engine of files that were put back; what it says then is only a note."""
        if self.hands is None:
            return ()
        try:
            return tuple(self.hands.activate(restart=restart, back=True))
        except EngineError as error:
            return (f"with the former files as well: {error.message}",)

    def _write(self, entry: Entry) -> None:
        self._check_unchanged(FileEdit(path=entry.path, before=entry.original, after=entry.ours))
        writing.make_folders(self._at(entry.folders), self.kernel)
        self._put(entry, entry.ours)

    def _put(self, entry: Entry, data: bytes | None) -> None:
        writing.put(self.files.at(entry.path), data, entry, self.kernel)

    def _save(self, path: str, page: Page) -> None:
        try:
            self.journal.save(path, page)
        except OSError as error:
            raise writing.refused(error, path) from error

    def _at(self, folders: Sequence[str]) -> tuple[str, ...]:
        return tuple(self.files.at(folder) for folder in folders)

    # Values.

    def _record(self, wanted: Wanted, change: Change) -> Record:
        entries = []
        made: set[str] = set()
        for edit in change.edits:
            where = self.files.at(edit.path)
            folders = [] if edit.after is None else writing.missing_folders(where)
            inside = [self._inside(folder) for folder in folders]
            entries.append(
                Entry(
                    path=edit.path,
                    original=edit.before,
                    ours=edit.after,
                    folders=tuple(folder for folder in inside if folder not in made),
                    **writing.status(where),
                )
            )
            made.update(inside)
        return Record(wanted=wanted, entries=tuple(entries), restart=change.restart)

    def _inside(self, path: str) -> str:
        root = self.files.root.rstrip("/")
        return path[len(root) :]

    def _undoing(self, record: Record) -> Change:
        """Return the edits that take a record back."""
        now = {entry.path: self.files.read(entry.path) for entry in record.entries}
        changed = [
            entry.path
            for entry in record.entries
            if now[entry.path] not in (entry.ours, entry.original)
        ]
        ours = self.module.removal(record.wanted, self.files)
        removal = {edit.path: edit for edit in ours.edits}
        edits, notes = [], []
        for entry in reversed(record.entries):
            before, after = now[entry.path], entry.original
            if entry.path in changed:
                after, note = _without_ours(entry.path, before, removal)
                notes.append(note)
            elif changed and entry.path not in removal:
                continue  # what others changed elsewhere still needs it
            if before != after:
                edits.append(FileEdit(path=entry.path, before=before, after=after))
        restart = record.restart or ours.restart
        return Change(
            engine=record.wanted.engine, edits=tuple(edits), restart=restart, notes=tuple(notes)
        )

    def _check_unchanged(self, edit: FileEdit) -> None:
        if self.files.read(edit.path) != edit.before:
            raise EngineError(
                f"{edit.path} was changed by someone else just now; nothing is done",
                hint="run the command again",
            )

    def _check_shared(self, own: str, change: Change) -> None:
        """Refuse a file that was already changed on behalf of another engine."""
        mine = {os.path.realpath(self.files.at(edit.path)): edit.path for edit in change.edits}
        for path, page in self.journal.pages().items():
            if path == own:
                continue
            for record in filter(None, (page.done, page.pending)):
                for entry in record.entries:
                    shared = mine.get(os.path.realpath(self.files.at(entry.path)))
                    if shared is not None:
                        whose = f"{record.wanted.engine} ({record.wanted.config})"
                        raise EngineError(
                            f"{shared} was changed for {whose} already: two engines share it",
                            hint="undo that first, or give each engine its own file",
                        )


class _Locked:
    """The journal's lock, with what goes wrong in our own words."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def __enter__(self) -> None:
        try:
            self._lock = self._journal.lock()
            self._lock.__enter__()
        except OSError as error:
            refused = writing.refused(error, self._journal.folder)
            refused.hint = "run it as root, or name another folder with --state-dir"
            raise refused from error
        except UnsafePathError as error:
            raise EngineError(error.message, hint=error.hint) from error

    def __exit__(self, *_: object) -> None:
        self._lock.__exit__(None, None, None)


def _outcome(change: Change, notes: tuple[str, ...]) -> Outcome:
    return Outcome(edits=change.edits, restart=change.restart, notes=(*notes, *change.notes))


def _without_ours(
    path: str, before: bytes | None, removal: Mapping[str, FileEdit]
) -> tuple[bytes | None, str]:
    """Return a file that others changed less our part, and what to say of it."""
    if before is None:
        return None, f"{path} was removed by someone else: it is left so"
    if path not in removal:
        return before, f"{path} was changed by others and holds nothing of ours: it is left alone"
    return removal[path].after, f"{path} was changed by others: only our part is taken out"


def _merged(old: Record | None, made: Record, removal: Mapping[str, FileEdit]) -> Record | None:
    """Return what undo goes back to after another change."""
    entries = {entry.path: entry for entry in (old.entries if old else ())}
    for entry in made.entries:
        first = entries.get(entry.path)
        if first is None:
            entries[entry.path] = entry
        elif first.ours == entry.original:
            folders = first.folders or entry.folders
            entries[entry.path] = replace(first, ours=entry.ours, folders=folders)
        else:
            # Others changed it since: what they want is their file without our part.
            less = removal.get(entry.path)
            original = less.after if less else entry.original
            entries[entry.path] = replace(entry, original=original)
    kept = tuple(entry for entry in entries.values() if entry.original != entry.ours)
    restart = made.restart or (old is not None and old.restart)
    return replace(made, entries=kept, restart=restart, told=False) if kept else None
