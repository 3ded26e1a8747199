# SPDX-License-Identifier: Apache-2.0
"""Makes entries of one folder appear in another."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

from nvct.kernel.calls import Kernel


def mirror(entry: Path, target: Path, bind: Callable[[Path, Path], None]) -> None:
    """Make an entry of a folder appear in another: a link is copied, all else is bind-mounted."""
    if entry.is_symlink():
        target.symlink_to(os.readlink(entry))
        return
    if entry.is_dir():
        target.mkdir()
    else:
        target.touch()
    bind(entry, target)


def copy_node(source: Path, target: Path, kernel: Kernel) -> None:
    """Copy a character device with mode and owner, or a symbolic link; skip anything else."""
    try:
        status = source.lstat()
    except FileNotFoundError:
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if stat.S_ISLNK(status.st_mode):
        target.symlink_to(os.readlink(source))
    elif stat.S_ISCHR(status.st_mode):
        kernel.mknod(str(target), status.st_mode, status.st_rdev)
        target.chmod(stat.S_IMODE(status.st_mode))
        os.chown(target, status.st_uid, status.st_gid)
