# SPDX-License-Identifier: Apache-2.0
"""System calls that Python lacks, by which a process of the cold side changes itself."""

from __future__ import annotations

import contextlib
import os
import signal
import struct

from nvct.linux.constants import PR_SET_DUMPABLE
from nvct.linux.kernel import call

# linux/prctl.h, linux/capability.h
PR_SET_PDEATHSIG, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 1, 24, 38
CAPABILITY_VERSION = 0x20080522


def end_with_parent(parent: int) -> None:
    """Have this process, a new child, get SIGTERM when its parent ends, also by SIGKILL."""
    call("prctl", PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def give_up_capabilities() -> None:
    """Drop every capability of this process for good; it cannot gain any again.

    Other processes of its user can no longer trace it, either.
    """
    call("prctl", PR_SET_DUMPABLE, 0, 0, 0, 0)
    call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    with contextlib.suppress(OSError):  # after the last capability, or without CAP_SETPCAP
        for number in range(64):
            call("prctl", PR_CAPBSET_DROP, number, 0, 0, 0)
    call("capset", struct.pack("Ii", CAPABILITY_VERSION, 0), bytes(24))
