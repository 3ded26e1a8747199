# SPDX-License-Identifier: Apache-2.0
r"""Messages of the kernel: /dev/kmsg, where the driver writes its XIDs.

Source: Documentation/ABI/testing/dev-kmsg of Linux 6.12. A read returns one record::

    6,339,5140900,-;NVRM: Xid (PCI:0000:18:00): 79, pid=1234, GPU has fallen off the bus.
     SUBSYSTEM=pci
     DEVICE=+pci:0000:18:00.0

Bytes outside of printable ASCII, and the backslash, are written as \xNN.
"""

from __future__ import annotations

import errno
import os
import re
from dataclasses import dataclass

FILE = "/dev/kmsg"
RECORD_LIMIT = 8192  # Longer than any record; the kernel refuses a shorter read
_RECORD = re.compile(rb"(\d+),(\d+),(\d+),[^;]*;([^\n]*)")
_ESCAPED = re.compile(rb"\\x([0-9a-f]{2})")


@dataclass(frozen=True, slots=True)
class Message:
    """A message of the kernel, or of a program that writes to /dev/kmsg."""

    level: int  # 0 (emergency) to 7 (debug), syslog(2)
    facility: int  # 0 for the kernel's own messages; programs cannot use 0
    sequence: int  # each record has the next number; a gap means that records were overwritten
    time_us: int  # of CLOCK_MONOTONIC, approximately
    text: str


def parse(record: bytes) -> Message:
    """Return the message of a record; ValueError if it is not one."""
    match = _RECORD.match(record)
    if not match:
        raise ValueError(f"not a record of {FILE}: {record[:80]!r}")
    priority, sequence, time_us = (int(field) for field in match.groups()[:3])
    text = _ESCAPED.sub(lambda escape: bytes.fromhex(escape[1].decode()), match[4])
    return Message(priority & 7, priority >> 3, sequence, time_us, text.decode("utf-8", "replace"))


class Kmsg:
    """A reader of /dev/kmsg. Its descriptor is readable while there are messages.

    With `past`, it starts with the messages that the kernel still has.
    """

    __slots__ = ("_fd",)

    def __init__(self, path: str = FILE, *, past: bool = False) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        if not past:
            os.lseek(self._fd, 0, os.SEEK_END)

    def fileno(self) -> int:
        """Return the descriptor, for poll and asyncio."""
        return self._fd

    def read(self) -> list[Message]:
        """Return the messages that have come since the last call; does not wait."""
        messages: list[Message] = []
        while True:
            try:
                record = os.read(self._fd, RECORD_LIMIT)
            except BlockingIOError:
                return messages
            except OSError as error:
                if error.errno != errno.EPIPE:  # records were overwritten; the next one is there
                    raise
                continue
            if not record:  # a pipe whose writer has ended
                return messages
            messages.append(parse(record))

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def __enter__(self) -> Kmsg:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
