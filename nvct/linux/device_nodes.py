# SPDX-License-Identifier: Apache-2.0
"""Character devices: the majors that the kernel gave out, and what a node in /dev is."""

from __future__ import annotations

import posix

from nvct.linux import constants


def parse_proc_devices(text: str) -> dict[str, int]:
    """Return name -> major of the character section of /proc/devices.

    A name listed twice keeps its first major; lines that say nothing are passed over, because
    what one unknown driver writes must not cost the others their numbers.
    """
    majors: dict[str, int] = {}
    inside = False
    for line in text.splitlines():
        if line.endswith(":"):
            inside = line.startswith("Character")
            continue
        major, _, name = line.strip().partition(" ")
        name = name.strip()
        if inside and name and major.isascii() and major.isdecimal():
            majors.setdefault(name, int(major))
    return majors


def node(path: str) -> tuple[int, int, int, int, int] | None:
    """Return (major, minor, permissions, uid, gid) of a character device, else None.

    A symbolic link is not followed: the node itself is what a container gets.

    Raises:
        OSError: it cannot be told, EACCES for instance.
    """
    try:
        found = posix.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if found.st_mode & constants.S_IFMT != constants.S_IFCHR:
        return None
    device = found.st_rdev
    permissions = found.st_mode & 0o7777
    return posix.major(device), posix.minor(device), permissions, found.st_uid, found.st_gid
