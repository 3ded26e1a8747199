# SPDX-License-Identifier: Apache-2.0
"""Facts: what was true of the host when something was compiled, and whether it still is.

Hot. A fact is a list [kind, path, value]:

=======  ==========================================================================
stat     [dev, ino, size, mtime_ns, uid] of the file or directory, links followed
absent   None: nothing is there
text     the content, at most 64 KiB (procfs, whose times move by themselves)
list     the sorted names in a directory, [] where there is none
prefix   those of them that start with the path's last part
rdev     the device number of a character device node, links not followed
hash     size and blake2b of the first MiB, for files that were younger than two seconds
         when the fact was taken: coarse file times could hide a second change
=======  ==========================================================================
"""

from __future__ import annotations

import posix

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeAlias

    Value: TypeAlias = "int | str | list[int] | list[str] | None"
    Fact: TypeAlias = "list[str | Value]"

TEXT_LIMIT = 65536
HASH_LIMIT = 1 << 20
YOUNG_NS = 2_000_000_000
KINDS = ("stat", "absent", "text", "list", "prefix", "rdev", "hash")
S_IFMT, S_IFCHR, S_IFDIR = 0o170000, 0o020000, 0o040000


def observe(kind: str, path: str) -> Value:
    """Return what is true now, in the form of a fact's value; None where nothing is there.

    Raises:
        ValueError: there is no such kind, or the path can be none.
    """
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
        if kind == "rdev":
            s = posix.lstat(path)
            return s.st_rdev if s.st_mode & S_IFMT == S_IFCHR else None
        if kind == "hash":
            return _digest(path)
    except OSError:
        return [] if kind in ("list", "prefix") else None
    raise ValueError(kind)


def broken(facts: list[Fact]) -> Fact | None:
    """Return the first fact that no longer holds, None if all do.

    What is no fact, from a damaged plan say, is shown as one: it holds under no circumstances.
    """
    for fact in facts:
        if not isinstance(fact, list) or len(fact) != 3:  # type: ignore[redundant-expr]  # it was read from a file
            return ["damaged", "", None]
        kind, path, value = fact
        if kind not in KINDS or not isinstance(path, str):
            return fact
        try:
            if observe(str(kind), path) != value:
                return fact
        except ValueError:  # no path: NUL, or half a surrogate pair
            return fact
    return None


def take(kind: str, path: str) -> Fact:
    """Return the fact as it is now."""
    return [kind, path, observe(kind, path)]


def take_file(path: str, now_ns: int) -> Fact:
    """Return the fact for a file or directory: absent, stat, or hash where it is too young.

    A directory that is too young is compared by its names as well as it can be: by list.
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


def settle(facts: list[Fact], now_ns: int) -> bool:
    """Turn hashes that hold into the cheaper stat, once their files are old enough for it.

    Returns:
        Whether any was turned.
    """
    turned = False
    for fact in facts:
        if fact[0] == "hash":
            later = take_file(str(fact[1]), now_ns)  # before the content: a change breaks one
            if later[0] == "stat" and broken([fact]) is None:
                fact[:] = later
                turned = True
    return turned
