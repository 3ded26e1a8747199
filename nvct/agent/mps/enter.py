# SPDX-License-Identifier: Apache-2.0
"""Runs a program where MPS runs: `python -m nvct.agent.mps.enter ROOT FOLDER SHM PROGRAM ...`.

It mounts SHM at /dev/shm and, below another root, FOLDER at /tmp, in a mount namespace of its own.
Then it executes the program, if only root can change the program's file.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from errno import ENOENT

from nvct.agent.mps.place import INSIDE
from nvct.errors import NvctError
from nvct.kernel import trusted_file
from nvct.linux.constants import CLONE_NEWNS, MS_BIND, MS_PRIVATE, MS_REC
from nvct.linux.kernel import KERNEL


def enter(root: str, folder: str, shm: str) -> None:
    """Move this process to a mount namespace with the folders of MPS, and to another root.

    OSError if that is not permitted, or a folder is missing.
    """
    KERNEL.unshare(CLONE_NEWNS)
    KERNEL.mount(None, "/", flags=MS_REC | MS_PRIVATE)
    KERNEL.mount(shm, os.path.join(root, "dev/shm"), flags=MS_BIND)
    if root != "/":
        KERNEL.mount(folder, f"{root}{INSIDE}", flags=MS_BIND | MS_REC)
        os.chroot(root)
        os.chdir("/")


def main(words: Sequence[str]) -> int:
    """Enter, and execute the program; return the exit status of a failure."""
    root, folder, shm, program, *arguments = words
    try:
        folders = os.environ.get("PATH", os.defpath).split(":")
        path = trusted_file.find_program(root, filter(os.path.isabs, folders), program)
        if path is None:
            raise FileNotFoundError(ENOENT, os.strerror(ENOENT))
        enter(root, folder, shm)
        os.execv(path, [program, *arguments])
    except (OSError, NvctError) as error:
        sys.stdout.write(f"cannot start {program} below {root}: {error}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
