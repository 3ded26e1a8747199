# SPDX-License-Identifier: Apache-2.0
"""Fingerprints of files at compile time, and whether the files are unchanged.

Hot. A fingerprint is a list [kind, path, value]; documents keep them under "facts":

=======  ==========================================================================
stat     [dev, ino, size, mtime_ns, uid] of the file or directory, links followed
absent   None: the path does not exist
text     the content, at most 64 KiB, for procfs: its files have no stable mtime
list     the sorted names in a directory, [] if there is none
prefix   the names that start with the last component of the path
node     [device number, permissions, uid, gid] of a character device node, which are written
         into containers and specs; links not followed
hash     size and blake2b of the first MiB, for files that were younger than two seconds
         at compile time: file times are coarse and could hide a second change
=======  ==========================================================================
"""

from __future__ import annotations

import posix

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeAlias

    Value: TypeAlias = "int | str | list[int] | list[str] | None"
    Fingerprint: TypeAlias = "list[str | Value]"

TEXT_LIMIT = 65536
HASH_LIMIT = 1 << 20
YOUNG_NS = 2_000_000_000
KINDS = ("stat", "absent", "text", "list", "prefix", "node", "hash")
S_IFMT, S_IFCHR, S_IFDIR = 0o170000, 0o020000, 0o040000


def observe(kind: str, path: str) -> Value:
    """Return a fingerprint's value now; None without the path; ValueError for an unknown kind."""
    try:
        if kind in ("stat", "absent"):
            s = posix.stat(path)
            return [s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_uid]
        if kind == "text":
            return _read(path, TEXT_LIMIT).decode("utf-8", "surrogateescape")
        if kind == "list":
            return sorted(posix.listdir(path))
        if kind == "prefix":
            folder, _, start = path.rpartition("/")
            return sorted([name for name in posix.listdir(folder) if name.startswith(start)])
        if kind == "node":
            s = posix.lstat(path)
            if s.st_mode & S_IFMT != S_IFCHR:
                return None
            return [s.st_rdev, s.st_mode & 0o7777, s.st_uid, s.st_gid]
        if kind == "hash":
            return _digest(path)
    except OSError:
        return [] if kind in ("list", "prefix") else None
    raise ValueError(kind)


def broken(fingerprints: list[Fingerprint]) -> Fingerprint | None:
    """Return the first fingerprint that does not match, or is malformed; None if all match."""
    for fingerprint in fingerprints:
        if not isinstance(fingerprint, list) or len(fingerprint) != 3:  # type: ignore[redundant-expr]  # it was read from a file
            return ["damaged", "", None]
        kind, path, value = fingerprint
        if kind not in KINDS or not isinstance(path, str):
            return fingerprint
        try:
            if observe(str(kind), path) != value:
                return fingerprint
        except ValueError:  # NUL, or half a surrogate pair
            return fingerprint
    return None


def take(kind: str, path: str) -> Fingerprint:
    """Return the current fingerprint of a path."""
    return [kind, path, observe(kind, path)]


def take_file(path: str, now_ns: int) -> Fingerprint:
    """Return the fingerprint of a file or directory: absent, stat, or hash if it is too young.

    A directory that is too young gets kind list.
    """
    try:
        s = posix.stat(path)
    except OSError:
        return ["absent", path, None]
    if now_ns - s.st_mtime_ns >= YOUNG_NS:
        return ["stat", path, [s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_uid]]
    return take("list" if s.st_mode & S_IFMT == S_IFDIR else "hash", path)


def _read(path: str, limit: int) -> bytes:
    fd = posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC | posix.O_NONBLOCK)
    try:
        parts = []
        while limit > 0:
            part = posix.read(fd, min(limit, 1 << 20))
            if not part:
                break
            parts.append(part)
            limit -= len(part)
        return b"".join(parts)
    finally:
        posix.close(fd)


def _digest(path: str) -> str:
    from _blake2 import blake2b

    size = posix.stat(path).st_size
    return f"{size} {blake2b(_read(path, HASH_LIMIT), digest_size=16).hexdigest()}"


def settle(fingerprints: list[Fingerprint], now_ns: int) -> bool:
    """Replace matching hashes of old files by the cheaper stat; return whether any was."""
    replaced = False
    for fingerprint in fingerprints:
        if fingerprint[0] == "hash":
            # Before the content is read: one of the two then shows a change in between.
            later = take_file(str(fingerprint[1]), now_ns)
            if later[0] == "stat" and broken([fingerprint]) is None:
                fingerprint[:] = later
                replaced = True
    return replaced
