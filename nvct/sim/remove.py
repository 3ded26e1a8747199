# SPDX-License-Identifier: Apache-2.0
"""Removes a folder with everything in it, also what its owner may not write."""

from __future__ import annotations

import os
import shutil
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path


def remove(folder: Path) -> None:
    """Remove a folder of this user.

    Containers' roots and driver views hold folders of mode 0555; only root empties them as they
    are.

    Raises:
        OSError: something in it cannot be removed.
    """
    folder.chmod(stat.S_IRWXU)
    for path, names, _ in os.walk(folder):  # top down: a folder is opened up before it is read
        for name in names:
            if not os.path.islink(f"{path}/{name}"):
                os.chmod(f"{path}/{name}", stat.S_IRWXU)
    shutil.rmtree(folder)
