# SPDX-License-Identifier: Apache-2.0
"""Put and remove engines' files and the folders for them, with errors that say what to do."""

from __future__ import annotations

import errno
import os
import stat

from nvct.engine.change import staging
from nvct.engine.change.journal import remove
from nvct.errors import EngineError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypedDict

    from nvct.engine.change.journal import Entry
    from nvct.linux.kernel import Kernel

    class Status(TypedDict):
        """Mode and owner of a file."""

        mode: int
        uid: int
        gid: int


NEW_MODE = 0o644
FOLDER_MODE = 0o755  # as the incumbent makes them
HINTS = {
    errno.ENOENT: "its folder, or what a link there leads to, is missing",
    errno.EROFS: "it is on a read-only file system: name a writable file with --config",
    errno.EBUSY: "it is a mount point of its own: mount its folder instead",
    errno.ENOSPC: "the file system is full",
    errno.EDQUOT: "the quota is used up",
    errno.EACCES: "run it as root, or name a file of your own with --config",
}


def put(path: str, data: bytes | None, entry: Entry, kernel: Kernel) -> None:
    """Give a file these bytes, or none; a file that is there keeps mode and owner.

    Raises:
        EngineError: it cannot be written; it is as it was.
    """
    try:
        if data is None:
            remove(_to_remove(path), kernel)
            return
        new = not os.path.exists(path)
        mode = entry.mode if new else None
        staging.write(path, data, mode, kernel)
        found = os.stat(path)
        if new and (found.st_uid, found.st_gid) != (entry.uid, entry.gid):
            kernel.lchown(path, entry.uid, entry.gid)
    except OSError as error:
        raise refused(error, path) from error


def _to_remove(path: str) -> str:
    """Return the path to remove: where a link leads, and the link stays.

    But in a folder of drop-ins the link goes: with one that leads nowhere, engines do not start.
    """
    if os.path.dirname(path).endswith(".d"):
        return path
    return staging.target(path)


def status(path: str) -> Status:
    """Return mode and owner of a file, or those that a new one gets."""
    try:
        found = os.stat(path)
    except OSError:
        return {"mode": NEW_MODE, "uid": os.geteuid(), "gid": os.getegid()}
    return {"mode": stat.S_IMODE(found.st_mode), "uid": found.st_uid, "gid": found.st_gid}


def missing_folders(path: str) -> list[str]:
    """Return the folders above a path that are not there, the outermost first."""
    missing: list[str] = []
    folder = os.path.dirname(path)
    while folder and not os.path.lexists(folder):
        missing.insert(0, folder)
        folder = os.path.dirname(folder)
    return missing


def make_folders(folders: Sequence[str], kernel: Kernel) -> None:
    """Make folders, the outermost first.

    Raises:
        EngineError: one cannot be made.
    """
    for folder in folders:
        try:
            kernel.mkdir(folder, FOLDER_MODE)
            kernel.chmod(folder, FOLDER_MODE)  # whatever the umask: the engine has to get in
            _sync(os.path.dirname(folder), kernel)
        except FileExistsError:
            pass
        except OSError as error:
            raise refused(error, folder) from error


def remove_folders(folders: Sequence[str], kernel: Kernel) -> None:
    """Remove those of the folders that are empty, the innermost first."""
    for folder in reversed(folders):
        try:
            kernel.rmdir(folder)
        except OSError:
            return  # others put something in, or removed it


def refused(error: OSError, path: str) -> EngineError:
    """Return why a file cannot be written as an error that says what to do."""
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
