# SPDX-License-Identifier: Apache-2.0
"""Program `with-proc-modules COMMAND...`: a node's /proc/modules on a kernel that has none.

A kernel built without modules has no such file, and a name that procfs lacks cannot be a mount
point. The command gets a seccomp filter that sends each openat(2) to a supervisor in user space
(seccomp_unotify(2)). The supervisor answers for /proc/modules with the node's file; the kernel
continues any other openat. Each openat of the command and its children takes about 0.1 ms longer.
The supervisor ends with the last of these processes. stat(2) and readdir(3) do not show the file.
"""

from __future__ import annotations

import array  # noqa: F401  socket.send_fds imports it at a time when no file can be opened
import os
import socket
import struct
import sys
from fcntl import ioctl

from nvct.linux.kernel import call
from nvct.linux.syscall import address

FILE = "/proc/modules"
NODE_FILE = "/run/nvct-sim/modules"
"""The file that commands read if the kernel has no /proc/modules."""
# asm/unistd_64.h and asm-generic/unistd.h; linux/audit.h.
OPENAT, ARCHITECTURE = {
    "x86_64": (257, 0xC000003E),
    "aarch64": (56, 0xC00000B7),
}.get(os.uname().machine, (0, 0))
# linux/bpf_common.h: load a word of seccomp_data, jump if it is equal, return.
LOAD, JUMP, RETURN = 0x20, 0x15, 0x06
NUMBER_AT, ARCHITECTURE_AT = 0, 4
# linux/seccomp.h.
SET_MODE_FILTER, NEW_LISTENER, USER_NOTIF, ALLOW = 1, 8, 0x7FC00000, 0x7FFF0000
CONTINUE, ADDFD_SEND = 1, 2
RECV, SEND, ADDFD = 0xC0502100, 0xC0182101, 0x40182103
NOTIFICATION = struct.Struct("QIIiIQ6Q")  # id, pid, flags, and seccomp_data of the call


def main() -> None:
    """Execute the command given as arguments; OSError if the kernel refuses the filter."""
    command = sys.argv[1:]
    if not os.path.exists(FILE) and os.path.exists(NODE_FILE):
        _supervised()
    os.execvp(command[0], command)


def _supervised() -> None:
    """Start the supervisor and give it the listener for this process's openat calls."""
    command_end, supervisor_end = socket.socketpair()
    if os.fork() == 0:
        if os.fork() == 0:
            command_end.close()
            _serve(supervisor_end)
        os._exit(0)  # the supervisor must not be a child of the command
    os.wait()
    supervisor_end.close()
    # From here on this process must not open a file until the supervisor has the listener.
    listener = _install_filter()
    socket.send_fds(command_end, [b"."], [listener])
    os.close(listener)
    command_end.close()


def _install_filter() -> int:
    """Install the filter; return the descriptor that reports each openat of this process."""
    instructions = b"".join(
        struct.pack("HBBI", *instruction)
        for instruction in (
            (LOAD, 0, 0, ARCHITECTURE_AT),
            (JUMP, 0, 3, ARCHITECTURE),
            (LOAD, 0, 0, NUMBER_AT),
            (JUMP, 0, 1, OPENAT),
            (RETURN, 0, 0, USER_NOTIF),
            (RETURN, 0, 0, ALLOW),
        )
    )
    program = struct.pack("HP", len(instructions) // 8, address(instructions))
    return call("seccomp", SET_MODE_FILTER, NEW_LISTENER, program)


def _serve(channel: socket.socket) -> None:
    """Answer every openat until no process with the filter is left."""
    _, descriptors, _, _ = socket.recv_fds(channel, 1, 1)
    if not descriptors:  # the filter could not be installed
        return
    null = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):  # else the supervisor keeps the command's output open
        os.dup2(null, standard)
    os.setsid()
    while True:
        notification = bytearray(NOTIFICATION.size)
        try:
            ioctl(descriptors[0], RECV, notification)
        except OSError:  # ENOENT: the caller was killed, or all processes have ended
            if not _has_users(descriptors[0]):
                return
            continue
        _answer(descriptors[0], notification)


def _has_users(listener: int) -> bool:
    """Report whether a process with the filter is left; after the last one, poll gives POLLHUP."""
    import select

    poll = select.poll()
    poll.register(listener, 0)
    return not any(event & select.POLLHUP for _, event in poll.poll(0))


def _answer(listener: int, notification: bytearray) -> None:
    number, pid, *_, path, flags, _, _, _ = NOTIFICATION.unpack(notification)
    try:
        if _path(pid, path) != FILE.encode():
            ioctl(listener, SEND, struct.pack("QqiI", number, 0, 0, CONTINUE))
            return
        file = os.open(NODE_FILE, os.O_RDONLY)
        answer = struct.pack("QIIII", number, ADDFD_SEND, file, 0, flags & os.O_CLOEXEC)
        ioctl(listener, ADDFD, answer)
        os.close(file)
    except OSError:  # the caller was killed
        return


def _path(pid: int, address: int) -> bytes:
    """Return a string in a process's memory, at most one byte longer than FILE."""
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        memory.seek(address)
        return memory.read(len(FILE) + 1).partition(b"\0")[0]
