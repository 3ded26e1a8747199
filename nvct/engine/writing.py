# SPDX-License-Identifier: Apache-2.0
"""Reads, writes and removes the file, link or device node at a path.

Contract: `put` is atomic. A reader sees the old state or the new one, and a killed `put` leaves at
most one `.nvct-*` file.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial

from nvct.engine.model import data_of, text_of
from nvct.errors import EngineError, HostError, OSErrorsAs
from nvct.linux import files
from nvct.linux.folders import make_folders, missing_folders
from nvct.linux.kernel import Kernel

DROP_IN = "99-nvidia."
LINK_LIMIT = 40  # as the kernel's
NOT_HERE = (errno.EXDEV, errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT)
"""Errors of a rename across mounts, and of O_TMPFILE on a file system that does not have it."""
NEW_MODE = 0o644
HINTS = {
    errno.ENOENT: "its folder, or the target of a link in the path, is missing",
    errno.EROFS: "the file system is read-only: name a file with nvct runtime configure --config",
    errno.EBUSY: "it is a mount point of its own: mount its folder instead",
    errno.ENOSPC: "the file system is full",
    errno.EDQUOT: "the quota is used up",
    errno.EACCES: "run it as root, or choose your own file with nvct runtime configure --config",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PathState:
    """The state of a path: a file, link or device node with its content and owner, or nothing."""

    mode: int = 0  # type and permissions as in st_mode; 0 if nothing is there
    uid: int = 0
    gid: int = 0
    rdev: int = 0  # the numbers of a device node
    text: str = ""  # a file's content, a link's target; bytes that are not UTF-8 are surrogates

    def __post_init__(self) -> None:
        """Refuse values that only a damaged journal holds: ValueError."""
        for number in (self.mode, self.uid, self.gid, self.rdev):
            if number < 0:
                raise ValueError(f"{number} is negative")
        data_of(self.text)  # UnicodeEncodeError is a ValueError

    @property
    def data(self) -> bytes:
        """The text as bytes."""
        return data_of(self.text)

    @property
    def content(self) -> bytes | None:
        """The bytes of a file; None if nothing is there."""
        return self.data if self.mode else None

    @property
    def is_node(self) -> bool:
        """Whether it is the node of a character device."""
        return stat.S_ISCHR(self.mode)

    @property
    def is_file(self) -> bool:
        """Whether it is a regular file."""
        return stat.S_ISREG(self.mode)

    def is_like(self, other: PathState) -> bool:
        """Report whether both are the same; for files only the content counts, not the owner."""
        if self.is_file and other.is_file:
            return self.text == other.text
        return self == other

    def with_content(self, data: bytes | None) -> PathState:
        """Return this file with other bytes; ABSENT for None."""
        return ABSENT if data is None else replace(self, text=text_of(data))


ABSENT = PathState()


def state_of(path: str) -> PathState:
    """Return the state of a path; links are not followed.

    Raises HostError if it cannot be read, and DocumentError if it is a file of more than 64 MiB.
    """
    data = b""
    with OSErrorsAs(HostError, f"{path} cannot be read"):
        status = files.lstat_or_none(path, None)
        if status is None:
            return ABSENT
        if stat.S_ISLNK(status.st_mode):
            data = os.fsencode(os.readlink(path))
        elif stat.S_ISREG(status.st_mode):
            data = files.read_bytes(path)
    return PathState(
        mode=status.st_mode, uid=status.st_uid, gid=status.st_gid, rdev=status.st_rdev,
        text=text_of(data),
    )  # fmt: skip


def new_file(path: str) -> PathState:
    """Return an empty file with mode and owner of the file at a path, or those of a new file."""
    try:
        status = os.stat(path)
    except OSError:
        return PathState(mode=stat.S_IFREG | NEW_MODE, uid=os.geteuid(), gid=os.getegid())
    mode = stat.S_IFREG | stat.S_IMODE(status.st_mode)
    return PathState(mode=mode, uid=status.st_uid, gid=status.st_gid)


def identity(path: str) -> str:
    """Return inode and change time: a later node or link with the same name differs in them."""
    status = files.lstat_or_none(path, None)
    return f"{status.st_ino}:{status.st_ctime_ns}" if status else ""


def put(path: str, state: PathState, kernel: Kernel, *, follow: bool = False) -> None:
    """Write or remove what is at a path, so that it has this state; an OSError changes nothing.

    With `follow`, links stay, and an existing file keeps its mode and owner, which are the
    admin's.
    """
    if state == ABSENT:
        # A link stays and its target is removed, except in a folder of drop-ins: engines do not
        # start with a broken link there.
        stays = follow and not os.path.dirname(path).endswith(".d")
        remove(target(path) if stays else path, kernel)
    elif follow:
        new = not os.path.exists(path)
        write_engine_file(path, state.data, stat.S_IMODE(state.mode) if new else None, kernel)
        status = os.stat(path)
        if new and (status.st_uid, status.st_gid) != (state.uid, state.gid):
            kernel.lchown(path, state.uid, state.gid)
    else:
        folder, _ = files.split(path)
        move_in(folder, path, lambda fd: _make_aside(fd, state, kernel), kernel)


def remove(path: str, kernel: Kernel) -> None:
    """Remove a file if it exists, and wait until the disk has the change. Raises OSError."""
    folder, name = files.split(path)
    with opened(folder, kernel) as dir_fd:
        try:
            kernel.unlink(name, dir_fd=dir_fd)
        except FileNotFoundError:
            return
        except OSError as error:
            raise OSError(error.errno, error.strerror, path) from error
        kernel.fsync(dir_fd)


def _make_aside(dir_fd: int, state: PathState, kernel: Kernel) -> str:
    permissions, owner = stat.S_IMODE(state.mode), (state.uid, state.gid)
    if state.is_file:
        return files.write_temporary(
            dir_fd, state.data, permissions, owner=owner, sync=True, kernel=kernel
        )
    aside = files.temporary_name()
    if stat.S_ISLNK(state.mode):
        kernel.symlink(os.fsdecode(state.data), aside, dir_fd=dir_fd)
    else:
        kernel.mknod(aside, stat.S_IFMT(state.mode), state.rdev, dir_fd=dir_fd)
    try:
        kernel.lchown(aside, *owner, dir_fd=dir_fd)
        if not stat.S_ISLNK(state.mode):
            kernel.chmod(aside, permissions, dir_fd=dir_fd)
    except BaseException:
        files.discard(aside, dir_fd, kernel)
        raise
    return aside


# Files


def write_engine_file(path: str, data: bytes, mode: int | None, kernel: Kernel) -> None:
    """Write a file atomically; links are followed, because admins link such files.

    CRI-O reads every file below its folder of drop-ins, even hidden ones, and does not start with
    an incomplete one. So a drop-in's temporary file is created in the parent folder, where no
    engine reads all files. If that is another mount, the temporary file gets a name only when it
    is complete. Raises UnsafePathError if the path is not a regular file or its folder is
    world-writable, and OSError; neither changes anything.
    """
    real = target(path)
    folder, name = os.path.split(real)
    sweep(path, kernel)
    old = files.lstat_or_none(real, None)
    is_drop_in = folder.endswith(".d") or name.startswith(DROP_IN)
    is_regular = old is None or stat.S_ISREG(old.st_mode)
    if is_drop_in and is_regular and not _is_world_writable(folder):
        parent = os.path.dirname(folder)
        owner = None if old is None else (old.st_uid, old.st_gid)
        permissions = stat.S_IMODE(old.st_mode) if mode is None and old else mode
        ways = [(folder, _write_unnamed)]
        if os.access(parent, os.W_OK) and not _is_world_writable(parent):
            ways.insert(0, (parent, files.write_temporary))
        for stage, way in ways:
            make = partial(way, data=data, mode=permissions, owner=owner, sync=True, kernel=kernel)
            try:
                move_in(stage, real, make, kernel)
            except OSError as error:
                if error.errno not in NOT_HERE:
                    raise
            else:
                return
    files.write_atomic(path, data, mode=mode, follow=True, kernel=kernel)


@contextmanager
def opened(folder: str, kernel: Kernel) -> Iterator[int]:
    """Open a folder for calls that change or sync it."""
    fd = kernel.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield fd
    finally:
        kernel.close(fd)


def move_in(stage: str, path: str, make: Callable[[int], str], kernel: Kernel) -> None:
    """Let `make` create a file in the folder `stage`, rename that to its path, and sync folders.

    `make` gets the open folder, and returns the file's name in it.
    """
    folder, name = files.split(path)
    with ExitStack() as stack:
        folder_fd = stage_fd = stack.enter_context(opened(folder, kernel))
        if stage != folder:
            stage_fd = stack.enter_context(opened(stage, kernel))
        temporary = make(stage_fd)
        try:
            kernel.rename(temporary, name, source_dir_fd=stage_fd, target_dir_fd=folder_fd)
        except BaseException:
            files.discard(temporary, stage_fd, kernel)
            raise
        for fd in dict.fromkeys((folder_fd, stage_fd)):
            kernel.fsync(fd)


def target(path: str) -> str:
    """Return the target of the links at `path`; links in its folders are not resolved.

    Only the kernel can resolve those: /proc/PID/root leads elsewhere than its text says.
    """
    for _ in range(LINK_LIMIT):
        if not os.path.islink(path):
            break
        path = os.path.join(os.path.dirname(path), os.readlink(path))
    return path


def sweep(path: str, kernel: Kernel) -> None:
    """Remove the temporary files that a killed run left beside a file.

    Contract: the caller holds the journal's lock, so no other run is writing there.
    """
    real = target(path)
    old = files.lstat_or_none(real, None)
    owners = {os.geteuid()} | ({old.st_uid} if old else set())
    folder = os.path.dirname(real)
    for directory in (folder, os.path.dirname(folder)):
        sweep_folder(directory, owners, kernel)


def sweep_folder(
    folder: str, owners: Collection[int], kernel: Kernel, *, age_s: float = 0.0
) -> None:
    """Remove nvct's temporary files in a folder that `owners` own and that are older than `age_s`.

    The age spares files that another process is writing.
    """
    try:
        names = [n for n in os.listdir(folder) if n.startswith(files.TEMPORARY_PREFIX)]
        for name in names:
            status = os.lstat(f"{folder}/{name}")
            is_ours = status.st_uid in owners and not stat.S_ISDIR(status.st_mode)
            if is_ours and (not age_s or time.time() - status.st_mtime > age_s):
                kernel.unlink(f"{folder}/{name}")
    except OSError:
        pass  # without the right to read or remove files here, this user has written none


def _write_unnamed(
    dir_fd: int,
    data: bytes,
    mode: int | None,
    *,
    owner: tuple[int, int] | None,
    sync: bool,
    kernel: Kernel,
) -> str:
    """Do as `files.write_temporary`, but give the file its name only when it is complete."""
    flags = os.O_WRONLY | os.O_TMPFILE
    fd = kernel.open(".", flags, 0o666 if mode is None else 0o600, dir_fd=dir_fd)
    try:
        if owner is not None:
            kernel.fchown(fd, *owner)
        while data:
            data = data[kernel.write(fd, data) :]
        if mode is not None:
            kernel.fchmod(fd, mode)
        if sync:
            kernel.fsync(fd)
        temporary = files.temporary_name()
        kernel.link_open_file(fd, temporary, dir_fd=dir_fd)
    finally:
        kernel.close(fd)
    return temporary


def _is_world_writable(folder: str) -> bool:
    return bool(os.stat(folder).st_mode & stat.S_IWOTH)


def refused(error: OSError, path: str) -> EngineError:
    """Return the EngineError for a path that cannot be written, with a hint."""
    hint = HINTS.get(error.errno or 0, "")
    if error.errno == errno.EPERM:
        hint = f"it may be immutable: lsattr {path}"
        if os.geteuid():
            hint = HINTS[errno.EACCES]
    return EngineError(f"{path} cannot be written: {error.strerror or error}", hint=hint)


def write_file(path: str, data: bytes, *, mode: int | None = None, follow: bool = False) -> None:
    """Create a file's missing folders, and write it atomically. Raises EngineError."""
    try:
        make_folders(missing_folders(path))
        files.write_atomic(path, data, mode=mode, follow=follow)
    except OSError as error:
        raise refused(error, error.filename or path) from error
