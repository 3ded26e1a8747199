# SPDX-License-Identifier: Apache-2.0
"""Compiles device rules into a BPF program of cgroup v2 and replaces the attached programs.

All programs of a cgroup must allow an access, so an additional program cannot allow more. Each
attached program is replaced. If config.json is available, the new program contains all rules,
those of config.json and ours, and the attached program is not read. If not, the new program is
the attached one with our rules before it, as in libnvidia-container.

bpf(2) has one function per command; layouts and numbers: include/uapi/linux/bpf.h of Linux 6.12.
An attr may be shorter than the kernel's; missing fields are zero. Descriptors are
close-on-exec. Errors are OSErrors without a path.
"""

from __future__ import annotations

import posix
from _struct import pack, unpack_from

from nvct.errors import HostError
from nvct.linux.syscall import address, number, syscall

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

NAME = "nvct_device"
KINDS = {"b": 1, "c": 2}  # BPF_DEVCG_DEV_*
ACCESS = {"m": 1, "r": 2, "w": 4}  # BPF_DEVCG_ACC_*
R0, R1, TYPE, WANTED, MAJOR, MINOR = range(6)
"""Registers: the result, the context (later scratch), and the fields of the requested access."""
LOAD_WORD, MOVE, MOVE_IMM, AND, SHIFT_RIGHT = 0x61, 0xBF, 0xB7, 0x54, 0x74
IF_EQUAL, IF_NOT_EQUAL, EXIT = 0x15, 0x55, 0x95


def build(rules: list[Rule]) -> bytes:
    """Return the program's instructions.

    As in cgroup v1, the last rule that matches the device and names a kind of access (mknod,
    read, write) decides that access; an access without such a rule is denied. So the program
    tests the rules from last to first, and clears the allowed bits of the requested access.
    """
    program = _head()
    for rule in reversed(rules):
        program += _rule(rule)
        if rule.decides_everything:
            break
    program += [_code(MOVE_IMM, R0, immediate=0), _code(EXIT)]
    return b"".join(program)


def before(rules: list[Rule], program: bytes) -> bytes:
    """Return a program that allows what the rules allow, and else decides as another program.

    The other program expects the context in R1; rules that allow do not change R1.
    """
    return b"".join([*_head(), *(code for rule in rules for code in _rule(rule)), program])


def _head() -> list[bytes]:
    return [
        _code(LOAD_WORD, WANTED, R1, 0),  # access << 16 | type
        _code(MOVE, TYPE, WANTED),
        _code(AND, TYPE, immediate=0xFFFF),
        _code(SHIFT_RIGHT, WANTED, immediate=16),
        _code(LOAD_WORD, MAJOR, R1, 4),
        _code(LOAD_WORD, MINOR, R1, 8),
    ]


def _rule(rule: Rule) -> list[bytes]:
    bits = 0
    for letter in rule.access:
        bits |= ACCESS.get(letter, 0)
    tests = [
        (register, value)
        for register, value in (
            (TYPE, KINDS.get(rule.kind, -1)),
            (MAJOR, rule.major),
            (MINOR, rule.minor),
        )
        if value >= 0
    ]
    if rule.allow:
        body = [
            _code(AND, WANTED, immediate=7 & ~bits),
            _code(IF_NOT_EQUAL, WANTED, offset=2, immediate=0),
        ]
    else:
        body = [
            _code(MOVE, R1, WANTED),
            _code(AND, R1, immediate=bits),
            _code(IF_EQUAL, R1, offset=2, immediate=0),
        ]
    body += [_code(MOVE_IMM, R0, immediate=int(rule.allow)), _code(EXIT)]
    offset = len(tests) + len(body)
    instructions = []
    for register, value in tests:
        offset -= 1
        instructions.append(_code(IF_NOT_EQUAL, register, offset=offset, immediate=value))
    return instructions + body


def _code(code: int, to: int = 0, source: int = 0, offset: int = 0, immediate: int = 0) -> bytes:
    return pack("<BBhi", code, to | source << 4, offset, immediate)


def replace(folders: list[str], rules: list[Rule]) -> None:
    """Replace each device program of some cgroups by a program of the rules. Raises HostError."""
    program = build(rules)
    _replace_all(folders, lambda _: program)


def extend(folders: list[str], rules: list[Rule]) -> None:
    """Make each device program of some cgroups also allow what the rules allow.

    Raises HostError.
    """

    def extended(program_fd: int) -> bytes:
        program = instructions(program_fd)
        if not program:
            raise HostError(
                "the kernel does not show a device program of the container's cgroup",
                hint="add --no-cgroups, or use nvidia-container-runtime-hook",
            )
        return before(rules, program)

    _replace_all(folders, extended)


def _replace_all(folders: list[str], program_for: Callable[[int], bytes]) -> None:
    for folder in folders:
        try:
            fd = posix.open(folder, posix.O_RDONLY | posix.O_DIRECTORY)
            try:
                _replace(fd, program_for)
            finally:
                posix.close(fd)
        except OSError as error:
            raise HostError(
                f"cannot change the device rules of {folder}: {error.strerror}",
                hint="set no-cgroups = true in config.toml if hooks must not change cgroups",
            ) from error


def _replace(cgroup_fd: int, program_for: Callable[[int], bytes]) -> None:
    flags, ids = query(cgroup_fd)
    for program_id in ids:
        old_fd = new_fd = -1
        try:
            old_fd = _bpf(PROG_GET_FD_BY_ID, pack("III", program_id, 0, 0))
            new_fd = load(program_for(old_fd), NAME)  # a new one: none can be attached twice
            if flags & ALLOW_MULTI:
                attach(cgroup_fd, new_fd, ALLOW_MULTI | REPLACE, old_fd)
            else:
                attach(cgroup_fd, new_fd, flags)
        finally:
            for fd in (old_fd, new_fd):
                if fd >= 0:
                    posix.close(fd)


ANY = -1


class Rule:
    """One device rule."""

    __slots__ = ("access", "allow", "kind", "major", "minor")

    def __init__(self, kind: str, major: int, minor: int, access: str, *, allow: bool) -> None:
        self.kind = "c" if kind == "u" else kind  # "c", "b" or "a" for both
        self.major = major
        self.minor = minor
        self.access = access  # letters of "rwm": read, write, mknod
        self.allow = allow

    @classmethod
    def read(cls, entry: dict[str, Any]) -> Rule:
        """Return the rule of an entry of linux.resources.devices, read as runtimes do."""
        numbers = [entry.get(key) for key in ("major", "minor")]
        major, minor = [n if isinstance(n, int) and n >= 0 else ANY for n in numbers]
        access = str(entry.get("access") or "rwm")
        kind = str(entry.get("type") or "a")
        return cls(kind, major, minor, access, allow=entry.get("allow") is True)

    @property
    def decides_everything(self) -> bool:
        """Whether the rule overrides all rules before it."""
        return (
            self.kind == "a" and self.major == self.minor == ANY and set(self.access) >= set("rwm")
        )

    def __str__(self) -> str:
        numbers = ["*" if n == ANY else str(n) for n in (self.major, self.minor)]
        return f"{self.kind} {':'.join(numbers)} {self.access}"


PROG_LOAD, PROG_ATTACH, PROG_GET_FD_BY_ID, OBJ_GET_INFO_BY_FD, PROG_QUERY = 5, 8, 13, 15, 16
TYPE_CGROUP_DEVICE = 15
ATTACH_CGROUP_DEVICE = 6
ALLOW_MULTI, REPLACE = 2, 4
MAX_PROGRAMS = 64
INSTRUCTION = 8
PROGRAM_LIMIT = 1 << 20


def query(cgroup_fd: int) -> tuple[int, list[int]]:
    """Return the attach flags of a cgroup's own device programs, and their ids."""
    ids = pack(f"{MAX_PROGRAMS}I", *[0] * MAX_PROGRAMS)
    attr = pack("IIIIQI4x", cgroup_fd, ATTACH_CGROUP_DEVICE, 0, 0, address(ids), MAX_PROGRAMS)
    _bpf(PROG_QUERY, attr)  # the kernel writes into both; no other code holds them
    flags, count = unpack_from("I", attr, 12)[0], unpack_from("I", attr, 24)[0]
    return flags, list(unpack_from(f"{count}I", ids))


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
    info = pack("IIQIIQQ", 0, 0, 0, 0, len(code), 0, address(code) if code else 0)
    _bpf(OBJ_GET_INFO_BY_FD, pack("IIQ", program_fd, len(info), address(info)))
    return info


def load(instructions: bytes, name: str) -> int:
    """Load a device program and return its descriptor.

    If the verifier refuses the program, the error is EINVAL or EACCES.
    """
    license_ = b"Apache-2.0\0"
    attr = pack(
        "IIQQIIQII16s", TYPE_CGROUP_DEVICE, len(instructions) // INSTRUCTION,
        address(instructions), address(license_), 0, 0, 0, 0, 0, name.encode()[:15],
    )  # fmt: skip
    return _bpf(PROG_LOAD, attr)


def attach(cgroup_fd: int, program_fd: int, flags: int, old_fd: int = 0) -> None:
    """Attach a program; with REPLACE (Linux 5.6), in place of the old one, atomically.

    Without ALLOW_MULTI it replaces the attached one.
    """
    attr = pack("IIIII", cgroup_fd, program_fd, ATTACH_CGROUP_DEVICE, flags, old_fd)
    _bpf(PROG_ATTACH, attr)


def _bpf(command: int, attr: bytes) -> int:
    return syscall(number("bpf"), command, attr, len(attr))
