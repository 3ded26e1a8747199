# SPDX-License-Identifier: Apache-2.0
"""Writes and removes engines' files and folders; errors say what to do."""

from __future__ import annotations

import errno
import os
import stat

from nvct.engine import staging
from nvct.engine.journal import remove
from nvct.errors import EngineError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypedDict

    from nvct.engine.journal import Entry
    from nvct.linux.kernel import Kernel

    class Status(TypedDict):
        """Mode and owner of a file."""

        mode: int
        uid: int
        gid: int


NEW_MODE = 0o644
FOLDER_MODE = 0o755  # as nvidia-ctk creates them
HINTS = {
    errno.ENOENT: "its folder, or what a link there leads to, is missing",
    errno.EROFS: "it is on a read-only file system: name a writable file with --config",
    errno.EBUSY: "it is a mount point of its own: mount its folder instead",
    errno.ENOSPC: "the file system is full",
    errno.EDQUOT: "the quota is used up",
    errno.EACCES: "run it as root, or name a file of your own with --config",
}


def put(path: str, data: bytes | None, entry: Entry, kernel: Kernel) -> None:
    """Write a file, or remove it if `data` is None; an existing file keeps its mode and owner.

    Raises:
        EngineError: it cannot be written; it is unchanged.
    """
    try:
        if data is None:
            remove(_to_remove(path), kernel)
            return
        new = not os.path.exists(path)
        mode = entry.mode if new else None
        staging.write(path, data, mode, kernel)
        stat_result = os.stat(path)
        if new and (stat_result.st_uid, stat_result.st_gid) != (entry.uid, entry.gid):
            kernel.lchown(path, entry.uid, entry.gid)
    except OSError as error:
        raise refused(error, path) from error


def _to_remove(path: str) -> str:
    """Return the path to remove: the target of a link; the link itself stays.

    In a folder of drop-ins the link is removed: engines do not start with a broken link there.
    """
    if os.path.dirname(path).endswith(".d"):
        return path
    return staging.target(path)


def status(path: str) -> Status:
    """Return mode and owner of a file, or those of a new file."""
    try:
        stat_result = os.stat(path)
    except OSError:
        return {"mode": NEW_MODE, "uid": os.geteuid(), "gid": os.getegid()}
    return {
        "mode": stat.S_IMODE(stat_result.st_mode),
        "uid": stat_result.st_uid,
        "gid": stat_result.st_gid,
    }


def missing_folders(path: str) -> list[str]:
    """Return the missing folders above a path, the outermost first."""
    missing: list[str] = []
    folder = os.path.dirname(path)
    while folder and not os.path.lexists(folder):
        missing.insert(0, folder)
        folder = os.path.dirname(folder)
    return missing


def make_folders(folders: Sequence[str], kernel: Kernel) -> None:
    """Create folders, the outermost first.

    Raises:
        EngineError: one cannot be created.
    """
    for folder in folders:
        try:
            kernel.mkdir(folder, FOLDER_MODE)
            kernel.chmod(
                folder, FOLDER_MODE
            )  # independent of the umask: the engine has to read there
            _sync(os.path.dirname(folder), kernel)
        except FileExistsError:
            pass
        except OSError as error:
            raise refused(error, folder) from error


def remove_folders(folders: Sequence[str], kernel: Kernel) -> None:
    """Remove the folders that are empty, the innermost first."""
    for folder in reversed(folders):
        try:
            kernel.rmdir(folder)
        except OSError:
            return  # it is not empty, or was removed


def refused(error: OSError, path: str) -> EngineError:
    """Return the error that a file cannot be written, with a hint."""
    hint = HINTS.get(error.errno or 0, "")
    if error.errno == errno.EPERM:
        hint = f"it may be immutable: lsattr {path}"
        if os.geteuid():
            hint = HINTS[errno.EACCES]
    reason = error.strerror or str(error)
    return EngineError(f"{path} cannot be written: {reason}", hint=hint)


def _sync(folder: str, kernel: Kernel) -> None:
    fd = kernel.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        kernel.fsync(fd)
    finally:
        kernel.close(fd)
