# SPDX-License-Identifier: Apache-2.0
"""Makes the missing folders above a path of the host, and removes them again."""

from __future__ import annotations

import os

from nvct.linux.kernel import KERNEL, Kernel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

MODE = 0o755  # as nvidia-ctk creates them


def missing_folders(path: str) -> list[str]:
    """Return the missing folders above a path, the outermost first."""
    folders: list[str] = []
    folder = os.path.dirname(path)
    while folder and not os.path.lexists(folder):
        folders.insert(0, folder)
        folder = os.path.dirname(folder)
    return folders


def make_folders(folders: Sequence[str], kernel: Kernel = KERNEL) -> None:
    """Create folders, the outermost first, whatever the umask; OSError with the folder's path."""
    for folder in folders:
        try:
            kernel.mkdir(folder, MODE)
            kernel.chmod(folder, MODE)  # the engine must be able to read it
            _sync(os.path.dirname(folder) or ".", kernel)
        except FileExistsError:
            pass
        except OSError as error:
            raise OSError(error.errno, error.strerror, folder) from error


def remove_folders(folders: Sequence[str], kernel: Kernel) -> None:
    """Remove folders, the innermost first, up to the first that the kernel does not remove."""
    for folder in reversed(folders):
        try:
            kernel.rmdir(folder)
        except OSError:
            return


def _sync(folder: str, kernel: Kernel) -> None:
    fd = kernel.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        kernel.fsync(fd)
    finally:
        kernel.close(fd)
