# SPDX-License-Identifier: Apache-2.0
"""Files of an engine below a temporary folder, a change of them, the removal of NVIDIA's runtimes."""

from __future__ import annotations

from pathlib import Path

from nvct.engine import modules
from nvct.engine.model import Change, EngineOptions, Files
from nvct.engine.undo import without_nvidia


class Tree(Files):
    """A root of its own, which can be written."""

    def __init__(self, base: Path) -> None:
        super().__init__(str(base))
        self.base = base

    def write(self, path: str, data: bytes | str) -> Tree:
        file = self.base / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data.encode() if isinstance(data, str) else data)
        return self

    def apply(self, change: Change) -> None:
        """Carry a change out."""
        for edit in change.edits:
            assert self.read(edit.path) == edit.before
            if edit.after is None:
                (self.base / edit.path.lstrip("/")).unlink()
            else:
                self.write(edit.path, edit.after)

    def text(self, path: str) -> str:
        data = self.read(path)
        assert data is not None
        return data.decode()


def removal(options: EngineOptions, files: Files) -> Change:
    return without_nvidia(options, modules.of(options.engine), files)
