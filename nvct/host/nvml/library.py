# SPDX-License-Identifier: Apache-2.0
"""Finds the driver's NVML."""

from __future__ import annotations

import posix
from dataclasses import replace
from typing import NamedTuple

from nvct.errors import DriverNotFoundError, HostError
from nvct.host.driver import libraries
from nvct.host.driver.tree import Tree
from nvct.host.model import Findings
from nvct.host.roots import Roots

NVML = "libnvidia-ml.so.1"


class Library(NamedTuple):
    """NVML: its path, and the root in which it was found."""

    path: str
    root: str


def nvml_library(roots: Roots) -> str:
    """Return the path of the driver's NVML in the driver root, else in this container's root.

    DriverNotFoundError if there is none.
    """
    return find(roots).path


def find(roots: Roots) -> Library:
    """Find the driver's NVML as `nvml_library` does; DriverNotFoundError if there is none."""
    for root in dict.fromkeys((roots.driver_root, "/")):
        try:
            with Tree(root) as tree:
                at_root = replace(roots, driver_root=root)
                machine = posix.uname().machine
                search = libraries.Search(tree, at_root, machine, Findings())
                path = libraries.find_one(search, NVML)
        except HostError:  # no such folder
            continue
        if path is not None:
            return Library(path, root)
    searched = "/" if roots.driver_root == "/" else f"{roots.driver_root} or /"
    raise DriverNotFoundError(
        f"no {NVML} in {searched}",
        hint="install NVIDIA's driver, or name its root: `root` of [nvidia-container-cli] in "
        "config.toml, DRIVER_ROOT_CTR_PATH for the agent",
    )
