# SPDX-License-Identifier: Apache-2.0
"""Device programs of cgroup v2: bpf(2), one function per command.

Layouts and numbers: include/uapi/linux/bpf.h of Linux 6.12. An attr may be shorter than the
kernel's; missing fields are zero. Descriptors are close-on-exec. Errors are OSErrors without a
path.
"""

from __future__ import annotations

from _struct import pack, unpack_from

from nvct.linux.syscall import number, syscall

PROG_LOAD, PROG_ATTACH, PROG_GET_FD_BY_ID, OBJ_GET_INFO_BY_FD, PROG_QUERY = 5, 8, 13, 15, 16
TYPE_CGROUP_DEVICE = 15
ATTACH_CGROUP_DEVICE = 6
ALLOW_MULTI, REPLACE = 2, 4
MAX_PROGRAMS = 64
INSTRUCTION = 8
PROGRAM_LIMIT = 1 << 20
_BYTES_HEADER = bytes.__basicsize__ - 1


def query(cgroup_fd: int) -> tuple[int, list[int]]:
    """Return the attach flags of a cgroup's own device programs, and their ids."""
    ids = pack(f"{MAX_PROGRAMS}I", *[0] * MAX_PROGRAMS)
    attr = pack("IIIIQI4x", cgroup_fd, ATTACH_CGROUP_DEVICE, 0, 0, _address(ids), MAX_PROGRAMS)
    _bpf(PROG_QUERY, attr)  # the kernel writes into both; no other code holds them
    flags, count = unpack_from("I", attr, 12)[0], unpack_from("I", attr, 24)[0]
    return flags, list(unpack_from(f"{count}I", ids))


def open_program(program_id: int) -> int:
    """Return a descriptor of a loaded program."""
    return _bpf(PROG_GET_FD_BY_ID, pack("III", program_id, 0, 0))


def instructions(program_fd: int) -> bytes:
    """Return the instructions of a loaded program, empty if the kernel hides them.

    Reading them needs CAP_BPF or CAP_SYS_ADMIN, and fails if their constants are blinded.
    """
    size: int = unpack_from("I", _info(program_fd, b""), 20)[0]
    if not 0 < size <= PROGRAM_LIMIT or size % INSTRUCTION:
        return b""
    code = bytes(size)
    info = _info(program_fd, code)
    return code if unpack_from("Q", info, 32)[0] and any(code) else b""


def _info(program_fd: int, code: bytes) -> bytes:
    """Return the first 40 bytes of a struct bpf_prog_info; the kernel writes into `code`."""
    info = pack("IIQIIQQ", 0, 0, 0, 0, len(code), 0, _address(code) if code else 0)
    _bpf(OBJ_GET_INFO_BY_FD, pack("IIQ", program_fd, len(info), _address(info)))
    return info


def load(instructions: bytes, name: str) -> int:
    """Load a device program and return its descriptor.

    If the verifier refuses the program, the error is EINVAL or EACCES.
    """
    license_ = b"Apache-2.0\0"
    attr = pack(
        "IIQQIIQII16s", TYPE_CGROUP_DEVICE, len(instructions) // INSTRUCTION,
        _address(instructions), _address(license_), 0, 0, 0, 0, 0, name.encode()[:15],
    )  # fmt: skip
    return _bpf(PROG_LOAD, attr)


def replace(cgroup_fd: int, program_fd: int, old_fd: int) -> None:
    """Replace an attached program atomically. Linux 5.6."""
    _attach(cgroup_fd, program_fd, ALLOW_MULTI | REPLACE, old_fd)


def attach(cgroup_fd: int, program_fd: int, flags: int) -> None:
    """Attach a program; without ALLOW_MULTI it replaces the attached one."""
    _attach(cgroup_fd, program_fd, flags, 0)


def _attach(cgroup_fd: int, program_fd: int, flags: int, old_fd: int) -> None:
    attr = pack("IIIII", cgroup_fd, program_fd, ATTACH_CGROUP_DEVICE, flags, old_fd)
    _bpf(PROG_ATTACH, attr)


def _bpf(command: int, attr: bytes) -> int:
    return syscall(number("bpf"), command, attr, len(attr))


def _address(data: bytes) -> int:
    """Return the address of the content of a bytes object; in CPython a fixed header precedes it.

    The object must live as long as the address is used. (ctypes would cost 3 ms.)
    """
    return id(data) + _BYTES_HEADER
