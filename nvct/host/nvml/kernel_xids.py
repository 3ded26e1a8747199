# SPDX-License-Identifier: Apache-2.0
"""XID errors in the kernel's messages: the second source beside NVML's events.

NVML does not deliver every XID as an event (github.com/NVIDIA/DCGM/issues/235). The driver writes
each XID to the kernel's log::

    NVRM: Xid (PCI:0000:18:00): 79, pid=1234, GPU has fallen off the bus.
    NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, pid=7194, Contained: CE User Channel (0x9).

An error that both sources report counts once. Where /dev/kmsg cannot be read, as in a container
without privilege, NVML's events are the only source.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping
from typing import TypeAlias

from nvct.host.nvml.model import XidEvent
from nvct.kernel.kmsg import FILE, Kmsg, Message

Bus: TypeAlias = tuple[int, int, int]

KMSG_ENV = "NVCT_KMSG"  # a simulated node names its file in place of /dev/kmsg
XID = re.compile(
    r"NVRM: Xid \(PCI:([0-9a-f]+):([0-9a-f]{2}):([0-9a-f]{2})"
    r"(?: GPU-I:(\d{1,3}))?(?: GPU-CI:(\d{1,3}))?\): (\d{1,6}),",
    re.IGNORECASE | re.ASCII,
)
ADDRESS = re.compile(r"([0-9a-f]+):([0-9a-f]{2}):([0-9a-f]{2})\.[0-7]", re.IGNORECASE | re.ASCII)
WAIT_S = 1.5  # how long NVML can take to report the same error
SAME_S = 5.0  # two reports within this time are of one error, if each source has one of them
LIMIT = 1000  # reports that are kept; a GPU that fails reports the same XID many times


def bus_of(address: str) -> Bus | None:
    """Return domain, bus and device of a PCI address such as 00000000:18:00.0, else None."""
    match = ADDRESS.fullmatch(address)
    return (int(match[1], 16), int(match[2], 16), int(match[3], 16)) if match else None


def parse(text: str, uuids: Mapping[Bus, str]) -> XidEvent | None:
    """Return the XID error of a message; None if it has none, or its GPU is unknown."""
    match = XID.match(text)
    if match is None:
        return None
    uuid = uuids.get((int(match[1], 16), int(match[2], 16), int(match[3], 16)))
    if uuid is None:
        return None
    gi, ci = (-1 if number is None else int(number) for number in (match[4], match[5]))
    return XidEvent(uuid=uuid, xid=int(match[6]), gi=gi, ci=ci)


class KernelXids:
    """The XIDs in new messages of the kernel that NVML does not report.

    By default, the messages are read from /dev/kmsg, or from the file that KMSG_ENV names.
    """

    def __init__(
        self,
        open_messages: Callable[[], Kmsg] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.problem = ""  # why the messages cannot be read, "" if they can
        self._clock = clock
        self._messages: Kmsg | None = None
        self._from_nvml: list[tuple[float, XidEvent]] = []
        self._from_kernel: list[tuple[float, XidEvent]] = []
        self._reported: list[tuple[float, XidEvent]] = []
        try:
            self._messages = (
                open_messages() if open_messages else Kmsg(os.environ.get(KMSG_ENV) or FILE)
            )
        except OSError as error:
            self.problem = f"the kernel's messages cannot be read: {error.strerror}"

    def note_nvml(self, event: XidEvent) -> bool:
        """Note an event of NVML; return False if `take` has reported the same error already."""
        now = self._clock()
        if _take(self._reported, event, now):
            return False
        if not _take(self._from_kernel, event, now) and len(self._from_nvml) < LIMIT:
            self._from_nvml.append((now, event))
        return True

    def take(self, uuids: Mapping[Bus, str]) -> list[XidEvent]:
        """Return the XIDs that NVML did not report in time."""
        now = self._clock()
        for message in self._read():
            # Only the kernel can write messages of facility 0.
            event = parse(message.text, uuids) if message.facility == 0 else None
            # The clock of messages drifts from ours, so the time of reading is compared as well.
            at = message.time_us / 1e6
            if event is None or _take(self._from_nvml, event, at):
                continue
            if not _take(self._from_nvml, event, now):
                self._from_kernel.append((now, event))
        due = [entry for entry in self._from_kernel if now - entry[0] >= WAIT_S]
        self._from_kernel = [entry for entry in self._from_kernel if now - entry[0] < WAIT_S]
        self._reported = [*_recent(self._reported, now), *((now, event) for _, event in due)]
        self._from_nvml = _recent(self._from_nvml, now)
        return [event for _, event in due]

    def _read(self) -> list[Message]:
        if self._messages is None:
            return []
        try:
            return self._messages.read()
        except (OSError, ValueError) as error:
            self.problem = f"the kernel's messages cannot be read any more: {error}"
            self._messages.close()
            self._messages = None
            return []


def _take(entries: list[tuple[float, XidEvent]], event: XidEvent, at: float) -> bool:
    """Remove the report of the same error by the other source; return whether there was one."""
    for entry in entries:
        is_same = (entry[1].uuid, entry[1].xid) == (event.uuid, event.xid)
        if is_same and abs(entry[0] - at) <= SAME_S:
            entries.remove(entry)
            return True
    return False


def _recent(entries: list[tuple[float, XidEvent]], now: float) -> list[tuple[float, XidEvent]]:
    return [entry for entry in entries if now - entry[0] <= SAME_S]
