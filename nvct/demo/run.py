# SPDX-License-Identifier: Apache-2.0
"""Run the cases: real containers by the real shim and a real low-level runtime, timed.

Runs inside a simulated node's mount namespace. Nothing here knows how a case is shown.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from nvct.errors import HostError
from nvct.sim import bundle

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from nvct.demo.cases import Case

UUID = re.compile(r"UUID: ((?:GPU|MIG)-[0-9a-f-]+)\)")
SCRIPT = "command -v nvidia-smi >/dev/null && exec nvidia-smi -L; echo no GPU and no driver in here"
TIMEOUT_S = 60


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a case.

    Attributes:
        lines: the container's output, or the sentence of a create that failed.
        seconds: wall time of the container, from create to delete.
        nodes, mounts, hooks: how many were injected.
        right: whether exactly the expected GPUs were seen, or the create failed as it should.
    """

    case: Case
    lines: list[str]
    seconds: float
    nodes: int
    mounts: int
    hooks: int
    right: bool


class Runner:
    """Runs containers with one shim, one low-level runtime and one rootfs."""

    def __init__(self, work: Path, rootfs: Path, shim: Path) -> None:
        """Work in a folder; `shim` is the path of nvidia-container-runtime."""
        self.work = work
        self.rootfs = rootfs
        self.shim = shim
        found = shutil.which("runc") or shutil.which("crun")
        if found is None:
            raise HostError("neither runc nor crun is on PATH", hint="install runc")
        self.bare = Path(found)
        self._count = 0

    def run(self, case: Case) -> Outcome:
        """Run a case through the shim and judge it."""
        folder = self._bundle(case)
        before = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        status, seconds, lines = self._start(self.shim, folder)
        after = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        shutil.rmtree(folder)
        return Outcome(
            case=case,
            lines=lines,
            seconds=seconds,
            nodes=_count(after, "linux", "devices") - _count(before, "linux", "devices"),
            mounts=_count(after, "mounts") - _count(before, "mounts"),
            hooks=_count(after, "hooks", "createContainer"),
            right=_judge(case, status, lines),
        )

    def bare_seconds(self, case: Case, times: int = 5) -> float:
        """Return the fastest of several runs of a case's bundle by the bare runtime."""
        return min(self._timed(self.bare, case) for _ in range(times))

    def shim_seconds(self, case: Case, times: int = 5) -> float:
        """Return the fastest of several runs of a case through the shim."""
        return min(self._timed(self.shim, case) for _ in range(times))

    def _timed(self, program: Path, case: Case) -> float:
        folder = self._bundle(case)
        _status, seconds, _lines = self._start(program, folder)
        shutil.rmtree(folder)
        return seconds

    def _bundle(self, case: Case) -> Path:
        self._count += 1
        return bundle.make_bundle(
            self.work / f"bundle-{self._count}",
            self.rootfs,
            ["/bin/sh", "-c", SCRIPT],
            env=case.env,
            mounts=case.mounts,
            annotations=case.annotations,
        )

    def _start(self, program: Path, folder: Path) -> tuple[int, float, list[str]]:
        """Run a bundle to its end; return status, seconds and lines of output."""
        name = f"nvct-demo-{os.getpid()}-{folder.name}"
        command = [
            str(program), "--root", str(self.work / "runc"), "run", "--bundle", str(folder), name,
        ]  # fmt: skip
        started = time.perf_counter()
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        seconds = time.perf_counter() - started
        return done.returncode, seconds, (done.stdout + done.stderr).splitlines()


def _count(document: object, *keys: str) -> int:
    for key in keys:
        document = document.get(key) if isinstance(document, dict) else None
    return len(document) if isinstance(document, list) else 0


def _judge(case: Case, status: int, lines: Sequence[str]) -> bool:
    text = "\n".join(lines)
    if case.error:
        return status != 0 and len(lines) == 1 and case.error in text
    if case.expected is None:
        return status == 0 and not UUID.search(text) and "no driver" in text
    seen = [uuid for uuid in UUID.findall(text) if uuid not in _parents(lines)]
    return status == 0 and sorted(seen) == sorted(case.expected)


def _parents(lines: Sequence[str]) -> set[str]:
    """Return the GPUs that are listed only because a MIG device below them is."""
    found = set()
    for line, following in zip(lines, lines[1:], strict=False):
        match = UUID.search(line)
        if match and line.startswith("GPU ") and following.lstrip().startswith("MIG "):
            found.add(match[1])
    return found
