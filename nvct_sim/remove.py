# SPDX-License-Identifier: Apache-2.0
"""Removes a folder with all its contents, also folders without write permission."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path


def remove(folder: Path) -> None:
    """Remove a folder that this user owns, with all its contents.

    Containers' roots and driver views have folders of mode 0555. Only root can empty such folders
    without a change of mode.

    Raises:
        OSError: an entry cannot be removed.
    """
    folder.chmod(stat.S_IRWXU)
    for path, names, _ in os.walk(folder):  # top down: a folder's mode changes before it is read
        for name in names:
            if not os.path.islink(f"{path}/{name}"):
                os.chmod(f"{path}/{name}", stat.S_IRWXU)
    shutil.rmtree(folder)
