# SPDX-License-Identifier: Apache-2.0
"""Saves the health of GPUs, or the offered devices, for the agent's next start in the same boot.

The file is in /run, which is empty after a boot; it also records the boot id. A file is ignored if
it is damaged, or if another user could have written it.
"""

from __future__ import annotations

import json

from nvct.errors import NvctError
from nvct.host import procfs
from nvct.kernel.shared_folder import SharedFolder
from nvct.oci.jsontext import Json

NAME = "health.json"
BOOT_ID = "/proc/sys/kernel/random/boot_id"
LIMIT = 1 << 20  # Bytes; a node of 16 GPUs with 7 instances each needs 30 KB


class Store:
    """One file in a folder that is made if missing; `problem` says why it cannot be written."""

    def __init__(self, folder: str, boot_id: str = BOOT_ID, name: str = NAME) -> None:
        self.problem = ""
        self._folder, self._name = folder, name
        self._boot = (procfs.read_text(boot_id) or "").strip()

    def read(self) -> Json:
        """Return what was written in this boot, None if there is nothing."""
        try:
            with SharedFolder.open(self._folder) as folder:
                document = json.loads(folder.read(self._name, LIMIT))
        except (OSError, NvctError, ValueError, RecursionError):
            return None
        if not isinstance(document, dict) or document.get("boot") != self._boot:
            return None
        return document

    def write(self, document: dict[str, Json]) -> None:
        """Replace the file; if that fails, `problem` says why."""
        data = json.dumps({"boot": self._boot, **document}, indent=1).encode()
        try:
            with SharedFolder.open(self._folder, create=0o700) as folder:
                folder.write(self._name, data)
        except OSError as error:
            self.problem = f"cannot write {self._folder}/{self._name}: {error.strerror}"
        except NvctError as error:
            self.problem = error.message
        else:
            self.problem = ""
