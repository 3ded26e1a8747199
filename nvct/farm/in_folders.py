# SPDX-License-Identifier: Apache-2.0
"""Puts the driver's libraries into folders that an image's loader searches without ld.so.cache.

An engine that runs no hooks makes no links and no ld.so.cache. So each library is mounted under
its own name and those of its links, in folders that the image's C library has built in.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

from nvct.errors import UsageError
from nvct.farm.model import links, view_files
from nvct.host.discover import TRIPLETS as COMPAT_TRIPLETS
from nvct.host.driver.libraries import TRIPLETS
from nvct.host.model import DriverFile, Inventory

CHOICES = {"debian": ("debian",), "redhat": ("redhat",), "both": ("debian", "redhat")}
"""Value of --no-hooks → distributions whose folders get the libraries."""
MODES = ("nvml", "management")
"""Modes of discovery whose libraries can be in such folders."""


def without_links(inventory: Inventory, choice: str) -> Inventory:
    """Return an inventory whose libraries need neither links nor a cache.

    All files except libraries keep their paths. UsageError in a mode that is not one of `MODES`.
    """
    if inventory.mode not in MODES:
        raise UsageError(
            f"--no-hooks does not support mode {inventory.mode}",
            hint="--disable-hook=all omits hooks, and with them links and ld.so.cache",
        )
    files = [file for file in inventory.files if file.kind != "library"]
    for path, library in _names(inventory.files):
        files += [
            replace(library, container_path=place, links=())
            for place in dict.fromkeys(_place(whose, path, library) for whose in CHOICES[choice])
        ]
    return replace(inventory, files=tuple(files), links=())


def _names(files: tuple[DriverFile, ...]) -> Iterator[tuple[str, DriverFile]]:
    """Yield the paths of libraries and of their links in a view, and the library at each."""
    libraries = view_files(file for file in files if file.kind == "library")
    by_path = dict(libraries)
    targets = {
        link.path: os.path.normpath(os.path.join(os.path.dirname(link.path), link.target))
        for link in links(libraries)
    }
    yield from by_path.items()
    for path in targets:
        target = path
        for _ in targets:  # a link may lead to a link
            target = targets.get(target, target)
        if target in by_path:
            yield path, by_path[target]


def _place(whose: str, path: str, library: DriverFile) -> str:
    """Return the container path of the library at a path of a view.

    Debian's C library has its triplet built in, Red Hat's and SUSE's lib64 (`ld.so --help`).
    """
    base, _, rest = path.partition("/")
    triplet = {**TRIPLETS, **COMPAT_TRIPLETS}.get(library.machine)
    if triplet is None or base == "share":  # machine unknown; a second library of that name
        return library.container_path
    if whose == "debian":
        return f"/usr/lib/{triplet}/{rest}"
    return f"/usr/lib64/{rest}" if library.machine in TRIPLETS else f"/usr/lib/{rest}"
