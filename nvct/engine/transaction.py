# SPDX-License-Identifier: Apache-2.0
"""Changes an engine's files completely or not at all, and undoes changes.

Order: lock; revert the change of a killed run; read and plan; let the engine check the new files;
write the journal; write the files; reload and probe the engine; write the journal. A failure after
the first write of the journal restores the former bytes. Contract: nothing else writes an engine's
files. A kill at any point leaves complete files, each in its former or its planned state, and a
journal from which the next run reverts the change.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from nvct.engine import undo as undoing
from nvct.engine import writing
from nvct.engine.journal import (
    DamagedJournalError,
    Entry,
    Journal,
    NewerJournalError,
    Page,
    Record,
)
from nvct.engine.model import Change, EditedFiles, EngineOptions, FileEdit, Files
from nvct.engine.modules import Module
from nvct.engine.path_changes import PathChanges
from nvct.errors import EngineConfigError, EngineError, NvctError


class Control(Protocol):
    """Checks and reloads one engine."""

    def check(self, edits: Sequence[FileEdit]) -> Sequence[str]:
        """Let the engine check files that are not in place yet; raise EngineError."""

    def activate(self, *, restart: bool, restored: bool = False) -> Sequence[str]:
        """Reload and probe a running engine, whose former files may be `restored`. EngineError."""


class Transaction:
    """Changes of one engine's files; without a control there is neither check nor reload."""

    def __init__(
        self, module: Module, files: Files, journal: Journal, control: Control | None = None
    ) -> None:
        self.module = module
        self.files = files
        self.journal = journal
        self.control = control
        self.paths = PathChanges(journal, files, follow=True)

    def configure(self, options: EngineOptions, change: Change | None = None) -> Change:
        """Write the options into the engine's files, or make `change` if it is given.

        After an error, nothing is changed. Raises DocumentError if a file or the journal is
        malformed; EngineError if the engine refuses the files or is not healthy with them, a file
        cannot be written, or another program changed one; HostError if another process has the
        lock.
        """
        with self.paths.locked():
            path, page, settled = self._settled(options, aside=True)
            notes = settled.notes
            change = change or self.module.plan(options, self.files)
            if change.edits:
                self._check_shared(path, change)
                state = self.module.state(options, self.files)
                record_options = undoing.options_to_undo(options, state, page.done)
                pending = self._record(record_options, change)
                done = undoing.merged(page.done, pending, self.module)
                notes += self._commit(path, page.done, pending, done, change)
            return _outcome(change, notes)

    def undo(self, options: EngineOptions, *, aside: bool = False) -> Change:
        """Restore the former bytes of the files; in a file that others changed, only our keys.

        If `aside`, a damaged journal is set aside. Raises as `configure`.
        """
        with self.paths.locked():
            path, page, settled = self._settled(options, aside=aside)
            notes = settled.notes
            if page.done is None:
                nothing = () if settled.edits else (f"nothing to undo for {options.engine}",)
                return replace(settled, notes=(*notes, *nothing))
            change = self._without(page.done, self.files)
            if change.edits:
                pending = self._record(page.done.options, change)
                refused = self._refused(page.done, change)
                notes += refused
                notes += self._commit(
                    path, page.done, pending, None, change, use_engine=not refused
                )
            else:
                self.paths.save(path, Page())
            for entry in page.done.entries:
                self.paths.remove_folders(entry)
            return _outcome(change, notes)

    def remove(self, options: EngineOptions) -> Change:
        """Remove every runtime whose program is NVIDIA's; a damaged journal is set aside."""
        with self.paths.locked():
            path, page, settled = self._settled(options, aside=True)
            notes = settled.notes
            change = undoing.without_nvidia(options, self.module, self.files)
            if change.edits:
                notes += self._commit(path, page.done, self._record(options, change), None, change)
            return _outcome(change, notes)

    # Steps.

    def _settled(self, options: EngineOptions, *, aside: bool = False) -> tuple[str, Page, Change]:
        """Revert an interrupted change; return path and page of the journal, and what was changed.

        If `aside`, a damaged page is set aside, and an empty one is returned.
        """
        path = self.journal.path(options.engine, options.config)
        nothing = Change()
        try:
            page = self.journal.load(path)
        except DamagedJournalError as error:
            if not aside or isinstance(error, NewerJournalError):
                raise
            return path, Page(), replace(nothing, notes=(self._set_aside(path, error),))
        if page.pending is None:
            return path, page, nothing
        note = f"an earlier change of {options.engine} was interrupted: it is reverted"
        change = self._take_back(path, page.pending, page.done)
        return path, Page(done=page.done), _outcome(change, (note,))

    def _set_aside(self, path: str, error: DamagedJournalError) -> str:
        try:
            new_path = self.journal.set_aside(path)
        except OSError as failed:
            raise writing.refused(failed, path) from failed
        return f"{error.message}: set aside as {new_path}; undo cannot revert earlier changes"

    def _refused(self, record: Record, change: Change) -> tuple[str, ...]:
        """Check restored files; EngineError if the engine refuses only them, not the originals."""
        if self.control is None:
            return ()
        try:
            self.control.check(change.edits)
        except EngineError as error:
            original_edits = tuple(
                FileEdit(path=entry.path, before=current, after=entry.before.content)
                for entry in reversed(record.entries)
                if (current := self.files.read(entry.path)) != entry.before.content
            )
            if original_edits != change.edits:
                try:
                    self.control.check(original_edits)
                except EngineError:
                    pass
                else:
                    raise
            engine = record.options.engine
            note = f"{engine} refuses its files from before nvct, too, so it is not reloaded"
            return (f"{error.message}; {note}",)
        return ()

    def _commit(
        self,
        path: str,
        old: Record | None,
        pending: Record,
        done: Record | None,
        change: Change,
        *,
        use_engine: bool = True,
    ) -> tuple[str, ...]:
        """Make a change; after a failure, revert it.

        Unless `use_engine`, the engine neither checks the files nor is reloaded.
        """
        control = self.control if use_engine else None
        notes = tuple(control.check(change.edits)) if control else ()
        self.paths.save(path, Page(done=old, pending=pending))
        try:
            for entry in pending.entries:
                self.paths.write(entry)
            if control:
                pending = replace(pending, reloaded=True)
                self.paths.save(path, Page(done=old, pending=pending))
                notes += tuple(control.activate(restart=change.restart))
            self.paths.save(path, Page(done=done))
        except BaseException as error:
            self._revert(path, pending, old, error)
            if isinstance(error, EngineError) and not error.hint:
                error.hint = "the former files are back in place"
            raise
        return notes

    def _revert(
        self, path: str, pending: Record, old: Record | None, error: BaseException
    ) -> None:
        """Revert a change after a failure; raise EngineError only if that fails, too."""
        try:
            self._take_back(path, pending, old)
        except (NvctError, OSError) as second:
            first = error.message if isinstance(error, NvctError) else str(error)
            raise EngineError(
                f"{first}; and the change could not be reverted: {second}",
                hint=f"the former files are in {path}",
            ) from error

    def _take_back(self, path: str, pending: Record, done: Record | None) -> Change:
        """Revert a pending change, and reload the engine; return the edits.

        A file that is as we wrote it gets its former bytes; in one that others changed since, only
        our keys get their former values. Raises NvctError if a file cannot be parsed or written;
        then the journal keeps the pending record.
        """
        restored = self._restored_bytes(pending)
        change = Change()
        if len(restored) < len(pending.entries):
            files = EditedFiles(self.files, restored.values())
            change = self._without(pending, files)
        keys = {entry.path: entry for entry in self._record(pending.options, change).entries}
        former = {entry.path: entry for entry in reversed(pending.entries)}
        for name in dict.fromkeys((*(keys.keys() - former.keys()), *former)):
            if name in restored:
                self.paths.put_back(former[name])
            if name in keys:
                self.paths.write(keys[name])
            if name in former:
                self.paths.remove_folders(former[name])
        notes = change.notes
        if pending.reloaded and self.control:
            try:
                notes += tuple(self.control.activate(restart=pending.restart, restored=True))
            except EngineError as error:
                notes += (f"with the former files, too: {error.message}",)
        self.paths.save(path, Page(done=done))
        edits = {edit.path: edit for edit in (*restored.values(), *change.edits)}
        made = tuple(edit for edit in edits.values() if edit.before != edit.after)
        return replace(change, edits=made, notes=notes)

    def _without(self, record: Record, files: Files) -> Change:
        """Return the edits that undo a record, key by key. Raises EngineConfigError."""
        try:
            return undoing.by_journal(record, self.module, files)
        except EngineConfigError as error:
            engine = record.options.engine
            again = "correct it by hand, and run the command again"
            error.hint = f"{again}; until then {engine} keeps what nvct changed"
            raise

    def _restored_bytes(self, pending: Record) -> dict[str, FileEdit]:
        """Return, by path, the edits that restore files that nobody else has changed since."""
        states = ((entry, self.paths.state_of(entry)) for entry in reversed(pending.entries))
        return {
            entry.path: FileEdit(
                path=entry.path, before=current.content, after=entry.before.content
            )
            for entry, current in states
            if current.is_like(entry.after) or current.is_like(entry.before)
        }

    # Values.

    def _record(self, options: EngineOptions, change: Change) -> Record:
        entries = []
        created: set[str] = set()
        for edit in change.edits:
            file = writing.new_file(self.files.at(edit.path))
            before, after = file.with_content(edit.before), file.with_content(edit.after)
            folders = self.paths.missing_folders(edit.path, after)
            new_folders = tuple(folder for folder in folders if folder not in created)
            created.update(folders)
            entries.append(Entry(path=edit.path, before=before, after=after, folders=new_folders))
        return Record(options=options, entries=tuple(entries), restart=change.restart)

    def _check_shared(self, own_page: str, change: Change) -> None:
        """Refuse a file that was already changed on behalf of another engine."""
        changed = {os.path.realpath(self.files.at(edit.path)): edit.path for edit in change.edits}
        for path in self.journal.paths():
            if path == own_page:
                continue
            try:
                page = self.journal.load(path)
            except DamagedJournalError:
                continue  # another engine's page: the next command for that engine reports it
            for record in filter(None, (page.done, page.pending)):
                for entry in record.entries:
                    shared = changed.get(os.path.realpath(self.files.at(entry.path)))
                    if shared is not None:
                        whose = f"{record.options.engine} ({record.options.config})"
                        raise EngineError(
                            f"{shared} was changed for {whose} already: two engines share it",
                            hint="undo that first, or give each engine its own file",
                        )


def _outcome(change: Change, notes: tuple[str, ...]) -> Change:
    return replace(change, notes=(*notes, *change.notes))
