# SPDX-License-Identifier: Apache-2.0
"""Program `with-proc-modules COMMAND...`: /proc/modules of a node on a kernel that has none.

A kernel built without modules has no such file, and a name that procfs lacks cannot be a mount
point. The command gets a seccomp filter that sends each openat(2) to a supervisor in user space
(seccomp_unotify(2)). The supervisor answers for /proc/modules with the node's file; the kernel
continues any other openat. Each openat of the command and its children takes about 0.1 ms longer.
The supervisor ends with the last of these processes. stat(2) and readdir(3) do not show the file.
"""

from __future__ import annotations

import array  # noqa: F401  socket.send_fds imports it at a time when no file can be opened
import ctypes
import os
import socket
import struct
import sys
from fcntl import ioctl

FILE = "/proc/modules"
NODE_FILE = "/run/nvct-sim/modules"
"""The file that commands read if the kernel has no /proc/modules."""
# asm/unistd_64.h and asm-generic/unistd.h; linux/audit.h.
SECCOMP, OPENAT, ARCHITECTURE = {
    "x86_64": (317, 257, 0xC000003E),
    "aarch64": (277, 56, 0xC00000B7),
}.get(os.uname().machine, (0, 0, 0))
# linux/seccomp.h
SET_MODE_FILTER, NEW_LISTENER = 1, 1 << 3
ALLOW, USER_NOTIF = 0x7FFF0000, 0x7FC00000
RECEIVE, SEND, ADD_DESCRIPTOR = 0xC0502100, 0xC0182101, 0x40182103
CONTINUE, ADD_AND_SEND = 1, 1 << 1
NOTIFICATION = struct.Struct("=QIIiIQ6Q")  # id, pid, flags, then struct seccomp_data
RESPONSE = struct.Struct("=QqiI")
DESCRIPTOR = struct.Struct("=QIIII")
# linux/filter.h, linux/bpf_common.h: load a word of seccomp_data, jump if equal, return.
LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
NUMBER_OFFSET, ARCHITECTURE_OFFSET = 0, 4


def main() -> None:
    """Execute the command given as arguments.

    Raises:
        OSError: the kernel refuses the filter, or the command cannot be started.
    """
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
    program = b"".join(
        struct.pack("=HBBI", *instruction)
        for instruction in (
            (LOAD, 0, 0, ARCHITECTURE_OFFSET),
            (JUMP_IF_EQUAL, 0, 3, ARCHITECTURE),
            (LOAD, 0, 0, NUMBER_OFFSET),
            (JUMP_IF_EQUAL, 0, 1, OPENAT),
            (RETURN, 0, 0, USER_NOTIF),
            (RETURN, 0, 0, ALLOW),
        )
    )
    instructions = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("@HP", len(program) // 8, ctypes.addressof(instructions))
    libc = ctypes.CDLL(None, use_errno=True)
    listener: int = libc.syscall(SECCOMP, SET_MODE_FILTER, NEW_LISTENER, header)
    if listener < 0:
        raise OSError(ctypes.get_errno(), f"seccomp: {os.strerror(ctypes.get_errno())}")
    return listener


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
            ioctl(descriptors[0], RECEIVE, notification)
        except OSError:  # ENOENT: the caller was killed, or all processes have ended
            if not _has_users(descriptors[0]):
                return
            continue
        _answer(descriptors[0], notification)


def _has_users(listener: int) -> bool:
    """Report whether a process with the filter is left: after the last, poll gives POLLHUP."""
    import select

    poll = select.poll()
    poll.register(listener, 0)
    return not any(event & select.POLLHUP for _, event in poll.poll(0))


def _answer(listener: int, notification: bytearray) -> None:
    number, pid, _, _, _, _, _, address, flags, *_ = NOTIFICATION.unpack(notification)
    try:
        if _path(pid, address) == FILE.encode():
            file = os.open(NODE_FILE, os.O_RDONLY)
            close = flags & os.O_CLOEXEC
            ioctl(listener, ADD_DESCRIPTOR, DESCRIPTOR.pack(number, ADD_AND_SEND, file, 0, close))
            os.close(file)
            return
        ioctl(listener, SEND, bytearray(RESPONSE.pack(number, 0, 0, CONTINUE)))
    except OSError:  # the caller was killed
        return


def _path(pid: int, address: int) -> bytes:
    """Return a string in a process's memory, at most one byte longer than FILE."""
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        memory.seek(address)
        return memory.read(len(FILE) + 1).partition(b"\0")[0]
