# SPDX-License-Identifier: Apache-2.0
"""The hook entries of a CDI spec.

Contract: one entry does all the work in a container, and every entry has an environment of its
own. Without one, a runtime starts the hook with the container's, LD_PRELOAD included
(CVE-2025-23266).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any, TypeAlias

from nvct.container.plan import hook_command, model
from nvct.container.plan.model import no_work
from nvct.errors import UsageError
from nvct.host.model import DriverFile, Inventory, Link
from nvct.paths import CTK_PROGRAM

Hook: TypeAlias = dict[str, Any]

ENV = ("NVIDIA_CTK_DEBUG=false",)
NAMES = (
    "create-symlinks",
    "enable-cuda-compat",
    "update-ldcache",
    "disable-device-node-modification",
    "update-application-profile",
    "chmod",
)
OFF_BY_DEFAULT = ("chmod",)
APPLY = "apply"
"""The hook that does all of a container's work in one process (nvct.container.cdi_hook.apply)."""


def enabled_names(disabled: Sequence[str], enabled: Sequence[str]) -> frozenset[str]:
    """Return the hooks to run; `enabled` overrides `disabled`. UsageError if one is unknown."""
    for name in (*disabled, *enabled):
        if name not in NAMES and not (name == "all" and name not in enabled):
            raise UsageError(
                f"hook {name!r} is unknown", hint="see nvidia-cdi-hook --help for their names"
            )
    off = set(NAMES) if "all" in disabled else {*OFF_BY_DEFAULT, *disabled}
    return frozenset(name for name in NAMES if name not in off or name in enabled)


def common_work(
    inventory: Inventory, names: frozenset[str], files: Iterable[DriverFile]
) -> model.Work:
    """Return the hook's work in every container that gets these files."""
    work = work_of(names, files, inventory.links)
    if "enable-cuda-compat" in names:
        work["compat"] = _compat(inventory)
    work["params"] = "disable-device-node-modification" in names
    work["profile"] = "update-application-profile" in names
    return work


def work_of(
    names: frozenset[str], files: Iterable[DriverFile], links: Iterable[Link] = ()
) -> model.Work:
    """Return the hook's work in a container for these files and links."""
    files = list(files)
    work = no_work()
    if "create-symlinks" in names:
        links = {*links, *(link for file in files for link in file.links)}
        work["links"] = sorted([[link.target, link.path] for link in links], key=itemgetter(1, 0))
    if "update-ldcache" in names:
        folders = {os.path.dirname(f.container_path) for f in files if f.kind == "library"}
        work["folders"] = sorted(folders)
    return work


def _compat(inventory: Inventory) -> model.Compat:
    """Return what the hook compares to choose between the driver's and an image's CUDA libraries.

    Tegra has no driver version, so the hook compares the CUDA version there; if that is unknown,
    the driver's libraries are used.
    """
    if inventory.mode != "csv":
        version = inventory.driver_version
        return {"driver": version} if version else {}
    if not inventory.cuda_version:
        return {}
    return {"cuda": inventory.cuda_version, "folder": inventory.compat_container_root}


def program(hook_path: str) -> model.Program:
    """Return the hook program that does the work in a container's root."""
    return {"path": hook_path, "args": [*_head(hook_path), APPLY], "env": list(ENV)}


def apply_hook(hook_path: str, work: model.Work, view: model.View | None = None) -> list[Hook]:
    """Return the hook entry for some work and a view, [] if there is nothing to do."""
    args = hook_command.flags_of_work(work)
    args += hook_command.flags_of_view(view) if view else []
    return [_entry(hook_path, APPLY, args)] if args else []


def chmod_hook(hook_path: str, names: frozenset[str], directories: Sequence[str]) -> list[Hook]:
    """Return the entry that makes the directories of a device's nodes accessible to everyone."""
    if not directories or "chmod" not in names:
        return []
    args = ["--mode", "755", *(part for path in directories for part in ("--path", path))]
    return [_entry(hook_path, "chmod", args)]


def _entry(hook_path: str, name: str, args: list[str]) -> Hook:
    return {
        "hookName": hook_command.POINT,
        "path": hook_path,
        "args": [*_head(hook_path), name, *args],
        "env": list(ENV),
    }


def _head(hook_path: str) -> list[str]:
    """Return argv before a hook's name; in nvidia-ctk, hooks are subcommands."""
    name = os.path.basename(hook_path)
    return [name, "hook"] if name == CTK_PROGRAM else [name]
