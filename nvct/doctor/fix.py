# SPDX-License-Identifier: Apache-2.0
"""Makes changes of paths completely or not at all, and undoes them.

`nvct doctor --fix` and `nvct migrate apply` make such changes; --undo undoes the last --fix, `nvct
migrate back` every apply.

Order: lock; undo what a killed run left; for each step: look at its paths, write the journal,
change the paths. A failure undoes all steps. A kill at any point leaves each path in its former or
its new state, and a journal from which the next --fix or --undo undoes the changes. Paths that
another program changed since then are left as they are.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from nvct.engine.journal import Entry, Journal, Page, Record
from nvct.engine.model import Files
from nvct.engine.path_changes import PathChanges
from nvct.engine.writing import ABSENT, PathState, identity, state_of
from nvct.errors import HostError, NvctError
from nvct.host import procfs
from nvct.host.roots import Roots
from nvct.linux import files
from nvct.linux.folders import missing_folders
from nvct.linux.kernel import KERNEL, Kernel
from nvct.mig import holders

Say = Callable[[str], None]
NAME = "doctor.journal"
ALONE_S = 600.0  # Limit for the lock: a command that restarts engines can hold it for minutes
CHANGED = "another program changed it since"
Rest = Callable[[Entry, PathState], PathState | None]
"""Returns the state at undo of a path that another program changed; None leaves it as it is."""
Needed = Callable[[Entry], str]  # Returns why a path must stay for now, "" if it need not
Tell = Callable[[Sequence[str]], None]
"""Gets the paths that changed. After a kill, the next run calls it again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of --fix or apply."""

    name: str
    plan: Callable[[], Mapping[str, PathState]]


class Transaction:
    """The changes of one command on a host; `accumulates` if undo undoes all its runs."""

    def __init__(
        self,
        folder: str,
        roots: Roots,
        say: Say,
        kernel: Kernel = KERNEL,
        *,
        name: str = NAME,
        accumulates: bool = False,
        rest: Rest = lambda *_: None,
        needed: Needed = lambda _: "",
        tell: Tell = lambda _: None,
    ) -> None:
        self.page_path = f"{folder}/{name}"
        self.roots = roots
        self.say = say
        self.accumulates = accumulates
        self.rest = rest
        self.needed = needed
        self.tell = tell
        self.journal = Journal(folder, kernel, damage_hint="move it away: nothing can be undone")
        self.paths = PathChanges(
            self.journal,
            Files(),
            follow=False,
            refused=lambda error, path: HostError(f"{path} cannot be written: {error.strerror}"),
        )

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold a lock around all transactions of a command; HostError if another holds it."""
        with self.paths.locked():
            pass  # creates the folder, or checks that it is ours alone
        lock = f"{os.path.splitext(self.page_path)[0]}.lock"
        with files.Lock(lock, ALONE_S):
            yield

    def settle(self) -> None:
        """Undo what a killed run left; without such a run, write nothing.

        Contract: call it before the checks, because they cannot find faults that it brings back.
        """
        if self._page().pending is None:
            return
        with self.paths.locked():
            page = self._page()
            left = self._take_back_pending(page)
            if page.pending:
                self._finish(page.pending, page.done, left)

    def carry_out(self, steps: Sequence[Step]) -> bool:
        """Carry out all steps; return False if one failed and all were undone."""
        with self.paths.locked():
            page = self._page()
            entries = self._take_back_pending(page)
            done = page.done
            for step in steps:
                try:
                    self._carry_out(step, done, entries)
                except BaseException as error:
                    self._undo_failed(step, done, entries, error)
                    if isinstance(error, NvctError):
                        return False
                    raise
            self.tell([entry.path for entry in entries])
            if done and self.accumulates:
                entries = _merged(done.entries, entries)
            self._save(Page(done=self._record(entries) if entries else done))
            return True

    def undo(self, *, dry_run: bool = False) -> bool:
        """Undo the last --fix, or all runs; report whether nothing is left to undo."""
        with self.paths.locked():
            page = self._page()
            if page.pending and page.done and self.accumulates and not dry_run:
                left = self._take_back_pending(page)
                page = Page(done=self._record(_merged(page.done.entries, left)))
            record = page.pending or page.done
            if record is None:
                folder = self.journal.folder
                self.say(f"nothing to undo: {folder} has no record of a --fix")
                return True
            if dry_run:
                return not self._take_back(record, dry_run=True)
            done = page.done if page.pending else None
            self._save(Page(done=done, pending=record))  # after a kill, the next run goes on
            left = self._take_back(record)
            self._finish(record, done, left)
            return not left

    # Steps.

    def _carry_out(self, step: Step, done: Record | None, entries: list[Entry]) -> None:
        self.say(f"running: {step.name}")
        first = len(entries)
        for path, after in step.plan().items():
            before = state_of(path)
            if before != after:
                folders = tuple(self.paths.missing_folders(path, after))
                entries.append(Entry(path=path, before=before, after=after, folders=folders))
        if first == len(entries):
            return
        self._save(Page(done=done, pending=self._record(entries)))
        for index, entry in enumerate(entries[first:], first):
            self.paths.write(entry)
            entries[index] = replace(entry, identity=identity(entry.path))
        self._save(Page(done=done, pending=self._record(entries)))

    def _undo_failed(
        self, step: Step, done: Record | None, entries: list[Entry], error: BaseException
    ) -> None:
        text = "it was interrupted"
        if isinstance(error, NvctError):
            text = f"{error.message}; {error.hint}" if error.hint else error.message
        self.say(f"{step.name} failed: {text}")
        self.say("undoing the changes of this run" if entries else "nothing was changed")
        record = self._record(entries)
        self._finish(record, done, self._take_back(record))

    def _finish(self, record: Record, done: Record | None, left: Sequence[Entry]) -> None:
        """Save the journal after an undo, with the entries that could not be undone yet."""
        self.tell([entry.path for entry in record.entries])
        self._save(Page(done=done, pending=replace(record, entries=tuple(left)) if left else None))

    def _take_back_pending(self, page: Page) -> list[Entry]:
        if page.pending is None:
            return []
        self.say("an earlier run was cut short: undoing its changes first")
        return self._take_back(page.pending)

    def _take_back(self, record: Record, *, dry_run: bool = False) -> list[Entry]:
        """Restore the former states; return the entries for which that may work later."""
        left = []
        for entry in reversed(record.entries):
            current = self.paths.state_of(entry)
            if not current.is_like(entry.after) and (rest := self.rest(entry, current)):
                entry = replace(entry, before=rest, after=current)
            if current != entry.before:
                why = self._why_left(entry, current, record)
                if not why and not dry_run:
                    try:
                        self._make_folders(entry)
                        self.paths.put_back(entry)
                    except HostError as error:
                        why = error.message.removeprefix(f"{entry.path} cannot be written: ")
                verb = "removed" if entry.before == ABSENT else "restored"
                would = "would be " if dry_run else ""
                self.say(f"  {entry.path}: {f'left as it is: {why}' if why else would + verb}")
                if why and why != CHANGED:
                    left.append(entry)
                    continue
            if not dry_run:
                self.paths.remove_folders(entry)
        return left[::-1]

    def _make_folders(self, entry: Entry) -> None:
        """Make missing folders of a path, such as those in /run after a boot."""
        if entry.before != ABSENT:
            self.paths.make_folders(missing_folders(entry.path))

    def _why_left(self, entry: Entry, current: PathState, record: Record) -> str:
        """Return why a path cannot be restored now; "" if it can."""
        if not current.is_like(entry.after):
            return CHANGED
        if current != ABSENT and not current.is_file:
            is_own = not entry.identity or entry.identity == identity(entry.path)
            is_lasting = not entry.path.startswith(f"{self.roots.dev}/")  # dev is new at each boot
            if not is_own or not (is_lasting or record.boot == self._boot()):
                return CHANGED
        if current.is_node and current.rdev != entry.before.rdev:
            number = os.major(current.rdev), os.minor(current.rdev)
            using = holders.holders_of(self.roots, number, entry.path)
            if using:
                return str(using[0])
        return self.needed(entry)

    # Values.

    def _record(self, entries: Sequence[Entry]) -> Record:
        return Record(boot=self._boot(), entries=tuple(entries))

    def _boot(self) -> str:
        return procfs.read_text(f"{self.roots.proc}/sys/kernel/random/boot_id") or ""

    def _page(self) -> Page:
        return self.journal.load(self.page_path)

    def _save(self, page: Page) -> None:
        self.paths.save(self.page_path, page)


def _merged(old: Sequence[Entry], new: Sequence[Entry]) -> list[Entry]:
    """Return entries that undo old and new changes, but not those of other programs in between."""
    entries = {entry.path: entry for entry in old}
    for entry in new:
        first = entries.get(entry.path)
        if first and first.after.is_like(entry.before):
            folders = first.folders or entry.folders
            entry = replace(entry, before=first.before, folders=folders)
        entries[entry.path] = entry
    return list(entries.values())
