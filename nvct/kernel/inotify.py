# SPDX-License-Identifier: Apache-2.0
"""Changes of folders: inotify(7)."""

from __future__ import annotations

import os
from dataclasses import dataclass

from nvct.kernel.library import c_string, call, ffi, lib

CREATE: int = lib.IN_CREATE
DELETE: int = lib.IN_DELETE
DELETE_SELF: int = lib.IN_DELETE_SELF
MOVED_TO: int = lib.IN_MOVED_TO
OVERFLOW: int = lib.IN_Q_OVERFLOW
"""In an event of no watch: events were lost, so the reader must look at the folders."""
BUFFER = 1 << 16


@dataclass(frozen=True, slots=True)
class Event:
    """A change."""

    watch: int  # what `Inotify.add` returned, -1 for OVERFLOW
    mask: int  # one of the constants, possibly with others of inotify(7), such as IN_ISDIR
    name: str  # of the file inside the folder, "" for the folder itself


class Inotify:
    """A queue of events. Its descriptor is readable while there are any.

    A user may have too many queues (fs.inotify.max_user_instances).
    """

    __slots__ = ("_fd",)

    def __init__(self) -> None:
        self._fd = call(lib.inotify_init1, lib.IN_CLOEXEC | lib.IN_NONBLOCK)

    def fileno(self) -> int:
        """Return the descriptor, for poll and asyncio."""
        return self._fd

    def add(self, folder: str, mask: int) -> int:
        """Watch a folder for the changes in the mask; return the number of the watch."""
        flags = mask | lib.IN_ONLYDIR
        return call(lib.inotify_add_watch, self._fd, c_string(folder), flags, path=folder)

    def remove(self, watch: int) -> None:
        """End a watch; one of a folder that was removed has ended."""
        call(lib.inotify_rm_watch, self._fd, watch)

    def read(self) -> list[Event]:
        """Return the events in the queue, [] if there are none; does not wait."""
        try:
            data = ffi.from_buffer(os.read(self._fd, BUFFER))
        except BlockingIOError:
            return []
        events, offset = [], 0
        while offset < len(data):
            event = ffi.cast("struct inotify_event *", data + offset)
            name = os.fsdecode(ffi.string(event.name, event.len)) if event.len else ""
            events.append(Event(event.wd, event.mask, name))
            offset += ffi.sizeof("struct inotify_event") + event.len
        return events

    def close(self) -> None:
        """End all watches."""
        os.close(self._fd)

    def __enter__(self) -> Inotify:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
