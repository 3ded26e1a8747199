# SPDX-License-Identifier: Apache-2.0
"""Part of hook apply: makes the driver's files in a farm view visible to the container's programs.

The spec has mounted the view. The hook adds what programs look for: entries in ld.so.cache, a
drop-in for a later ldconfig, links in the library folder and in /usr/bin, files at fixed paths. A
file of the image at a fixed path is covered by a mount of the view's file.
"""

from __future__ import annotations

import posix

from nvct.container.rootfs import libraries, linker, view_links
from nvct.container.rootfs.changes import Changes
from nvct.container.rootfs.libraries import MountTargets
from nvct.errors import HostError, LdCacheError, UnsafePathError
from nvct.linux.constants import S_IFDIR, S_IFMT, S_IFREG

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.container.cdi_hook.context import Context
    from nvct.container.plan.model import View
    from nvct.linux.root import Root


def cover_files(context: Context, view: View) -> None:
    """Mount files of the view over files of the image that have their fixed path.

    Raises HostError if the view is missing or mounting fails, and UnsafePathError if the image has
    a directory at the path.
    """
    root = context.mounts()
    _check(root, view)
    for path, target in view["files"]:
        fd = root.path_fd(target, follow=False)
        if fd is None:
            continue
        try:
            if _is_to_cover(context, fd, target):
                from nvct.container.cdi_hook import mount_over

                source = f"{view['mount_point']}/{path}"
                mount_over.mount(context.kernel, root, source, fd, target)
        finally:
            posix.close(fd)


def _check(root: Root, view: View) -> None:
    for path in (*view["libraries"], *view["links"])[:1]:
        if not root.is_file(f"{view['mount_point']}/{path}"):
            raise HostError(
                f"the view of the driver at {view['mount_point']} has no {path}",
                hint="run nvct refresh and nvct publish on the host",
            )


def _is_to_cover(context: Context, fd: int, path: str) -> bool:
    """Report whether a descriptor is a file of the image with content.

    A mount over a file of a volume would be seen wherever the volume is, on the host, too.
    """
    status = posix.fstat(fd)
    kind = status.st_mode & S_IFMT
    if kind not in (S_IFREG, S_IFDIR) or not status.st_size:
        return False
    if context.kernel.mount_id(fd) != context.kernel.mount_id(context.mounts().fd):
        context.warn(f"{path} is in a mount of the container: the driver's file is not put there")
        return False
    if kind == S_IFDIR:
        raise UnsafePathError(f"the image has a directory {path}, where the driver has a file")
    return True


def run(context: Context, view: View, compat: str) -> None:
    """Add the linker's entries and the links; NvctError, OSError if the root is not writable."""
    root = context.root()
    changes = Changes(root)
    _add_search_paths(context, changes, view, compat)
    _add_links(changes, view)
    libraries.leave_mounts(changes, MountTargets.of(root, context.proc_root), context.warn)
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
        view_links.add_cache(
            changes, mount_point, names["lib64"], names["lib"] or None, compat, context.warn
        )
    except LdCacheError as error:
        context.warn(f"{error.message}; the cache is left as it is, run ldconfig in the container")


def _add_links(changes: Changes, view: View) -> None:
    """Add the links, and remove those of an earlier start that the container should not have."""
    root, mount_point = changes.root, view["mount_point"]
    paths = (*view["libraries"], *view["links"])
    wanted = [[view_links.in_container(path), path] for path in paths]
    # Programs with a linker of their own (/nix/store) look where the host has its libraries.
    is_usual = linker.has_loader(root) and linker.library_folder(root)
    links = view_links.placed(root, wanted, "" if is_usual else view["folder"])
    links |= {where: path for path, where in view["files"]}
    made, is_again = changes.link_all(
        (f"{mount_point}/{path}", where) for where, path in sorted(links.items())
    )
    if is_again:
        folders = {where.rpartition("/")[0] for _, where in view["files"]}
        changes.removed += view_links.left_behind(root, sorted(folders), made)
