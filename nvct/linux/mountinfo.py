# SPDX-License-Identifier: Apache-2.0
"""/proc/<pid>/mountinfo as objects (proc_pid_mountinfo(5))."""

from __future__ import annotations

from nvct.errors import DocumentError

LIMIT = 16 << 20


class Mount:
    """One line of mountinfo.

    Attributes:
        root: the directory of the file system that is mounted.
        options: the mount's own, such as "ro" and "nosuid".
        tags: its propagation, such as "shared:7"; empty for a private mount.
        fstype, source, super_options: those of the file system.
    """

    __slots__ = (
        "fstype",
        "major",
        "minor",
        "mount_id",
        "options",
        "parent_id",
        "root",
        "source",
        "super_options",
        "tags",
        "target",
    )

    def __init__(self, line: str) -> None:
        mount, dash, superblock = line.partition(" - ")
        fields, super_fields = mount.split(" "), superblock.split(" ")
        if not dash or len(fields) < 6 or len(super_fields) < 3:
            raise DocumentError(f"mountinfo line {line!r} has too few fields")
        major, _, minor = fields[2].partition(":")
        try:
            self.mount_id, self.parent_id = int(fields[0]), int(fields[1])
            self.major, self.minor = int(major), int(minor)
        except ValueError:
            raise DocumentError(f"mountinfo line {line!r} has a malformed number") from None
        self.root = unescape(fields[3])
        self.target = unescape(fields[4])
        self.options = tuple(fields[5].split(","))
        self.tags = tuple(fields[6:])
        self.fstype = unescape(super_fields[0])
        self.source = unescape(super_fields[1])
        self.super_options = tuple(super_fields[2].split(","))


def read(proc: str = "/proc") -> str:
    """Return the text of this process's mountinfo; OSError or DocumentError if that fails."""
    from nvct.linux.files import read_bytes

    return read_bytes(f"{proc}/self/mountinfo", LIMIT).decode("utf-8", "surrogateescape")


def with_id(text: str, number: str) -> Mount | None:
    """Return the mount with an id, None if absent; other lines are not parsed."""
    lines = text.split("\n")
    return next((Mount(line) for line in lines if line.startswith(f"{number} ")), None)


def parse(text: str) -> list[Mount]:
    """Return the mounts in order: later ones cover earlier ones; DocumentError for other texts."""
    return [Mount(line) for line in text.split("\n") if line]


def targets(text: str) -> list[str]:
    """Return the mount points, at 1 us a line (`parse`: 8 us); DocumentError for other texts."""
    try:
        return [unescape(line.split(" ", 5)[4]) for line in text.split("\n") if line]
    except IndexError:
        raise DocumentError("a mountinfo line has too few fields") from None


def unescape(text: str) -> str:
    r"""Decode the kernel's octal escapes, such as ``\040`` for a space."""
    if "\\" not in text:
        return text
    first, *parts = text.split("\\")
    result = first
    for part in parts:
        digits = part[:3]
        if len(digits) == 3 and all(c in "01234567" for c in digits) and digits < "400":
            result += chr(int(digits, 8)) + part[3:]
        else:
            result += "\\" + part
    return result
