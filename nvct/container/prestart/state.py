# SPDX-License-Identifier: Apache-2.0
"""The container state that an OCI runtime writes to the stdin of a prestart hook.

Docker before 17.06 writes `bundlePath` instead of `bundle`.
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
        pid: of the container's first process, in the PID namespace of this process.
        bundle: the bundle's folder.
    """

    __slots__ = ("bundle", "pid")

    def __init__(self, pid: int, bundle: str) -> None:
        self.pid = pid
        self.bundle = bundle


def read(fd: int) -> State:
    """Read the state from a file descriptor.

    Raises:
        BundleError: the input is not a container state, or the container has no process.
    """
    state = read_object(fd, "state")
    bundle = state.get("bundle") or state.get("bundlePath")
    if not isinstance(bundle, str) or not bundle.startswith("/"):
        raise BundleError(f"the container's state has the bundle {bundle!r:.100}", hint=HINT)
    pid = state.get("pid")
    if not isinstance(pid, int) or isinstance(pid, bool) or pid < 2:
        raise BundleError(f"the container's state has the pid {pid!r:.40}", hint=HINT)
    return State(pid, bundle)


def is_inside(pid: int, proc: str = "/proc") -> bool:
    """Report whether this process is in the container's mount namespace, not in the host's.

    It is if an engine starts it as a createContainer hook, with the image's environment. If /proc
    belongs to another PID namespace than this process, `pid` has no meaning, and the result is
    true: this PID namespace may be the container's.
    """
    try:
        if posix.readlink(f"{proc}/self") != str(posix.getpid()):
            return True
        own_namespace, container_namespace = [
            posix.stat(f"{proc}/{process}/ns/mnt").st_ino for process in ("self", str(pid))
        ]
    except OSError:
        return False
    try:
        return own_namespace == container_namespace != posix.stat(f"{proc}/{HOST}/ns/mnt").st_ino
    except OSError:
        from nvct.container.prestart.container import is_rootless

        # Process 1 is outside of our user namespace.
        return own_namespace == container_namespace and is_rootless(proc)
