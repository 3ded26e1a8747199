# SPDX-License-Identifier: Apache-2.0
"""The state that an OCI runtime hands to a prestart hook on stdin: which process, which bundle.

`bundlePath` instead of `bundle` is what Docker before 17.06 wrote.
"""

from __future__ import annotations

import posix

from nvct.container.cdi_hook.context import read_object
from nvct.errors import BundleError

HOST = "1"
HINT = "the OCI runtime hands the container's state to a hook on stdin"


class State:
    """The parts of a container's state that a prestart hook needs.

    Attributes:
        pid: the container's first process, as this process sees it.
        bundle: the bundle's folder.
    """

    __slots__ = ("bundle", "pid")

    def __init__(self, pid: int, bundle: str) -> None:
        """Keep both."""
        self.pid = pid
        self.bundle = bundle


def read(fd: int) -> State:
    """Read the state.

    Raises:
        BundleError: it is no container's state, or of a container without a process.
    """
    found = read_object(fd, "state")
    bundle = found.get("bundle") or found.get("bundlePath")
    if not isinstance(bundle, str) or not bundle.startswith("/"):
        raise BundleError(f"the container's state has the bundle {bundle!r:.100}", hint=HINT)
    pid = found.get("pid")
    if not isinstance(pid, int) or isinstance(pid, bool) or pid < 2:
        raise BundleError(f"the container's state has the pid {pid!r:.40}", hint=HINT)
    return State(pid, bundle)


def is_inside(pid: int, proc: str = "/proc") -> bool:
    """Return whether this process has the container's mounts, and they are not the host's.

    It has them when an engine starts it as a createContainer hook, with the image's environment.
    In a PID namespace that /proc is not of, the container's perhaps, `pid` says nothing, and it
    counts as inside.
    """
    try:
        if posix.readlink(f"{proc}/self") != str(posix.getpid()):
            return True
        ours, theirs = [
            posix.stat(f"{proc}/{process}/ns/mnt").st_ino for process in ("self", str(pid))
        ]
    except OSError:
        return False
    try:
        return ours == theirs != posix.stat(f"{proc}/{HOST}/ns/mnt").st_ino
    except OSError:
        from nvct.container.prestart.container import is_rootless

        return ours == theirs and is_rootless(proc)  # in a user namespace, which it is not of
