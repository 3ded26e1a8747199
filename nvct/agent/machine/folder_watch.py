# SPDX-License-Identifier: Apache-2.0
"""Waits for changes of folders, by inotify(7), without looking at them many times a second."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from typing import TypeAlias

from nvct.agent.core.waiting import tick, until_set
from nvct.kernel import inotify
from nvct.kernel.inotify import Inotify

MASK = inotify.CREATE | inotify.DELETE | inotify.MOVED_TO | inotify.DELETE_SELF
LOOK_S = 1.0
"""Until the next look without a report of a change: a folder may be replaced, a lock taken."""

Identity: TypeAlias = tuple[int, int, int] | None


def identity(path: str) -> Identity:
    """Return what changes when a file is written, or another takes its path; None without one."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_ctime_ns


class FolderWatch:
    """Tells of files that appear or disappear in some folders. A context, for one asyncio task."""

    def __init__(self) -> None:
        self._inotify: Inotify | None = None
        self._watches: dict[int, str] = {}
        self._changed = asyncio.Event()

    def __enter__(self) -> FolderWatch:
        """Start; without a free inotify instance of this user, no change is reported."""
        try:
            self._inotify = Inotify()
        except OSError:
            return self
        asyncio.get_running_loop().add_reader(self._inotify.fileno(), self._read)
        return self

    def __exit__(self, *_: object) -> None:
        """End all watches."""
        if self._inotify is not None:
            asyncio.get_running_loop().remove_reader(self._inotify.fileno())
            self._inotify.close()
            self._inotify = None

    async def wait(self, folders: Iterable[str], blind_s: float) -> None:
        """Wait for a change since the last call, for LOOK_S at most.

        `folders`: to be watched from now on; a first call returns at once. The one above is
        watched where one is missing. `blind_s`: instead of LOOK_S if one of them cannot be
        watched.
        """
        sees = [self._sees(folder) for folder in folders]
        if None in sees:
            return
        await until_set(self._changed, tick(LOOK_S) if all(sees) else blind_s)
        self._changed.clear()

    def _sees(self, folder: str) -> bool | None:
        """Return whether a folder, or one that will contain it, is watched; None from now on."""
        watched = self._watches.values()
        for path in (folder, os.path.dirname(folder)):
            if path in watched:
                return True
            if self._add(path):
                return None
        return False

    def _add(self, folder: str) -> bool:
        if self._inotify is None:
            return False
        try:
            self._watches[self._inotify.add(folder, MASK)] = folder
        except OSError:
            return False
        return True

    def _read(self) -> None:
        events = self._inotify.read() if self._inotify is not None else []
        for event in events:
            if event.mask & inotify.DELETE_SELF:
                self._watches.pop(event.watch, None)
        self._changed.set()
