# SPDX-License-Identifier: Apache-2.0
"""Hooks of the container's dynamic linker: update-ldcache and, before it, enable-cuda-compat.

The first adds libraries to the linker's cache. Neither ldconfig nor a program of the image runs:
ld.so.cache is edited as data, with our libraries before others of the same name. With a drop-in,
ldconfig in the container keeps them. A cache of an unknown format stays; the drop-in is written,
with a warning. musl has no cache; its path file gets the folders. An image without a dynamic
linker is not changed.
"""

from __future__ import annotations

import posix

from nvct.container.plan import hook_command
from nvct.container.rootfs import linker
from nvct.container.rootfs.changes import Changes
from nvct.container.rootfs.libraries import MountTargets, scan
from nvct.container.rootfs.linker import CACHE
from nvct.container.rootfs.linker_state import LinkerState
from nvct.errors import LdCacheError
from nvct.linux import ldcache

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.container.cdi_hook.context import Context
    from nvct.container.rootfs.libraries import Libraries
    from nvct.linux.root import Root


def run(context: Context) -> None:
    """Update the cache for folders from the flags and from enable-cuda-compat.

    Raises NvctError.
    """
    folders = context.options.values("folder")
    root = context.root()
    update(context, folders, linker.read_conf(root).compat)


def update(context: Context, folders: list[str], compat: list[str]) -> None:
    """Add the libraries of folders, those of compat first. Raises NvctError."""
    changes = Changes(context.root())
    musl = linker.musl_path(changes.root)
    if musl:
        linker.add_musl(changes, musl, folders)
    if linker.has_glibc(changes.root):
        _add_glibc(context, changes, folders, compat)
    changes.write(context.kernel)


def _add_glibc(context: Context, changes: Changes, folders: list[str], compat: list[str]) -> None:
    root = changes.root
    state = LinkerState(root)
    if state.problem:
        context.warn(f"{state.problem}; the cache is left as it is, run ldconfig in the container")
    mounts = MountTargets.read(root, context.proc_root)
    default = state.default_folders()
    libraries: Libraries = {}
    kept: list[str] = []
    seen: set[str] = set()
    for folder in [*compat, *folders]:
        resolved = root.resolve(folder)
        if resolved is None or resolved in seen or not linker.is_folder(root, resolved):
            continue
        seen.add(resolved)
        shown = default.get(resolved, folder.rstrip("/"))
        for machine, pairs in scan(root, resolved, mounts, context.warn, shown).items():
            libraries.setdefault(machine, []).extend(pairs)
        if folder not in compat and resolved not in default:
            kept.append(shown)
    view = [f for f in state.earlier.view if _is_mounted(root, mounts, f)]
    state.add_to(changes, libraries, compat or (state.earlier.compat if view else []), kept, view)


def _is_mounted(root: Root, mounts: MountTargets, folder: str) -> bool:
    """Report whether a folder of a view is mounted: a restarted container may have another layout.

    Mounts of single files in the folder, into which links of an earlier start lead, do not count.
    """
    resolved = root.resolve(folder)
    return resolved is not None and mounts.is_covered(resolved)


def enable_cuda_compat(context: Context) -> None:
    """Prefer the image's newer libcuda if the driver supports it, by `rootfs.compat`.

    Its folder is put first in the drop-in, which the next update-ldcache reads. Raises NvctError.
    """
    versions = hook_command.work(context.options)["compat"]
    if not versions:
        return
    from nvct.container.rootfs import compat

    root = context.root()
    old = linker.read_conf(root)
    folder = compat.choose(root, versions, context.warn)
    folders = [folder] if folder else []
    if folders == old.compat:
        return
    changes = Changes(root)
    removed = [f for f in old.compat if f not in folders]
    if removed:
        _forget(context, changes, removed)
    linker.add_conf(changes, linker.LinkerConf(folders, old.folders, old.view))
    changes.write(context.kernel)


def _forget(context: Context, changes: Changes, folders: list[str]) -> None:
    """Remove the entries of folders from the cache; NvctError if a file is damaged or not safe."""
    data = changes.root.read_file(CACHE, ldcache.LIMIT)
    if data is None:
        return
    try:
        new = ldcache.merge(data, (), machine=posix.uname().machine, drop_dirs=folders)
    except LdCacheError as error:
        context.warn(f"{error.message}; the cache is left as it is")
    else:
        changes.file(CACHE, data, new)
