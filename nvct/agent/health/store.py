# SPDX-License-Identifier: Apache-2.0
"""The health of a node in a file, for the next start of the agent in the same boot.

The file is in /run, which a boot empties; it also names the boot. A file that is damaged, or that
another user could have written, counts as none.
"""

from __future__ import annotations

import json
import os
import stat

from nvct.errors import NvctError
from nvct.linux.files import write_atomic

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.oci.jsontext import Json

NAME = "health.json"
BOOT_ID = "/proc/sys/kernel/random/boot_id"
LIMIT = 1 << 20
"""Bytes; a node of 16 GPUs with 7 instances each needs 30 KB."""


class Store:
    """One file.

    Attributes:
        problem: why the file cannot be written, "" if it can.
    """

    def __init__(self, folder: str, boot_id: str = BOOT_ID) -> None:
        """Keep the paths.

        Args:
            folder: of the file; it is made if it is missing.
            boot_id: the kernel's file that names the boot.
        """
        self.problem = ""
        self._path = f"{folder}/{NAME}"
        self._boot = _line(boot_id)

    def read(self) -> Json:
        """Return what was written in this boot, None if there is nothing."""
        try:
            with open(self._path, "rb", opener=_no_link) as file:
                status = os.fstat(file.fileno())
                is_ours = status.st_uid == os.geteuid() and not status.st_mode & 0o022
                if not is_ours or not stat.S_ISREG(status.st_mode):
                    return None
                document = json.loads(file.read(LIMIT))
        except (OSError, ValueError, RecursionError):
            return None
        if not isinstance(document, dict) or document.get("boot") != self._boot:
            return None
        return document

    def write(self, document: dict[str, Json]) -> None:
        """Replace the file; if that fails, `problem` says why."""
        data = json.dumps({"boot": self._boot, **document}, indent=1).encode()
        try:
            os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)
            write_atomic(self._path, data, mode=0o600, follow=False)
        except OSError as error:
            self.problem = f"cannot write {self._path}: {error.strerror}"
        except NvctError as error:
            self.problem = error.message
        else:
            self.problem = ""


def _no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)


def _line(path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:
            return file.readline().strip()
    except OSError:
        return ""
