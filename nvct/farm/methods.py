# SPDX-License-Identifier: Apache-2.0
"""The methods that put the driver's files into a view, cheapest first.

- own: the driver's own folder has the layout of a view; nothing is made.
- links: hard links. Only a trial shows whether they work: link() between two bind mounts of one
  file system fails with EXDEV although the device number is the same. Never for a driver on an
  overlay: link() copies the whole file up there.
- reflinks: copies that share the data (btrfs, XFS). Unlike links they survive a file that is
  overwritten in place.
- binds: each file is bind-mounted on an empty file of a tmpfs. Each of these mounts is read-only,
  nosuid and nodev, because a container's read-only mount of the view is not recursive. Small
  configuration files are copied: the kernel cannot bind a single file that has been replaced.
- copies: only from a view of binds whose driver was removed from the disk.

Contract: each method fills a folder that no other process uses, or raises and leaves nothing.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from nvct.errors import HostError
from nvct.farm.folder import Farm, mount_of, own_mounts
from nvct.farm.model import Method, ViewFile
from nvct.host.model import Link
from nvct.linux import constants as c
from nvct.linux import mountinfo

Transfer = Callable[[Farm, ViewFile, str], None]

COPY_LIMIT = 1 << 20
OWN_LIMIT = 4096
# A driver root with one of these is a whole system, not a folder of the driver alone.
SYSTEM_DIRS = frozenset({"usr", "etc", "proc", "sys", "dev", "run", "var", "root", "home", "tmp"})
S_ISUGID = stat.S_ISUID | stat.S_ISGID
STAGED = "nvct-farm:"
READ_ONLY = c.MS_REMOUNT | c.MS_BIND | c.MS_RDONLY | c.MS_NOSUID | c.MS_NODEV


class RefusedError(Exception):
    """A method that does not work here; the text is the reason."""


class ViewContent(NamedTuple):
    """The content of a view."""

    files: Sequence[ViewFile]
    links: Sequence[Link]


def fill(farm: Farm, folder: str, content: ViewContent, method: Method) -> None:
    """Fill a folder with a view's content by links, reflinks or copies. RefusedError, OSError."""
    try:
        options = mount_of(farm, folder).options
    except HostError as error:
        raise RefusedError(error.message) from error
    if "noexec" in options:
        raise RefusedError(f"{folder} is on a noexec mount: programs would not start")
    overlays: dict[str, bool] = {}
    for view_file in content.files:
        target = f"{folder}/{view_file.path}"
        _make_folders(farm, folder, view_file.path)
        source = os.path.dirname(view_file.file.host_path)
        if method == "links" and source not in overlays:
            overlays[source] = _is_on_overlay(farm, view_file.file.host_path)
        if method == "copies":
            _copy(farm, view_file, target)
        elif overlays.get(source):
            _copy_instead(farm, view_file, target, "it is on an overlay")
        else:
            try:
                TRANSFERS[method](farm, view_file, target)
            except OSError as error:
                _copy_instead(farm, view_file, target, str(error.strerror).lower())
    _make_links(farm, folder, content.links)


def _is_on_overlay(farm: Farm, path: str) -> bool:
    """Return whether link() would copy a file; true if the kernel does not report the mount."""
    try:
        return mount_of(farm, path).fstype == "overlay"
    except HostError:
        return True


def _copy_instead(farm: Farm, view_file: ViewFile, target: str, reason: str) -> None:
    """Copy a small configuration file, or refuse: /etc and /usr may be different file systems."""
    if not _is_small(view_file):
        raise RefusedError(f"{view_file.file.host_path}: {reason}")
    _copy(farm, view_file, target)


def _is_small(view_file: ViewFile) -> bool:
    path = view_file.file.host_path
    return view_file.file.kind == "config" and os.lstat(path).st_size <= COPY_LIMIT


def _reflink(farm: Farm, view_file: ViewFile, target: str) -> None:
    with _opened(farm, view_file, target) as (source, copy):
        try:
            farm.kernel.clone_file(source, copy)
        except BaseException:
            farm.kernel.unlink(target)
            raise


def _copy(farm: Farm, view_file: ViewFile, target: str) -> None:
    with _opened(farm, view_file, target) as (source, copy):
        while data := farm.kernel.read(source, COPY_LIMIT):
            while data:
                data = data[farm.kernel.write(copy, data) :]


TRANSFERS: dict[Method, Transfer] = {
    "links": lambda farm, view_file, target: farm.kernel.link(view_file.file.host_path, target),
    "reflinks": _reflink,
}


@contextmanager
def _opened(farm: Farm, view_file: ViewFile, target: str) -> Iterator[tuple[int, int]]:
    """Yield descriptors of a file and of its copy, which is new and still empty."""
    with ExitStack() as opened:
        path, flags = view_file.file.host_path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
        source = farm.kernel.open(path, flags)
        opened.callback(farm.kernel.close, source)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        copy = farm.kernel.open(target, flags, 0o600)
        opened.callback(farm.kernel.close, copy)
        farm.kernel.fchmod(copy, os.fstat(source).st_mode & 0o755 | 0o444)
        yield source, copy


def bind(farm: Farm, folder: str, final: str, content: ViewContent, name: str) -> None:
    """Bind-mount files on a tmpfs, and this on the final path; RefusedError if not permitted."""
    kernel = farm.kernel
    try:
        kernel.mount(STAGED + name, folder, "tmpfs", c.MS_NOSUID | c.MS_NODEV, "mode=0755")
    except PermissionError as error:
        raise RefusedError(f"this process cannot mount ({error.strerror})") from error
    try:
        kernel.mount(None, folder, None, c.MS_PRIVATE)
        bound = []
        for view_file in content.files:
            target = f"{folder}/{view_file.path}"
            _make_folders(farm, folder, view_file.path)
            if _is_small(view_file):
                _copy(farm, view_file, target)
            else:
                kernel.mknod(target, c.S_IFREG | 0o444)
                bound.append((view_file.file.host_path, target))
        _make_links(farm, folder, content.links)
        for source, target in bound:
            kernel.mount(source, target, None, c.MS_BIND)
            kernel.mount(None, target, None, c.MS_PRIVATE)
            kernel.mount(None, target, None, READ_ONLY)
        kernel.mount(None, folder, None, READ_ONLY)
        try:
            kernel.mkdir(final, 0o755)
        except FileExistsError:
            pass
        # A mount below a shared one cannot be moved; a recursive bind is atomic as well.
        kernel.mount(folder, final, None, c.MS_BIND | c.MS_REC)
        kernel.mount(None, final, None, c.MS_PRIVATE | c.MS_REC)
    finally:
        kernel.umount2(folder, c.MNT_DETACH)


def _make_folders(farm: Farm, folder: str, path: str) -> None:
    """Make the folders above a path of the view, mode 0755 whatever the umask."""
    parts = path.split("/")[:-1]
    for depth in range(len(parts)):
        path_so_far = "/".join([folder, *parts[: depth + 1]])
        try:
            farm.kernel.mkdir(path_so_far, 0o755)
        except FileExistsError:
            continue
        farm.kernel.chmod(path_so_far, 0o755)


def _make_links(farm: Farm, folder: str, links: Sequence[Link]) -> None:
    for link in links:
        _make_folders(farm, folder, link.path)
        farm.kernel.symlink(link.target, f"{folder}/{link.path}")


def in_own_folder(farm: Farm, root: str, content: ViewContent) -> None:
    """Check that the driver root is a folder with a view's layout; RefusedError says why not."""
    files = [view_file.file.host_path for view_file in content.files]
    if root == "/" or not all(path.startswith(root + "/") for path in files):
        raise RefusedError("the driver has no folder of its own")
    try:
        _check_own(farm, root)
    except (OSError, HostError) as error:
        raise RefusedError(str(error)) from error
    for view_file in content.files:
        if view_file.file.kind in ("library", "binary") and (
            view_file.file.host_path != f"{root}/{view_file.path}"
        ):
            raise RefusedError(f"{view_file.file.host_path} is not where a view has it")
    for link in content.links:
        target = os.path.join(os.path.dirname(f"{root}/{link.path}"), link.target)
        if os.path.realpath(f"{root}/{link.path}") != os.path.realpath(target):
            raise RefusedError(f"{root}/{link.path} is missing")


def _check_own(farm: Farm, root: str) -> None:
    if system_dirs := SYSTEM_DIRS & set(os.listdir(root)):
        raise RefusedError(f"{root} is a whole system: it has {min(system_dirs)}")
    if "noexec" in mount_of(farm, root).options:
        raise RefusedError(f"{root} is on a noexec mount")
    if any(t.startswith(root + "/") for t in mountinfo.targets(own_mounts(farm))):
        raise RefusedError(f"something is mounted below {root}")
    count, trusted = 0, farm.trusted()
    for folder, folders, files in os.walk(root, onerror=_raise):
        for name in ("", *folders, *files):
            path = os.path.join(folder, name) if name else folder
            status = os.lstat(path)
            count += 1
            if count > OWN_LIMIT:
                raise RefusedError(f"{root} has more than {OWN_LIMIT} files")
            if status.st_uid not in trusted:
                raise RefusedError(f"{path} belongs to uid {status.st_uid}")
            if stat.S_ISLNK(status.st_mode):
                continue
            if status.st_mode & 0o022 or (
                stat.S_ISREG(status.st_mode) and status.st_mode & S_ISUGID
            ):
                raise RefusedError(f"{path} has mode {stat.S_IMODE(status.st_mode):o}")


def _raise(error: OSError) -> None:
    raise error
