# SPDX-License-Identifier: Apache-2.0
"""Program `with-proc-modules COMMAND...`: /proc/modules of a node on a kernel that has none.

A kernel built without modules has no such file, and nothing can be mounted where there is no name
in procfs. The command gets a seccomp filter whose openat(2) goes to a supervisor in user space
(seccomp_unotify(2)): it answers for /proc/modules with the node's file, and lets the kernel go on
with any other path. Each openat of the command and of its children costs some 0.1 ms more; the
supervisor ends with the last of them. stat(2) and readdir(3) do not show the file.
"""

from __future__ import annotations

import array  # noqa: F401  socket.send_fds imports it, and nothing can be opened by then
import ctypes
import os
import socket
import struct
import sys
from fcntl import ioctl

FILE = "/proc/modules"
OURS = "/run/nvct-sim/modules"
"""What a command reads instead, where the kernel has no such file."""
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
    """Become the command of the command line.

    Raises:
        OSError: the kernel refuses the filter, or the command cannot be started.
    """
    command = sys.argv[1:]
    if not os.path.exists(FILE) and os.path.exists(OURS):
        _supervised()
    os.execvp(command[0], command)


def _supervised() -> None:
    """Let a new process answer what this one will open."""
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        if os.fork() == 0:
            ours.close()
            _serve(theirs)
        os._exit(0)  # the supervisor must not be a child of the command
    os.wait()
    theirs.close()
    # From here on this process opens nothing before the supervisor has the listener.
    listener = _install_filter()
    socket.send_fds(ours, [b"."], [listener])
    os.close(listener)
    ours.close()


def _install_filter() -> int:
    """Return the descriptor at which the supervisor is told of each openat of this process."""
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
    """Answer every openat until nobody with the filter is left."""
    _, descriptors, _, _ = socket.recv_fds(channel, 1, 1)
    if not descriptors:  # the command could not get its filter
        return
    null = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):  # whoever reads what the command writes waits for its end
        os.dup2(null, standard)
    os.setsid()
    while True:
        notification = bytearray(NOTIFICATION.size)
        try:
            ioctl(descriptors[0], RECEIVE, notification)
        except OSError:  # ENOENT: the caller was killed, or all have ended
            if not _has_users(descriptors[0]):
                return
            continue
        _answer(descriptors[0], notification)


def _has_users(listener: int) -> bool:
    """Tell whether a process with the filter is left: the listener hangs up after the last."""
    import select

    poll = select.poll()
    poll.register(listener, 0)
    return not any(event & select.POLLHUP for _, event in poll.poll(0))


def _answer(listener: int, notification: bytearray) -> None:
    number, pid, _, _, _, _, _, address, flags, *_ = NOTIFICATION.unpack(notification)
    try:
        if _path(pid, address) == FILE.encode():
            file = os.open(OURS, os.O_RDONLY)
            close = flags & os.O_CLOEXEC
            ioctl(listener, ADD_DESCRIPTOR, DESCRIPTOR.pack(number, ADD_AND_SEND, file, 0, close))
            os.close(file)
            return
        ioctl(listener, SEND, bytearray(RESPONSE.pack(number, 0, 0, CONTINUE)))
    except OSError:  # it was killed meanwhile
        return


def _path(pid: int, address: int) -> bytes:
    """Return the beginning of a string of a process, as long as the name of our file."""
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        memory.seek(address)
        return memory.read(len(FILE) + 1).partition(b"\0")[0]
