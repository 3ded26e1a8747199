# SPDX-License-Identifier: Apache-2.0
"""Checks the limits of inotify, which the kubelet, engines and nvct's agent need to watch files.

Linux counts instances and watches for each user (inotify(7)): a program of root that wants one
more gets EMFILE "too many open files" or ENOSPC. Cold; changes nothing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass

from nvct.doctor.model import Finding, Part
from nvct.doctor.node import Node
from nvct.doctor.reasons import Reason
from nvct.host import procfs

LIMITS = "sys/fs/inotify"
INSTANCE = "anon_inode:inotify"
WATCH = "inotify wd:"
BUDGET_S = 0.25
"""For the count: a node with a thousand containers has some hundred thousand descriptors."""
FEW_INSTANCES = 8
"""What a kubelet with an engine and an agent opens."""
FEW_WATCHES = 1024
MANY = 10
"""Some of root's processes may be closed even to root; one of so many does not matter."""
SHARE = 0.9
"""Above this part of a limit, little is left."""


@dataclass(slots=True)
class Used:
    """What processes of one user have open.

    Attributes:
        counted, unseen: processes that were counted, and those that could not be.
    """

    instances: int = 0
    watches: int = 0
    counted: int = 0
    unseen: int = 0
    in_time: bool = True

    @property
    def is_complete(self) -> bool:
        """Whether all processes were counted."""
        return self.in_time and not self.unseen

    @property
    def is_known(self) -> bool:
        """Whether nearly all were."""
        return self.in_time and self.unseen * MANY <= self.counted


def check(node: Node, *, uid: int = 0, budget_s: float = BUDGET_S) -> Part:
    """Check that root has instances and watches of inotify left."""
    proc = node.roots.proc
    instances, watches = (_limit(proc, f"max_user_{name}") for name in ("instances", "watches"))
    if instances is None or watches is None:
        return Part.absent(f"no limits in {proc}/{LIMITS}")
    used = count(proc, uid, budget_s)
    hidden = procfs.hidden_processes(proc)
    if procfs.in_user_namespace(proc):
        hidden = "this is another user namespace than the host's, with limits of its own"
    at_least = "" if used.is_complete and not hidden else "at least "
    pairs = (
        ("instances", used.instances, instances, FEW_INSTANCES),
        ("watches", used.watches, watches, FEW_WATCHES),
    )
    texts = [
        f"root's processes have {at_least}{number} of {limit} {name} of inotify "
        f"(fs.inotify.max_user_{name}): programs that need more cannot watch files"
        for name, number, limit, few in pairs
        if number > limit * SHARE or limit - number < few
    ]
    if texts:
        return Part.of(*Finding.each(Reason.InotifyExhausted, "warning", texts))
    if hidden:
        return Part.absent(f"root's processes are not counted: {hidden}")
    text = f"{at_least}{used.instances} of {instances} instances, "
    text += f"{used.watches} of {watches} watches"
    if used.is_known:
        return Part.of(text)
    text += "; not every process could be counted"
    return Part.of(Finding(Reason.InotifyExhausted, "unknown", text))


def _limit(proc: str, name: str) -> int | None:
    text = (procfs.read_text(f"{proc}/{LIMITS}/{name}") or "").strip()
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else None


def count(proc: str, uid: int, budget_s: float) -> Used:
    """Return what the processes of a user have open.

    A process that ends meanwhile counts nothing.
    """
    used = Used()
    until = time.monotonic() + budget_s
    for pid in procfs.processes(proc):
        if time.monotonic() > until:
            used.in_time = False
            break
        folder = f"{proc}/{pid}"
        try:
            if os.stat(folder).st_uid != uid:
                continue
            numbers = list(_inotify(folder))
        except PermissionError:
            used.unseen += 1
            continue
        except OSError:
            continue
        used.counted += 1
        used.instances += len(numbers)
        for number in numbers:
            text = procfs.read_text(f"{folder}/fdinfo/{number}") or ""
            used.watches += text.count(WATCH)
            used.unseen += len(text) >= procfs.SIZE_LIMIT
    return used


def _inotify(folder: str) -> Iterator[str]:
    """Yield the descriptors of inotify of a process."""
    fd = f"{folder}/fd"
    for number in os.listdir(fd):
        try:
            if os.readlink(f"{fd}/{number}") == INSTANCE:
                yield number
        except FileNotFoundError:
            continue
