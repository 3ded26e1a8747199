# SPDX-License-Identifier: Apache-2.0
"""The steps that the transactions of an engine's files and of `nvct doctor --fix` share.

A path is that of a file, link or device node. Contract: a page of the journal is saved before its
first path is written. A path is written only if its state is still the entry's `before`, and put
back only if its state is still the entry's `after`. Changes by others stay.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from nvct.engine import writing
from nvct.engine.journal import Entry, Journal, Page
from nvct.engine.model import Files
from nvct.engine.writing import ABSENT, PathState, state_of
from nvct.errors import EngineError, HostError, UnsafePathError
from nvct.kernel.shared_folder import ABANDONED_S
from nvct.linux.folders import make_folders, missing_folders, remove_folders


class PathChanges:
    """Changes of paths, recorded in a journal; `follow` as in `writing.put`."""

    def __init__(
        self,
        journal: Journal,
        files: Files,
        *,
        follow: bool,
        refused: Callable[[OSError, str], HostError] = writing.refused,
    ) -> None:
        self.journal = journal
        self.kernel = journal.kernel
        self.files = files
        self.follow = follow
        self.refused = refused

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Create the journal's folder, and hold its lock; HostError if that fails."""
        with ExitStack() as stack:
            try:
                stack.enter_context(self.journal.lock())
            except OSError as error:
                refused = self.refused(error, self.journal.folder)
                refused.hint = "run it as root, or name another folder with --state-dir"
                raise refused from error
            except UnsafePathError as error:
                raise EngineError(error.message, hint=error.hint) from error
            writing.sweep_folder(self.journal.folder, {os.geteuid()}, self.kernel)
            yield

    def save(self, page_path: str, page: Page) -> None:
        """Write a page of the journal to the disk; a HostError leaves the old one."""
        try:
            self.journal.save(page_path, page)
        except OSError as error:
            raise self.refused(error, page_path) from error

    def state_of(self, entry: Entry) -> PathState:
        """Return the present state of an entry's path."""
        path = self.files.at(entry.path)
        return state_of(writing.target(path) if self.follow else path)

    def write(self, entry: Entry) -> None:
        """Write an entry's path; HostError if that fails, or others changed it just now."""
        if not self.state_of(entry).is_like(entry.before):
            raise _changed(entry)
        self._sweep(entry)
        self.make_folders(self._at(entry.folders))
        self._put(entry, entry.after)

    def put_back(self, entry: Entry) -> None:
        """Restore an entry's path to its state before; HostError as `write`."""
        self._sweep(entry)
        current = self.state_of(entry)
        if current.is_like(entry.after):
            self._put(entry, entry.before)
        elif not current.is_like(entry.before):
            raise _changed(entry)

    def missing_folders(self, entry_path: str, after: PathState) -> list[str]:
        """Return the folders to make for an entry's path, as entries name them."""
        if after == ABSENT:
            return []
        root = self.files.root.rstrip("/")
        return [path[len(root) :] for path in missing_folders(self.files.at(entry_path))]

    def make_folders(self, missing: Sequence[str]) -> None:
        """Make folders, the outermost first; HostError if that fails."""
        try:
            make_folders(missing, self.kernel)
        except OSError as error:
            raise self.refused(error, error.filename) from error

    def remove_folders(self, entry: Entry) -> None:
        """Remove the folders that were made for an entry and are empty now."""
        remove_folders(self._at(entry.folders), self.kernel)

    def _sweep(self, entry: Entry) -> None:
        """Remove temporary files that a killed run left beside a path."""
        path = self.files.at(entry.path)
        if self.follow:
            writing.sweep(path, self.kernel)
        else:
            folder = os.path.dirname(path)
            writing.sweep_folder(folder, {os.geteuid()}, self.kernel, age_s=ABANDONED_S)

    def _put(self, entry: Entry, state: PathState) -> None:
        path = self.files.at(entry.path)
        try:
            writing.put(path, state, self.kernel, follow=self.follow)
        except OSError as error:
            raise self.refused(error, path) from error

    def _at(self, paths: Sequence[str]) -> list[str]:
        return [self.files.at(path) for path in paths]


def _changed(entry: Entry) -> EngineError:
    return EngineError(
        f"{entry.path} was changed by another program just now; nothing was done",
        hint="run the command again",
    )
