# SPDX-License-Identifier: Apache-2.0
"""Waits for changes of folders by inotify(7), without looking at them many times a second."""

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
"""Until the next look if no change is reported: a replaced folder or a lock is not reported."""

Identity: TypeAlias = tuple[int, int, int] | None


def identity(path: str) -> Identity:
    """Return a value that changes when a file is written or replaced; None if it is missing."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_ctime_ns


class FolderWatch:
    """Reports files that appear or disappear in some folders. A context, for one asyncio task."""

    def __init__(self) -> None:
        self._inotify: Inotify | None = None
        self._watches: dict[int, str] = {}
        self._changed = asyncio.Event()

    def __enter__(self) -> FolderWatch:
        """Start; if this user has no free inotify instance, no change is reported."""
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

        `folders`: the folders to watch from now on, for a missing one its parent; a call that adds
        one returns at once. `blind_s`: the limit instead of LOOK_S if one cannot be watched.
        """
        sees = [self._sees(folder) for folder in folders]
        if None in sees:
            return
        await until_set(self._changed, tick(LOOK_S) if all(sees) else blind_s)
        self._changed.clear()

    def _sees(self, folder: str) -> bool | None:
        """Return whether a folder or its parent is watched; None if the watch begins now."""
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
