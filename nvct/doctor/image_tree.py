# SPDX-License-Identifier: Apache-2.0
"""Looks for libraries in a folder with an unpacked image, as its dynamic linker does. Cold.

The image may be hostile: no path leads out of its folder, and every file has a limit.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from fnmatch import fnmatch

from nvct.errors import ElfError, NvctError
from nvct.host.driver.libraries import COMPAT_MACHINES, TRIPLETS, machine_directories
from nvct.host.driver.symbol_versions import VersionedElf

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.linux.root import Root

CONFIG = "/etc/ld.so.conf"
CONFIG_LIMIT = 1 << 20
CONFIGS = 64
"""Files of ld.so.conf that are read."""
FOLDERS = 64
"""Folders that are searched."""
USUAL = ("/lib64", "/usr/lib64", "/lib", "/usr/lib", "/usr/local/lib")
MUSL = "ld-musl-"


class ImageTree:
    """The libraries of an image.

    Args:
        machine: of this host, as uname names it.
    """

    def __init__(self, root: Root, machine: str) -> None:
        self._root = root
        self._machine = machine
        self._elves: dict[tuple[str, int], VersionedElf | None] = {}
        self._names: dict[str, list[str]] = {}
        self.unread: list[str] = []
        for folder in list(self._folders(machine))[:FOLDERS]:
            for name in self._list(folder):
                self._names.setdefault(name, []).append(f"{folder}/{name}")

    @property
    def has_musl(self) -> bool:
        """Whether its C library is musl."""
        return any(name.startswith(MUSL) for name in self._names)

    def library(self, name: str, bits: int) -> VersionedElf | None:
        """Return the library that the linker takes for a name, None if there is none.

        Args:
            name: as in DT_NEEDED.
            bits: 32 or 64.
        """
        key = (name, bits)
        if key not in self._elves:
            found = (self._read(path) for path in self._names.get(name, ()))
            self._elves[key] = next(
                (elf for elf in found if elf and elf.bits == bits and self._is_for_us(elf)), None
            )
        return self._elves[key]

    def other_machine(self, name: str) -> str:
        """Return the machine of a library that is not for this host's, "" if there is none."""
        folders = (each for one in TRIPLETS for each in machine_directories(one))
        paths = [*self._names.get(name, ()), *(f"{folder}/{name}" for folder in folders)]
        found = (self._read(path) for path in paths)
        return next((elf.machine for elf in found if elf and not self._is_for_us(elf)), "")

    def _is_for_us(self, elf: VersionedElf) -> bool:
        return elf.machine in (self._machine, COMPAT_MACHINES.get(self._machine))

    def texts(self, folder: str, pattern: str) -> Iterator[tuple[str, str]]:
        """Yield path and text of each file in a folder that fits a pattern."""
        for name in self._list(folder)[:CONFIGS]:
            if fnmatch(name, pattern) and (text := self.text(f"{folder}/{name}")):
                yield f"{folder}/{name}", text

    def text(self, path: str) -> str:
        """Return a file's text, "" if it cannot be read."""
        try:
            data = self._root.read_file(path, CONFIG_LIMIT)
        except (OSError, NvctError, ValueError):
            self.unread.append(path)
            return ""
        return (data or b"").decode("utf-8", "replace")

    def _folders(self, machine: str) -> Iterator[str]:
        """Yield the linker's folders, each once."""
        seen: set[str] = set()
        usual = (*machine_directories(machine), *USUAL)
        for folder in (*self._configured(CONFIG, set()), *usual):
            if folder.startswith("/") and folder not in seen:
                seen.add(folder)
                yield folder.rstrip("/")

    def _configured(self, path: str, read: set[str]) -> Iterator[str]:
        """Yield the folders of a file of ldconfig(8), and of the files that it includes."""
        if path in read or len(read) > CONFIGS:
            return
        read.add(path)
        for line in self.text(path).splitlines():
            word, _, rest = line.partition("#")[0].strip().partition(" ")
            if word == "include":
                folder, pattern = os.path.split(os.path.join("/etc", rest.strip()))
                for name in self._list(folder):
                    if fnmatch(name, pattern):
                        yield from self._configured(f"{folder}/{name}", read)
            elif word.startswith("/"):
                yield word

    def _list(self, folder: str) -> list[str]:
        try:
            return self._root.listdir(folder) or []
        except (OSError, NvctError, ValueError):
            self.unread.append(folder)
            return []

    def _read(self, path: str) -> VersionedElf | None:
        """Return a library's headers and versions; None if it is no library of any kind."""
        fd = None
        try:
            fd = self._root.file_fd(path)
            return VersionedElf(fd) if fd is not None else None
        except ElfError:
            return None  # a script of the linker, for example
        except (OSError, NvctError):
            self.unread.append(path)
            return None
        finally:
            if fd is not None:
                os.close(fd)
