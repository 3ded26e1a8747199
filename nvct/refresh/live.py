# SPDX-License-Identifier: Apache-2.0
"""The host that config.toml describes, looked at as it is now.

Cold, and apart from `compiled`: writing a spec needs no reader of YAML.
"""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

from nvct import paths
from nvct.host import modes, nodes
from nvct.host.roots import Roots
from nvct.host.wanted import Wanted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.config.model import Config
    from nvct.host.model import Inventory


def roots_of(settings: Config) -> Roots:
    """Return where config.toml says that the parts of the host are."""
    return Roots(
        driver_root=settings.driver_root,
        dev_root=settings.dev_root or None,
        proc=settings.proc_root,
        sys=settings.sys_root,
    )


def look(settings: Config, wanted: Wanted | None = None, mode: str = "auto") -> Inventory:
    """Return the inventory of the host that config.toml describes.

    Raises:
        DriverNotFoundError: no driver is installed or loaded.
        UsageError: there is no such mode.
    """
    roots = roots_of(settings)
    wanted = wanted or Wanted()
    if settings.plain_nodes:
        wanted = replace(wanted, stat_node=nodes.named_nodes(roots))
    return modes.find(mode, roots, wanted)


def hook_path(settings: Config) -> str:
    """Return the hook program of generated specs: configured, beside this interpreter, on PATH."""
    if settings.hook_path != paths.HOOK_PATH:
        return settings.hook_path
    beside = Path(sys.executable).parent / paths.HOOK_PROGRAM
    if os.access(beside, os.X_OK):
        return str(beside)
    return shutil.which(paths.HOOK_PROGRAM) or paths.HOOK_PATH
