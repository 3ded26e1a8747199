# SPDX-License-Identifier: Apache-2.0
"""Writes drop-ins so that no engine reads an incomplete one; removes what a killed run left.

CRI-O reads every file below its folder of drop-ins, hidden ones too: an incomplete temporary file
there prevents its start. So the temporary file of a drop-in is created in the parent folder, where
no engine reads all files. If that is another mount, the file gets its name only when it is
complete.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from nvct.kernel.calls import Kernel
from nvct.linux import files

DROP_IN = "99-nvidia."
LINK_LIMIT = 40  # as the kernel's
NOT_HERE = (errno.EXDEV, errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT)
"""Errors of a move from another mount, and of a file system without unnamed files."""


def write(path: str, data: bytes, mode: int | None, kernel: Kernel) -> None:
    """Write a file as `files.write_atomic` does, with follow: admins link such files.

    Raises:
        UnsafePathError: it is no regular file, or everybody may write to its folder.
        OSError: nothing was changed.
    """
    real = target(path)
    folder, name = os.path.split(real)
    sweep(path, kernel)
    old = files.lstat_or_none(real, None)
    is_drop_in = folder.endswith(".d") or name.startswith(DROP_IN)
    is_special = old is not None and not stat.S_ISREG(old.st_mode)
    if is_special or not is_drop_in or _is_world_writable(folder):
        files.write_atomic(path, data, mode=mode, follow=True, kernel=kernel)
        return
    if mode is None and old is not None:
        mode = stat.S_IMODE(old.st_mode)
    owner = None if old is None else (old.st_uid, old.st_gid)
    parent = os.path.dirname(folder)

    def temporary(fd: int) -> str:
        return files.write_temporary(fd, data, mode, owner=owner, sync=True, kernel=kernel)

    def unnamed(fd: int) -> str:
        return _write_unnamed(fd, folder, (data, mode, owner), kernel)

    ways = [(folder, unnamed)]
    if os.access(parent, os.W_OK) and not _is_world_writable(parent):
        ways.insert(0, (parent, temporary))
    for stage, make in ways:
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
    """Have a file made in a folder `stage`, move it to its path, and wait for the disk.

    `make` makes it in the open folder, and returns its name.
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
    """Return the target of links at `path`; links in its folders are not resolved.

    The kernel resolves those: /proc/PID/root in a path is no link that text can follow.
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
        try:
            names = [
                name for name in os.listdir(directory) if _is_left_over(directory, name, owners)
            ]
            for name in names:
                kernel.unlink(f"{directory}/{name}")
        except OSError:
            pass  # without the right to read or remove files here, this user has written none


def _is_left_over(folder: str, name: str, owners: set[int]) -> bool:
    """Report whether a file is a temporary one: of ours, or already of the file's owner."""
    if not name.startswith(files.TEMPORARY_PREFIX):
        return False
    status = os.lstat(f"{folder}/{name}")
    return stat.S_ISREG(status.st_mode) and status.st_uid in owners


def _write_unnamed(
    folder_fd: int,
    folder: str,
    content: tuple[bytes, int | None, tuple[int, int] | None],
    kernel: Kernel,
) -> str:
    """Write a file that gets its name, which is returned, only when it is complete."""
    data, mode, owner = content
    fd = kernel.open(folder, os.O_WRONLY | os.O_TMPFILE, 0o666 if mode is None else 0o600)
    try:
        if owner is not None:
            kernel.fchown(fd, *owner)
        while data:
            data = data[kernel.write(fd, data) :]
        if mode is not None:
            kernel.fchmod(fd, mode)
        kernel.fsync(fd)
        temporary = files.temporary_name()
        kernel.link_open_file(fd, temporary, dir_fd=folder_fd)
    finally:
        kernel.close(fd)
    return temporary


def _is_world_writable(folder: str) -> bool:
    return bool(os.stat(folder).st_mode & stat.S_IWOTH)
