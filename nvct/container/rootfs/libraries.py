# SPDX-License-Identifier: Apache-2.0
"""Find the libraries of a folder inside the container and the names they are loaded by.

A folder that the driver shares with the image holds hundreds of libraries that the image's own
cache knows already. There only what the runtime mounted is read, and what is named after it; so
the cost doesn't grow with the image. A folder of the driver's own is read as a whole.

The names are what ldconfig makes of them (glibc 2.36, search_dir): the SONAME, and `libX.so` where
such a link exists. Other links, as libGLX_indirect.so.0, get no entry.
"""

from __future__ import annotations

import posix

from nvct.errors import DocumentError, ElfError, UnsafePathError
from nvct.linux import elf, ldcache
from nvct.linux.root import Root
from nvct.linux.walk import entries, link_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    Found: TypeAlias = dict[str, list[tuple[str, str]]]

NAME_LIMIT = 200_000
READ_LIMIT = 1024
LINK_LIMIT = 8
MOUNTINFO_LIMIT = 16 << 20


class Mounts:
    """Where file systems are mounted inside a container's root."""

    __slots__ = ("_targets",)

    def __init__(self, targets: list[str]) -> None:
        """Keep the mount points, as paths inside the container."""
        self._targets = targets

    @classmethod
    def read(cls, root: Root, proc_root: str) -> Mounts:
        """Read this process's mounts; where that fails, none is known: folders are read whole."""
        from nvct.linux.files import read_bytes
        from nvct.linux.mountinfo import targets

        try:
            inside = posix.readlink(f"{proc_root}/self/fd/{root.fd}").rstrip("/") + "/"
            data = read_bytes(f"{proc_root}/self/mountinfo", MOUNTINFO_LIMIT)
            found = targets(data.decode("utf-8", "surrogateescape"))
        except (OSError, DocumentError):
            return cls([])
        start = len(inside) - 1
        return cls([target[start:] for target in found if target.startswith(inside)])

    def names_in(self, folder: str) -> set[str] | None:
        """Return the names mounted in a folder; None if all of it has to be read.

        Args:
            folder: a path inside the container without links.
        """
        names = set()
        for target in self._targets:
            if folder == target or folder.startswith(f"{target}/"):
                return None
            parent, _, name = target.rpartition("/")
            if parent == folder:
                names.add(name)
        return names or None


def is_library(name: str) -> bool:
    """Tell whether a file's name is a shared library's."""
    return name.startswith("lib") and (name.endswith(".so") or ".so." in name)


def stem(name: str) -> str:
    """Return a library's name up to and with `.so`."""
    return name[: name.index(".so") + 3]


def scan(
    root: Root, folder: str, mounts: Mounts, warn: Callable[[str], None], shown: str = ""
) -> Found:
    """Return (name, path) of a folder's libraries by the machine they are for.

    Args:
        root: the container's.
        folder: a path inside it without links.
        mounts: what is mounted in the container.
        warn: told of what is left out.
        shown: how the entries name the folder.

    Raises:
        UnsafePathError: the folder has too many entries.
    """
    names = [n for n in root.listdir(folder, NAME_LIMIT) or () if is_library(n)]
    mounted = mounts.names_in(folder)
    if mounted is not None:
        stems = {stem(n) for n in mounted if is_library(n)}
        names = [n for n in names if stem(n) in stems]
    if len(names) > READ_LIMIT:
        warn(f"{folder} has {len(names)} libraries; only {READ_LIMIT} go into ld.so.cache")
        del names[READ_LIMIT:]
    with Root(root.dir_fd(folder)) as place:
        reader = _Reader(root, place, folder, frozenset(names))
        return _entries(reader, names, shown or folder)


class _Reader:
    """Reads SONAMEs of a folder; a file that several links lead to is read once."""

    __slots__ = ("_folder", "_known", "_place", "_root", "links", "names")

    def __init__(self, root: Root, place: Root, folder: str, names: frozenset[str]) -> None:
        self._root = root
        self._place = place
        self._folder = folder
        self._known: dict[str, tuple[str, str] | None] = {}
        with entries(place.fd) as found:
            self.links = {entry.name for entry in found if entry.is_symlink()}
        self.names = names

    def read(self, name: str, depth: int = 0) -> tuple[str, str] | None:
        """Return (SONAME or "", machine), None for what is no library.

        A SONAME that no file can have counts as none.
        """
        if name in self._known:
            return self._known[name]
        found = None
        # A name of this very folder: nothing to walk.
        target = link_text(name, self._place.fd) if name in self.links else None
        if target is not None and target in self.names and depth < LINK_LIMIT:
            found = self.read(target, depth + 1)
        else:
            try:
                found = self._read_file(name, target)
            except (UnsafePathError, ElfError, OSError):
                found = None  # linker scripts, FIFOs, other things of the image: not loadable
        self._known[name] = found
        return found

    def _read_file(self, name: str, target: str | None) -> tuple[str, str] | None:
        if target is None:
            fd = self._place.file_fd(name, follow=False)  # it was no link just now
        else:
            fd = self._root.file_fd(f"{self._folder}/{name}")
        if fd is None:
            return None
        try:
            found = elf.read(fd)
            soname = found.soname or ""
            return soname if len(soname) <= ldcache.NAME_LIMIT else "", found.machine
        finally:
            posix.close(fd)


def _entries(reader: _Reader, names: list[str], shown: str) -> Found:
    found: dict[str, dict[str, str]] = {}
    for name in names:
        read = reader.read(name)
        if read is None:
            continue
        soname, machine = read
        soname = soname.rpartition("/")[2] or name
        named = found.setdefault(machine, {})
        if soname in reader.names:
            named[soname] = soname
        elif soname not in named or order(named[soname]) <= order(name):
            named[soname] = name
        if name in reader.links and name.endswith(".so") and soname.startswith(name):
            named[name] = name
    return {m: [(n, f"{shown}/{f}") for n, f in sorted(e.items())] for m, e in found.items()}


def order(name: str) -> tuple[int, ...]:
    """Return a key by which of two files with the same SONAME the later version wins."""
    return ldcache.order_key(name.encode("utf-8", "surrogateescape"))
