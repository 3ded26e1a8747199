# SPDX-License-Identifier: Apache-2.0
"""Write a drop-in so that no engine ever reads a part of it.

CRI-O reads every file below crio.conf.d, whatever its name, so a temporary file there that is
left half written by a kill keeps it from starting. In a folder of drop-ins (`*.d`) the temporary
file is therefore made in the folder above, which no engine reads as a whole.
"""

from __future__ import annotations

import os
import stat

from nvct.linux import files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.linux.kernel import Kernel


def write(path: str, data: bytes, mode: int | None, kernel: Kernel) -> None:
    """Write a file as `files.write_atomic` does, with sync=True.

    Raises:
        UnsafePathError: no regular file is there, or the place is everybody's.
        OSError: nothing was changed.
    """
    real = os.path.realpath(path)
    folder, name = os.path.split(real)
    old = files.lstat_or_none(real, None)
    if not _can_stage(folder) or (old is not None and not stat.S_ISREG(old.st_mode)):
        files.write_atomic(path, data, mode=mode, sync=True, kernel=kernel)
        return
    if mode is None and old is not None:
        mode = stat.S_IMODE(old.st_mode)
    owner = None if old is None else (old.st_uid, old.st_gid)
    stage_fd = kernel.open(os.path.dirname(folder), os.O_RDONLY | os.O_DIRECTORY)
    try:
        folder_fd = kernel.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            temporary = files.write_temporary(
                stage_fd, data, mode, owner=owner, sync=True, kernel=kernel
            )
            try:
                kernel.rename(temporary, name, source_dir_fd=stage_fd, target_dir_fd=folder_fd)
            except BaseException:
                files.discard(temporary, stage_fd, kernel)
                raise
            kernel.fsync(folder_fd)
            kernel.fsync(stage_fd)
        finally:
            kernel.close(folder_fd)
    finally:
        kernel.close(stage_fd)


def _can_stage(folder: str) -> bool:
    """Tell whether a file can be made above a folder and moved into it, and both are safe."""
    if not folder.endswith(".d"):
        return False
    try:
        found, above = os.stat(folder), os.stat(os.path.dirname(folder))
    except OSError:
        return False
    everybodys = (found.st_mode | above.st_mode) & stat.S_IWOTH
    return found.st_dev == above.st_dev and not everybodys
