# SPDX-License-Identifier: Apache-2.0
"""A host with containerd's files in a folder, for tests."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from nvct.config import toml_file
from nvct.engine.model import Change, EngineOptions, Files, Handler

CONFIG = "/etc/containerd/config.toml"
DROP_IN = "/etc/containerd/conf.d/99-nvidia.toml"
PROGRAM = "/usr/bin/nvidia-container-runtime"
V1_6 = (1, 6, 20)
V1_7 = (1, 7, 24)
V2_0 = (2, 0, 5)
V2_1 = (2, 1, 9)
NVIDIA = (Handler(name="nvidia", path=PROGRAM),)
V2 = """version = 2

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "registry.example.com/pause:3.9"

  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"

    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = true
"""


def options(
    version: tuple[int, ...] = (),
    handlers: tuple[Handler, ...] = NVIDIA,
    **more: Any,
) -> EngineOptions:
    """Ask something of a containerd of some version."""
    ask = EngineOptions(engine="containerd", handlers=handlers, engine_version=version)
    return replace(ask, **more)


class Host(Files):
    """Files below a folder, and changes carried out on them as they are."""

    def __init__(
        self, root: Path, config: str | None = None, more: Mapping[str, str] | None = None
    ) -> None:
        """Make the files."""
        super().__init__(str(root))
        self.folder = root
        for path, text in {CONFIG: config, **(more or {})}.items():
            if text is not None:
                self.write(path, text)

    def write(self, path: str, text: str) -> None:
        """Make or replace a file."""
        target = self.folder / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(text.encode())

    def apply(self, change: Change) -> None:
        """Carry a change out; what it says was before is compared."""
        for edit in change.edits:
            assert self.read(edit.path) == edit.before
            assert edit.before != edit.after
            if edit.after is None:
                (self.folder / edit.path.lstrip("/")).unlink()
            else:
                self.write(edit.path, edit.after.decode())

    def text(self, path: str = CONFIG) -> str:
        """Return a file's text."""
        data = self.read(path)
        assert data is not None
        return data.decode()

    def parsed(self, path: str = CONFIG) -> dict[str, Any]:
        """Return what a file says."""
        return toml_file.parse(self.text(path), path)
