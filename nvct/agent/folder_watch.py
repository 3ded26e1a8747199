# SPDX-License-Identifier: Apache-2.0
"""Waits for changes of folders, by inotify(7), without looking at them many times a second."""

from __future__ import annotations

import asyncio

from nvct.agent.waiting import until_set
from nvct.kernel import inotify
from nvct.kernel.inotify import Inotify

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from typing_extensions import Self

MASK = inotify.CREATE | inotify.DELETE | inotify.MOVED_TO | inotify.DELETE_SELF
LOOK_S = 1.0
"""Until the next look though no change was told: of a folder that was replaced, or of a lock."""


class FolderWatch:
    """Tells of files that appear or disappear in some folders. A context, for one asyncio task."""

    def __init__(self) -> None:
        """Watch nothing yet."""
        self._inotify: Inotify | None = None
        self._watches: dict[int, str] = {}
        self._changed = asyncio.Event()

    def __enter__(self) -> Self:
        """Start; without a free inotify instance of this user, nothing is told."""
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

        Args:
            folders: to be watched from now on; a first call returns at once.
            blind_s: instead of LOOK_S if one of them cannot be watched.
        """
        unwatched = set(folders) - set(self._watches.values())
        added = [folder for folder in unwatched if self._add(folder)]
        if added:
            return
        await until_set(self._changed, blind_s if unwatched else LOOK_S)
        self._changed.clear()

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
