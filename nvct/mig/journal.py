# SPDX-License-Identifier: Apache-2.0
"""The journal of a change: while it exists, a change is in progress or was interrupted.

It is a checkpoint of the layout before the change, with one more member: the layout after it.
`nvidia-mig-parted restore` of NVIDIA reads it as a checkpoint. It lies below /run, because MIG
instances do not survive a reboot either.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass

from nvct.errors import DocumentError, HostError
from nvct.kernel.shared_folder import SharedFolder
from nvct.mig import checkpoint
from nvct.mig.plan import Plan

FILE, LOCK = "mig-journal.json", "mig.lock"
FOLDER_MODE = 0o700
LIMIT = 1 << 20
"""Bytes; that of 16 GPUs with 7 instances each has 30 KB."""
TARGET = "Target"
LOCK_S = 60.0
"""How long to wait for another program that changes MIG."""


@dataclass(frozen=True, slots=True)
class Journal:
    """The journal and its lock, in a folder that programs with fewer rights may change."""

    folder: str

    @property
    def path(self) -> str:
        """The journal's path."""
        return f"{self.folder}/{FILE}"

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the lock that every change takes.

        Raises:
            HostError: another program holds it for too long, or the folder cannot be written.
            UnsafePathError: the folder is a link or a file.
        """
        with contextlib.ExitStack() as held:
            with self._writing():
                folder = held.enter_context(self._open())
                held.enter_context(folder.lock(LOCK, LOCK_S))
            yield

    def open(self, before: Plan, after: Plan) -> None:
        """Write the journal; it is on disk when this returns.

        Raises:
            HostError: it cannot be written.
            UnsafePathError: the folder is a link or a file.
        """
        document = checkpoint.of_layouts(before.layouts)
        document[TARGET] = checkpoint.of_layouts(after.layouts)["MigState"]
        text = checkpoint.text_of(document)
        with self._writing(), self._open() as folder:
            folder.write(FILE, text.encode(), sync=True)

    def close(self) -> None:
        """Remove the journal: the change has ended, with success or failure.

        Raises:
            HostError: it cannot be removed.
        """
        with self._writing(), self._open() as folder:
            folder.unlink(FILE)

    def read(self) -> tuple[Plan, Plan] | None:
        """Return the layouts before and after an interrupted change, None if there is none.

        Raises:
            DocumentError: the journal is damaged.
            HostError: it cannot be read.
            UnsafePathError: it is a link, or another than root could have written it.
        """
        try:
            with SharedFolder.open(self.folder) as folder:
                data = folder.read(FILE, LIMIT)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise HostError(f"{self.path} cannot be read: {error.strerror}") from error
        try:
            text = data.decode()
            before = checkpoint.parse(text)
            return before, checkpoint.plan_of(json.loads(text)[TARGET])
        except (*checkpoint.MALFORMED, DocumentError) as error:
            raise DocumentError(
                f"the journal of a MIG change is damaged: {self.path}",
                hint="compare `nvct mig export` with what you want, then remove the file",
            ) from error

    def _open(self) -> SharedFolder:
        return SharedFolder.open(self.folder, create=FOLDER_MODE)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise HostError(
                f"a change of MIG cannot be recorded in {self.folder}: {error.strerror}",
                hint="it needs root, and a folder that can be written",
            ) from error
