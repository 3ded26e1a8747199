# SPDX-License-Identifier: Apache-2.0
"""Folders of the host: those above a path made, opened, removed again. Not on the hot side."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from nvct.linux.kernel import KERNEL, Kernel

MODE = 0o755  # as nvidia-ctk creates them


@contextmanager
def opened(folder: str, kernel: Kernel) -> Iterator[int]:
    """Open a folder for calls that change or sync it."""
    fd = kernel.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield fd
    finally:
        kernel.close(fd)


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
            kernel.chmod(folder, MODE)  # the engine has to read there
            with opened(os.path.dirname(folder), kernel) as fd:
                kernel.fsync(fd)
        except FileExistsError:
            pass
        except OSError as error:
            raise OSError(error.errno, error.strerror, folder) from error


def remove_folders(folders: Sequence[str], kernel: Kernel) -> None:
    """Remove the folders that are empty, the innermost first."""
    for folder in reversed(folders):
        try:
            kernel.rmdir(folder)
        except OSError:
            return  # it is not empty, or was removed
