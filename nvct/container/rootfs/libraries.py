# SPDX-License-Identifier: Apache-2.0
"""Finds the libraries in a folder of a container and their names for the dynamic linker.

A folder that the driver shares with the image may have hundreds of libraries, which are already
in the cache of the image. In such a folder only files that the runtime mounted, and files with
the same name up to `.so`, are read, so the cost does not depend on the image. Other folders are
read completely.

Names are those of ldconfig (glibc 2.36, search_dir): the SONAME, and `libX.so` if there is such a
link. Other links, such as libGLX_indirect.so.0, get no entry.
"""

from __future__ import annotations

import posix

from nvct.errors import DocumentError, ElfError, HostError, UnsafePathError
from nvct.linux import elf, ldcache
from nvct.linux.root import Root
from nvct.linux.walk import entries, link_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    Libraries: TypeAlias = dict[str, list[tuple[str, str]]]
    from nvct.container.rootfs.changes import Changes


NAME_LIMIT = 200_000
READ_LIMIT = 1024
LINK_LIMIT = 8


class MountTargets:
    """The mount points inside a container's root, as paths in the container."""

    __slots__ = ("_targets",)

    def __init__(self, targets: list[str]) -> None:
        self._targets = targets

    @classmethod
    def read(cls, root: Root, proc_root: str) -> MountTargets:
        """Return the mounts of this process; none on error: then folders are read completely."""
        try:
            return cls.of(root, proc_root)
        except HostError:
            return cls([])

    @classmethod
    def of(cls, root: Root, proc_root: str) -> MountTargets:
        """Return the mounts of this process. Raises HostError if they cannot be read."""
        from nvct.linux import mountinfo

        try:
            inside = posix.readlink(f"{proc_root}/self/fd/{root.fd}").rstrip("/") + "/"
            mounted = mountinfo.targets(mountinfo.read(proc_root))
        except (OSError, DocumentError) as error:
            raise HostError(
                f"the mounts of the container cannot be read: {error}",
                hint=f"the hook needs {proc_root}/self/mountinfo",
            ) from error
        start = len(inside) - 1
        return cls([target[start:] for target in mounted if target.startswith(inside)])

    def is_covered(self, path: str) -> bool:
        """Report whether a resolved path in the container is a mount, or below one."""
        return any(path == target or path.startswith(f"{target}/") for target in self._targets)

    def names_in(self, folder: str) -> set[str] | None:
        """Return the names mounted in a resolved folder; None if the whole folder must be read."""
        if self.is_covered(folder):
            return None
        names = set()
        for target in self._targets:
            parent, _, name = target.rpartition("/")
            if parent == folder:
                names.add(name)
        return names or None


def is_library(name: str) -> bool:
    """Report whether a file name is that of a shared library."""
    return name.startswith("lib") and (name.endswith(".so") or ".so." in name)


def stem(name: str) -> str:
    """Return the name of a library up to and including `.so`."""
    return name[: name.index(".so") + 3]


def scan(
    root: Root, folder: str, mounts: MountTargets, warn: Callable[[str], None], shown: str = ""
) -> Libraries:
    """Return (name, path) of the libraries in a folder, by machine.

    `folder` is a resolved path, `shown` its name in the result. Raises UnsafePathError if it has
    too many entries.
    """
    names = [name for name in root.listdir(folder, NAME_LIMIT) or () if is_library(name)]
    mounted = mounts.names_in(folder)
    if mounted is not None:
        stems = {stem(name) for name in mounted if is_library(name)}
        names = [name for name in names if stem(name) in stems]
    if len(names) > READ_LIMIT:
        warn(f"{folder} has {len(names)} libraries; only {READ_LIMIT} go into ld.so.cache")
        del names[READ_LIMIT:]
    with Root(root.dir_fd(folder)) as folder_root:
        reader = _Reader(root, folder_root, folder, frozenset(names))
        return _entries(reader, names, shown or folder)


class _Reader:
    __slots__ = ("_cache", "_folder", "_folder_root", "_root", "links", "names")

    def __init__(self, root: Root, folder_root: Root, folder: str, names: frozenset[str]) -> None:
        self._root = root
        self._folder_root = folder_root
        self._folder = folder
        self._cache: dict[str, tuple[str, str] | None] = {}
        with entries(folder_root.fd) as listed:
            self.links = {entry.name for entry in listed if entry.is_symlink()}
        self.names = names

    def read(self, name: str, depth: int = 0) -> tuple[str, str] | None:
        """Return (SONAME or "", machine), None for files that are not libraries.

        A SONAME that is too long for a file name counts as missing.
        """
        if name in self._cache:
            return self._cache[name]
        library = None
        # A link to a name in the same folder needs no path walk.
        target = link_text(name, self._folder_root.fd) if name in self.links else None
        if target is not None and target in self.names and depth < LINK_LIMIT:
            library = self.read(target, depth + 1)
        else:
            try:
                library = self._read_file(name, target)
            except (UnsafePathError, ElfError, OSError):
                library = None  # linker scripts, FIFOs and so on: not loadable
        self._cache[name] = library
        return library

    def _read_file(self, name: str, target: str | None) -> tuple[str, str] | None:
        if target is None:
            fd = self._folder_root.file_fd(name, follow=False)  # it was not a link
        else:
            fd = self._root.file_fd(f"{self._folder}/{name}")
        if fd is None:
            return None
        try:
            library = elf.Elf(fd)
            soname = library.soname or ""
            return soname if len(soname) <= ldcache.NAME_LIMIT else "", library.machine
        finally:
            posix.close(fd)


def _entries(reader: _Reader, names: list[str], shown: str) -> Libraries:
    files: dict[str, dict[str, str]] = {}
    for name in names:
        library = reader.read(name)
        if library is None:
            continue
        soname, machine = library
        soname = soname.rpartition("/")[2] or name
        by_name = files.setdefault(machine, {})
        if soname in reader.names:
            by_name[soname] = soname
        elif soname not in by_name or order(by_name[soname]) <= order(name):
            by_name[soname] = name
        if name in reader.links and name.endswith(".so") and soname.startswith(name):
            by_name[name] = name
    return {m: [(n, f"{shown}/{f}") for n, f in sorted(e.items())] for m, e in files.items()}


def order(name: str) -> tuple[int, ...]:
    """Return a sort key for file names with the same SONAME: the latest version is greatest."""
    return ldcache.order_key(name.encode("utf-8", "surrogateescape"))


def leave_mounts(changes: Changes, mounts: MountTargets, warn: Callable[[str], None]) -> None:
    """Drop the changes at or below a mount, with a warning for each folder."""
    root = changes.root
    left: dict[str, None] = {}
    real: dict[str, str] = {}

    def is_own(path: str) -> bool:
        folder, _, name = path.rpartition("/")
        try:
            if folder not in real:
                real[folder] = root.real(folder or "/").rstrip("/")
        except UnsafePathError:
            return True  # nothing can be written there
        if mounts.is_covered(real[folder] or "/"):
            left[folder] = None
        elif mounts.is_covered(f"{real[folder]}/{name}"):
            left[path] = None
        return folder not in left and path not in left

    changes.files = [file for file in changes.files if is_own(file[0])]
    changes.links = [link for link in changes.links if is_own(link[1])]
    changes.removed = [path for path in changes.removed if is_own(path)]
    changes.sealed = [(path, mode) for path, mode in changes.sealed if is_own(f"{path}/")]
    for path in left:
        warn(f"{path} is a mount in the container: nothing of the driver is put there")
