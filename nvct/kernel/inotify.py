# SPDX-License-Identifier: Apache-2.0
"""Changes of folders: inotify(7)."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass

from nvct.linux.kernel import call

# linux/inotify.h
CREATE, DELETE, DELETE_SELF, MOVED_TO = 0x100, 0x200, 0x400, 0x80
CLOEXEC, NONBLOCK, ONLYDIR = 0o2000000, 0o4000, 0x1000000
EVENT = struct.Struct("iIII")  # the watch, the mask, a cookie, the size of the name after it
BUFFER = 1 << 16


@dataclass(frozen=True, slots=True)
class Event:
    """A change in a folder."""

    watch: int  # what `Inotify.add` returned; -1 if events were lost: any folder may have changed
    mask: int  # one of the constants, possibly with others of inotify(7), such as IN_ISDIR
    name: str  # of the file inside the folder, "" for the folder itself


class Inotify:
    """A queue of events. Its descriptor is readable while there are any.

    Raises OSError if the user has too many queues (fs.inotify.max_user_instances).
    """

    __slots__ = ("_fd",)

    def __init__(self) -> None:
        self._fd = call("inotify_init1", CLOEXEC | NONBLOCK)

    def fileno(self) -> int:
        """Return the descriptor, for poll and asyncio."""
        return self._fd

    def add(self, folder: str, mask: int) -> int:
        """Watch a folder for the changes in the mask; return the number of the watch."""
        return call("inotify_add_watch", self._fd, folder, mask | ONLYDIR, about=folder)

    def remove(self, watch: int) -> None:
        """End a watch; that of a removed folder has ended already."""
        call("inotify_rm_watch", self._fd, watch)

    def read(self) -> list[Event]:
        """Return the events in the queue, [] if there are none; does not wait."""
        try:
            data = os.read(self._fd, BUFFER)
        except BlockingIOError:
            return []
        events, offset = [], 0
        while offset < len(data):
            watch, mask, _, size = EVENT.unpack_from(data, offset)
            offset += EVENT.size + size
            name = data[offset - size : offset].partition(b"\0")[0]
            events.append(Event(watch, mask, os.fsdecode(name)))
        return events

    def close(self) -> None:
        """End all watches."""
        os.close(self._fd)

    def __enter__(self) -> Inotify:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
