# SPDX-License-Identifier: Apache-2.0
"""Part of hook apply: makes the driver's files in a farm view visible to the container's programs.

The spec has mounted the view. The hook adds what programs look for: entries in ld.so.cache, a
drop-in for a later ldconfig, links in the library folder and in /usr/bin, files at fixed paths. A
file of the image at a fixed path is covered by a mount of the view's file.
"""

from __future__ import annotations

from nvct.container.rootfs import linker, view_cache, view_links
from nvct.container.rootfs.changes import Changes
from nvct.container.rootfs.libraries import MountTargets
from nvct.errors import HostError, LdCacheError, UnsafePathError
from nvct.linux.constants import S_IFDIR, S_IFLNK, S_IFMT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.container.cdi_hook.context import Context
    from nvct.container.plan.model import View
    from nvct.linux.root import Root


def cover_files(context: Context, view: View) -> None:
    """Mount files of the view over files of the image that have their fixed path.

    Raises:
        HostError: the view is not there, or mounting failed.
        UnsafePathError: the image has a directory at the path.
    """
    root = context.mounts()
    _check(root, view)
    covered = [pair for pair in view["files"] if _is_file(root, pair[1])]
    if covered:
        from nvct.container.cdi_hook import mount_over

        for path, target in covered:
            mount_over.mount(context.kernel, root, f"{view['mount_point']}/{path}", target)


def _check(root: Root, view: View) -> None:
    """Check that the view is mounted.

    Raises:
        HostError: one of its files is missing.
    """
    for path in (*view["libraries"], *view["links"])[:1]:
        if not root.is_file(f"{view['mount_point']}/{path}"):
            raise HostError(
                f"the view of the driver at {view['mount_point']} has no {path}",
                hint="run nvct refresh and nvct publish on the host",
            )


def _is_file(root: Root, path: str) -> bool:
    """Report whether the image has a file with content at a path.

    Raises:
        UnsafePathError: it is a directory.
    """
    status = root.lstat(path)
    if status is None or status.st_mode & S_IFMT == S_IFLNK:
        return False
    if status.st_mode & S_IFMT == S_IFDIR:
        raise UnsafePathError(f"the image has a directory {path}, where the driver has a file")
    return bool(status.st_size)


def run(context: Context, view: View, compat: str) -> None:
    """Add the linker's entries and the links.

    Args:
        context: of the hook.
        view: what the spec mounts.
        compat: folder of the image's CUDA compatibility libraries, which come first, or "".

    Raises:
        NvctError: a file of the container is damaged or not safe.
        OSError: the root cannot be written to.
    """
    root = context.root()
    changes = Changes(root)
    _add_search_paths(context, changes, view, compat)
    _add_links(context, changes, view)
    changes.write(context.kernel)


def _add_search_paths(context: Context, changes: Changes, view: View, compat: str) -> None:
    root, mount_point = changes.root, view["mount_point"]
    musl = linker.musl_path(root)
    if musl:
        linker.add_musl(changes, musl, [f"{mount_point}/lib64"])
    if not linker.has_glibc(root):
        return
    names = {"lib64": [], "lib": []}  # type: dict[str, list[tuple[str, str]]]
    for path in view["libraries"]:
        folder = path.partition("/")[0]
        names.setdefault(folder, []).append((path.rpartition("/")[2], f"{mount_point}/{path}"))
    try:
        view_cache.add(
            changes, mount_point, names["lib64"], names["lib"] or None, compat, context.warn
        )
    except LdCacheError as error:
        context.warn(f"{error.message}; it is left as it is, run ldconfig in the container")


def _add_links(context: Context, changes: Changes, view: View) -> None:
    """Add the links, and remove those of an earlier start that the container should not have.

    Nothing is written into a volume: it has other users.
    """
    root, mount_point = changes.root, view["mount_point"]
    paths = (*view["libraries"], *view["links"])
    wanted = [[view_links.in_container(path), path] for path in paths]
    # Programs with a linker of their own (/nix/store) look where the host has its libraries.
    is_usual = linker.has_loader(root) and linker.library_folder(root)
    links = view_links.placed(root, wanted, "" if is_usual else view["folder"])
    links |= {where: path for path, where in view["files"]}
    volumes = _volumes(context, {where.rpartition("/")[0] for where in links})
    made, is_again = changes.link_all(
        (f"{mount_point}/{path}", where)
        for where, path in sorted(links.items())
        if where.rpartition("/")[0] not in volumes
    )
    if is_again:
        folders = {where.rpartition("/")[0] for _, where in view["files"]}
        changes.removed += view_links.left_behind(root, sorted(folders - volumes), made)


def _volumes(context: Context, folders: set[str]) -> set[str]:
    """Return the folders that are at or below a mount, with a warning for each."""
    root = context.root()
    mounts = MountTargets.read(root, context.proc_root)
    volumes = {folder for folder in folders if _is_covered(root, mounts, folder)}
    for folder in sorted(volumes):
        context.warn(f"{folder} is a mount in the container: no link to the driver is made there")
    return volumes


def _is_covered(root: Root, mounts: MountTargets, folder: str) -> bool:
    try:
        return mounts.is_covered(root.real(folder or "/"))
    except UnsafePathError:
        return False  # no link can be made there
