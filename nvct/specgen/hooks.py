# SPDX-License-Identifier: Apache-2.0
"""The hook entries of a CDI spec.

Contract: one entry does all of a container's work; every entry has an environment of its own.
A hook with an empty environment gets the container's from the runtime, LD_PRELOAD included
(CVE-2025-23266 and its like).
"""

from __future__ import annotations

import os

from nvct.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any, TypeAlias

    from nvct.host.model import DriverFile, Inventory, Link

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


def enabled_names(disabled: Sequence[str], enabled: Sequence[str]) -> frozenset[str]:
    """Return the hooks to emit; one that is enabled by name wins over `disabled`.

    Raises:
        UsageError: a name is unknown, or "all" is to be enabled.
    """
    for name in (*disabled, *enabled):
        if name not in NAMES and not (name == "all" and name not in enabled):
            raise UsageError(
                f"hook {name!r} is unknown", hint="see nvidia-cdi-hook --help for their names"
            )
    off = set(NAMES) if "all" in disabled else {*OFF_BY_DEFAULT, *disabled}
    return frozenset(name for name in NAMES if name not in off or name in enabled)


def links_of(files: Iterable[DriverFile], links: Iterable[Link]) -> list[Link]:
    """Return the links of files, and others, each once and sorted."""
    every = {*links, *(link for file in files for link in file.links)}
    return sorted(every, key=lambda link: (link.path, link.target))


def folders_of(files: Iterable[DriverFile]) -> list[str]:
    """Return the directories whose libraries the dynamic linker has to find."""
    return sorted({os.path.dirname(f.container_path) for f in files if f.kind == "library"})


def compat_args(inventory: Inventory) -> list[str]:
    """Return what the choice between driver and image's CUDA compatibility libraries needs.

    A Tegra has no driver version to compare with, so that the CUDA version says what the driver
    can do; where it is not known there is nothing to choose by.
    """
    if inventory.mode != "csv":
        version = inventory.driver_version
        return [f"--host-driver-version={version}"] if version else []
    if not inventory.cuda_version:
        return []
    args = [f"--host-cuda-version={inventory.cuda_version}"]
    if inventory.compat_container_root:
        args.append(f"--cuda-compat-container-root={inventory.compat_container_root}")
    return args


def apply_hook(
    hook_path: str,
    wanted: frozenset[str],
    links: Sequence[Link],
    folders: Sequence[str],
    compat: Sequence[str],
) -> Hook | None:
    """Return the one entry for the common edits, None where there is nothing to do."""
    args = _links_and_folders(wanted, links, ())
    if "enable-cuda-compat" in wanted:
        args += compat
    args += _links_and_folders(wanted, (), folders)
    if "disable-device-node-modification" in wanted:
        args.append("--mask-params")
    if "update-application-profile" in wanted:
        args.append("--application-profile")
    return _entry(hook_path, "apply", args) if args else None


def device_hook(
    hook_path: str, wanted: frozenset[str], links: Sequence[Link], folders: Sequence[str]
) -> Hook | None:
    """Return the entry for what one device alone brings along, None where it is nothing."""
    args = _links_and_folders(wanted, links, folders)
    return _entry(hook_path, "apply", args) if args else None


def chmod_hook(hook_path: str, wanted: frozenset[str], directories: Sequence[str]) -> Hook | None:
    """Return the entry that opens the directories of a device's nodes to everyone."""
    if not directories or "chmod" not in wanted:
        return None
    args = ["--mode", "755", *(part for path in directories for part in ("--path", path))]
    return _entry(hook_path, "chmod", args)


def _links_and_folders(
    wanted: frozenset[str], links: Sequence[Link], folders: Sequence[str]
) -> list[str]:
    args: list[str] = []
    if "create-symlinks" in wanted:
        args += [part for link in links for part in ("--link", f"{link.target}::{link.path}")]
    if "update-ldcache" in wanted:
        args += [part for folder in folders for part in ("--folder", folder)]
    return args


def _entry(hook_path: str, name: str, args: list[str]) -> Hook:
    program = os.path.basename(hook_path)
    # As nvidia-container-toolkit: its hooks are subcommands of nvidia-ctk as well.
    head = [program, "hook"] if program == "nvidia-ctk" else [program]
    return {
        "hookName": "createContainer",
        "path": hook_path,
        "args": [*head, name, *args],
        "env": list(ENV),
    }
