# SPDX-License-Identifier: Apache-2.0
"""A host that is a folder: files, and processes as procfs shows them."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from typing_extensions import Self

from nvct.engine.model import Files


class FakeHost:
    """Files below `root`, processes below `proc`; methods return the host, to be chained."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "root"
        self.proc = str(folder / "proc")
        for name in ("etc", "usr/bin"):
            (self.root / name).mkdir(parents=True)
        Path(self.proc).mkdir()
        self.asked: list[tuple[str, tuple[str, ...]]] = []
        self.prints = "containerd github.com/containerd/containerd v2.1.4 abcdef"

    @property
    def files(self) -> Files:
        return Files(str(self.root))

    def file(self, path: str, text: str = "", mode: int = 0o644) -> Self:
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(mode)
        return self

    def folder(self, path: str) -> Self:
        (self.root / path.lstrip("/")).mkdir(parents=True, exist_ok=True)
        return self

    def process(
        self,
        pid: int,
        exe: str,
        args: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cgroup: str = "0::/system.slice/x.service",
        uid: int = 0,
        root: Path | None = None,
        cwd: str = "/",
    ) -> Self:
        path = Path(self.proc) / str(pid)
        path.mkdir()
        (path / "cmdline").write_text("".join(f"{arg}\0" for arg in args))
        pairs = (env or {}).items()
        (path / "environ").write_text("".join(f"{name}={value}\0" for name, value in pairs))
        (path / "cgroup").write_text(cgroup + "\n")
        (path / "status").write_text(f"Name:\tx\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")
        os.symlink(exe, path / "exe")
        os.symlink(cwd, path / "cwd")
        os.symlink(root or self.root, path / "root")
        return self

    def ask(self, program: str, argv: list[str]) -> str:
        """Stand for running a program: note it, print a version."""
        self.asked.append((program, tuple(argv)))
        return self.prints
