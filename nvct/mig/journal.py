# SPDX-License-Identifier: Apache-2.0
"""The journal of a change: while it exists, a change is in progress or was interrupted.

It is a checkpoint of the layout before the change, with one more member: the layout after it.
`nvidia-mig-parted restore` of NVIDIA reads it as a checkpoint. It lies below /run, because MIG
instances do not survive a reboot either.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass

from nvct.errors import DocumentError
from nvct.linux import files
from nvct.mig import checkpoint

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.mig.plan import Plan

TARGET = "Target"
LOCK_S = 60.0
"""How long to wait for another program that changes MIG."""


@dataclass(frozen=True, slots=True)
class Journal:
    """The journal and its lock, in a folder of root."""

    folder: str

    @property
    def path(self) -> str:
        """The journal's path."""
        return f"{self.folder}/mig-journal.json"

    def lock(self) -> files.Lock:
        """Return the lock that every change takes.

        Raises:
            OSError: the folder cannot be created.
        """
        os.makedirs(self.folder, mode=0o700, exist_ok=True)
        return files.Lock(f"{self.folder}/mig.lock", LOCK_S)

    def open(self, before: Plan, after: Plan) -> None:
        """Write the journal; it is on disk when this returns.

        Raises:
            OSError: it cannot be written.
        """
        document = checkpoint.of_layouts(before.layouts)
        document[TARGET] = checkpoint.of_layouts(after.layouts)["MigState"]
        text = checkpoint.text_of(document)
        files.write_atomic(self.path, text.encode(), mode=0o600, sync=True)

    def close(self) -> None:
        """Remove the journal: the change has ended, with success or failure."""
        os.unlink(self.path)

    def read(self) -> tuple[Plan, Plan] | None:
        """Return the layouts before and after an interrupted change, None if there is none.

        Raises:
            DocumentError: the journal is damaged.
        """
        try:
            text = files.read_bytes(self.path).decode()
        except FileNotFoundError:
            return None
        try:
            before = checkpoint.parse(text)
            return before, checkpoint.plan_of(json.loads(text)[TARGET])
        except (KeyError, TypeError, ValueError, DocumentError) as error:
            raise DocumentError(
                f"the journal of a MIG change is damaged: {self.path}",
                hint="compare `nvct mig export` with what you want, then remove the file",
            ) from error
