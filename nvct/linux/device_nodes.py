# SPDX-License-Identifier: Apache-2.0
"""Character devices: /proc/devices, and the status of a node in /dev."""

from __future__ import annotations

import posix

from nvct.linux import constants


def parse_proc_devices(text: str) -> dict[str, int]:
    """Return name -> major of the character section of /proc/devices.

    The first major of a name counts. Malformed lines are skipped, so that one driver's output does
    not hide the majors of other drivers.
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

    Symbolic links are not followed: a container gets the node itself. OSError if lstat(2) failed,
    for instance by EACCES.
    """
    try:
        status = posix.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if status.st_mode & constants.S_IFMT != constants.S_IFCHR:
        return None
    device = status.st_rdev
    permissions = status.st_mode & 0o7777
    return posix.major(device), posix.minor(device), permissions, status.st_uid, status.st_gid
