# SPDX-License-Identifier: Apache-2.0
"""How the dynamic linker of a container finds what container edits mount.

Cold. The names are those that the hook finds in a container (nvct.rootfs.libraries): the SONAME,
and `libX.so` where such a link is made. Known beforehand, they need no look at the mounted files.
"""

from __future__ import annotations

import itertools
import os

from nvct.errors import ElfError
from nvct.linux import elf
from nvct.rootfs.libraries import is_library, order

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from nvct.cdi.types import ContainerEdits


class Hooks:
    """What the hooks of some edits do for libraries.

    Attributes:
        folders: that the dynamic linker is told of.
        links: by folder, what each link in it leads to.
    """

    def __init__(self, edits: Iterable[ContainerEdits]) -> None:
        """Read the arguments of all hooks."""
        self.folders: set[str] = set()
        self.links: dict[str, dict[str, str]] = {}
        for args in [hook.get("args", []) for one in edits for hook in one.get("hooks", ())]:
            for option, value in itertools.pairwise(args):
                if option == "--folder":
                    self.folders.add(value)
                elif option == "--link":
                    target, _, path = value.partition("::")
                    folder, name = os.path.split(path)
                    self.links.setdefault(folder, {})[name] = target

    def leading_to(self, folder: str, name: str) -> list[str]:
        """Return the links beside a file that lead to it, those to links as well."""
        found: list[str] = []
        wanted = [name]
        while wanted:
            target = wanted.pop()
            new = [n for n, t in self.links.get(folder, {}).items() if t == target]
            wanted += [n for n in new if n not in found]
            found += [n for n in new if n not in found]
        return found


def entries(edits: ContainerEdits, hooks: Hooks) -> list[list[str]]:
    """Return (machine, name, path in the container) of what edits mount for the linker to find.

    Args:
        edits: of this host.
        hooks: of these edits, and of those that they come with.
    """
    found: dict[tuple[str, str, str], str] = {}
    for mount in edits.get("mounts", ()):
        folder, name = os.path.split(mount["containerPath"])
        read = _read(mount["hostPath"]) if folder in hooks.folders and is_library(name) else None
        if read is None:
            continue
        soname, machine = os.path.basename(read[0]) or name, read[1]
        beside = hooks.leading_to(folder, name)
        key = machine, folder, soname
        if soname == name or soname in beside:
            found[key] = soname
        elif key not in found or order(found[key]) <= order(name):
            found[key] = name
        for link in beside:
            if link.endswith(".so") and soname.startswith(link):
                found[machine, folder, link] = link
    return [
        [machine, name, f"{folder}/{file}"]
        for (machine, folder, name), file in sorted(found.items())
    ]


def _read(path: str) -> tuple[str, str] | None:
    """Return (SONAME or "", machine), None for what is no library."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None  # it is missing, which is said elsewhere
    try:
        file = elf.read(fd)
        return file.soname or "", file.machine
    except (ElfError, OSError):
        return None
    finally:
        os.close(fd)
