# SPDX-License-Identifier: Apache-2.0
"""Carries out `nvct doctor --fix` completely or not at all, and takes the last one back.

Order: lock; take back what a killed run left; for each step: look at its paths, write the journal,
change the paths. A failure takes back all steps. A kill at any point leaves each path in its
former or its new state, and a journal from which the next --fix or --undo takes the changes back.
What others changed since is left as it is.
"""

from __future__ import annotations

import os
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from nvct.doctor.mending import mend_journal
from nvct.doctor.mending.mend_journal import Entry, Page, Record
from nvct.doctor.mending.path_state import ABSENT, identity, put, state_of
from nvct.engine import writing
from nvct.engine.journal import Journal
from nvct.errors import EngineError, HostError, NvctError
from nvct.host import procfs
from nvct.kernel.calls import KERNEL
from nvct.mig import holders

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from nvct.doctor.mending.path_state import PathState
    from nvct.host.roots import Roots
    from nvct.linux.kernel import Kernel

    Say = Callable[[str], None]

CHANGED = "somebody else changed it since"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of --fix.

    Attributes:
        name: for messages.
        plan: returns the state that each path is to get.
    """

    name: str
    plan: Callable[[], Mapping[str, PathState]]


class Transaction:
    """The changes of --fix on one host.

    Args:
        folder: of the journal.
        roots: of the host.
        say: prints a sentence.
        kernel: makes the system calls.
    """

    def __init__(self, folder: str, roots: Roots, say: Say, kernel: Kernel = KERNEL) -> None:
        self.folder = folder
        self.roots = roots
        self.say = say
        self.kernel = kernel

    def settle(self) -> None:
        """Take back what a killed run left; without such a run, write nothing.

        Contract: it comes before the checks, because they would not find what is taken back.

        Raises:
            NvctError: the journal cannot be used.
        """
        if mend_journal.load(self.folder).pending is None:
            return
        with self._locked():
            page = mend_journal.load(self.folder)
            left = self._take_back_pending(page)
            record = page.pending and self._rest(page.pending, left)
            self._save(Page(done=page.done, pending=record))

    def carry_out(self, steps: Sequence[Step]) -> bool:
        """Carry out all steps; return False if one failed, and all were taken back.

        Raises:
            NvctError: the journal cannot be used.
        """
        with self._locked():
            page = mend_journal.load(self.folder)
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
            self._save(Page(done=self._record(entries) if entries else done))
            return True

    def undo(self, *, dry_run: bool = False) -> bool:
        """Take back the last --fix; return whether all of it is taken back.

        Args:
            dry_run: only print what would be done.

        Raises:
            NvctError: the journal cannot be used.
        """
        with self._locked():
            page = mend_journal.load(self.folder)
            record = page.pending or page.done
            if record is None:
                self.say(f"nothing to take back: {self.folder} has no record of a --fix")
                return True
            if dry_run:
                return not self._take_back(record, dry_run=True)
            done = page.done if page.pending else None
            self._save(Page(done=done, pending=record))  # if killed, the next run goes on
            left = self._take_back(record)
            self._save(Page(done=done, pending=self._rest(record, left)))
            return not left

    # Steps.

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock of the journal's folder, which is made.

        Raises:
            HostError: the folder cannot be made or locked.
        """
        with ExitStack() as stack:
            try:
                stack.enter_context(Journal(self.folder, self.kernel).lock())
            except OSError as error:
                raise HostError(
                    f"{self.folder} cannot be used: {error.strerror}",
                    hint="run it as root, or name another folder with --state-dir",
                ) from error
            yield

    def _carry_out(self, step: Step, done: Record | None, entries: list[Entry]) -> None:
        """Carry out a step, and add its paths to `entries`."""
        self.say(f"running: {step.name}")
        first = len(entries)
        for path, after in step.plan().items():
            before = state_of(path)
            if before != after:
                folders = tuple(writing.missing_folders(path)) if after != ABSENT else ()
                entries.append(Entry(path=path, before=before, after=after, folders=folders))
        if first == len(entries):
            return
        self._save(Page(done=done, pending=self._record(entries)))
        for index, entry in enumerate(entries[first:], first):
            self._write(entry)
            entries[index] = replace(entry, identity=identity(entry.path))
        self._save(Page(done=done, pending=self._record(entries)))

    def _write(self, entry: Entry) -> None:
        """Change one path.

        Raises:
            HostError: it cannot be changed, or somebody else changed it just now.
        """
        if state_of(entry.path) != entry.before:
            raise HostError(f"{entry.path} was changed by somebody else just now")
        try:
            writing.make_folders(entry.folders, self.kernel)
            put(entry.path, entry.after, self.kernel)
        except EngineError as error:  # its hint is about engines' files
            raise HostError(error.message) from error
        except OSError as error:
            raise HostError(f"{entry.path} cannot be written: {error.strerror}") from error

    def _undo_failed(
        self, step: Step, done: Record | None, entries: list[Entry], error: BaseException
    ) -> None:
        """Take everything back after a failure, and say so."""
        text = "it was interrupted"
        if isinstance(error, NvctError):
            text = f"{error.message}; {error.hint}" if error.hint else error.message
        self.say(f"{step.name} failed: {text}")
        self.say("what this --fix changed is taken back" if entries else "nothing was changed")
        record = self._record(entries)
        left = self._take_back(record)
        self._save(Page(done=done, pending=self._rest(record, left)))

    def _take_back_pending(self, page: Page) -> list[Entry]:
        if page.pending is None:
            return []
        self.say("an earlier run was not finished: what it changed is taken back first")
        return self._take_back(page.pending)

    def _take_back(self, record: Record, *, dry_run: bool = False) -> list[Entry]:
        """Put back what was there before; return the entries for which that may work later."""
        left = []
        for entry in reversed(record.entries):
            current = state_of(entry.path)
            if current != entry.before:
                why = self._why_left(entry, current, record)
                if not why and not dry_run:
                    try:
                        put(entry.path, entry.before, self.kernel)
                    except OSError as error:
                        why = error.strerror or str(error)
                verb = "removed" if entry.before == ABSENT else "restored"
                would = "would be " if dry_run else ""
                self.say(f"  {entry.path}: {f'left as it is: {why}' if why else would + verb}")
                if why and why != CHANGED:
                    left.append(entry)
                    continue
            if not dry_run:
                writing.remove_folders(entry.folders, self.kernel)
        return left[::-1]

    def _why_left(self, entry: Entry, current: PathState, record: Record) -> str:
        """Return why a path cannot be put back now; "" if it can."""
        if current != entry.after:
            return CHANGED
        if current != ABSENT and not current.is_file:
            is_own = not entry.identity or entry.identity == identity(entry.path)
            if record.boot != self._boot() or not is_own:
                return CHANGED  # /dev is empty at each boot
        if current.is_node and current.rdev != entry.before.rdev:
            number = os.major(current.rdev), os.minor(current.rdev)
            using = holders.holders_of(self.roots, number, entry.path)
            if using:
                return str(using[0])
        return ""

    # Values.

    def _record(self, entries: Sequence[Entry]) -> Record:
        return Record(boot=self._boot(), entries=tuple(entries))

    @staticmethod
    def _rest(record: Record, left: Sequence[Entry]) -> Record | None:
        """Return what is still to be taken back; None if nothing is."""
        return replace(record, entries=tuple(left)) if left else None

    def _boot(self) -> str:
        return procfs.read_text(f"{self.roots.proc}/sys/kernel/random/boot_id") or ""

    def _save(self, page: Page) -> None:
        mend_journal.save(self.folder, page, self.kernel)
