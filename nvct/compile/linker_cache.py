# SPDX-License-Identifier: Apache-2.0
"""The ld.so.cache entries by which a container's dynamic linker finds the driver's libraries.

The names are those that the hook computes in a container (nvct.container.rootfs.libraries): the
SONAME, and `libX.so` if such a link is made. Computed in advance, they save a read of the mounted
files.
"""

from __future__ import annotations

import os

from nvct.container.rootfs.libraries import is_library, order

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from nvct.container.plan.model import Work
    from nvct.host.model import DriverFile


def entries(files: Iterable[DriverFile], work: Work) -> list[list[str]]:
    """Return (machine, name, container path) of each library.

    Args:
        files: of the driver, mounted one by one.
        work: the folders of libraries, and the links in them.
    """
    links: dict[str, dict[str, str]] = {}
    for target, path in work["links"]:
        folder, name = os.path.split(path)
        links.setdefault(folder, {})[name] = target
    names: dict[tuple[str, str, str], str] = {}
    for file in files:
        folder, name = os.path.split(file.container_path)
        if not file.machine or folder not in work["folders"] or not is_library(name):
            continue
        soname = os.path.basename(file.soname) or name
        beside = _leading_to(name, links.get(folder, {}))
        key = file.machine, folder, soname
        if soname == name or soname in beside:
            names[key] = soname
        elif key not in names or order(names[key]) <= order(name):
            names[key] = name
        for link in beside:
            if link.endswith(".so") and soname.startswith(link):
                names[file.machine, folder, link] = link
    return [
        [machine, name, f"{folder}/{file}"]
        for (machine, folder, name), file in sorted(names.items())
    ]


def _leading_to(name: str, links: dict[str, str]) -> list[str]:
    """Return the links in a folder that lead to a file, directly or through other links."""
    leading: list[str] = []
    queue = [name]
    while queue:
        target = queue.pop()
        new = [link for link, text in links.items() if text == target and link not in leading]
        queue += new
        leading += new
    return leading
