# SPDX-License-Identifier: Apache-2.0
"""Runs, judges and times the demonstration's cases: ways to request GPUs.

The real shim and a real low-level runtime run real containers in the mount namespace of a
simulated node. This module prints nothing.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nvct.host.model import Gpu
from nvct_sim import bundle

DEVICE_LIST = "/var/run/nvidia-container-devices"


@dataclass(frozen=True, kw_only=True)
class Case:
    """A container to run, and the expected result."""

    title: str
    request: str
    env: Sequence[str] = ()
    mounts: Sequence[Mapping[str, Any]] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    # UUIDs that nvidia-smi -L must list, None if there must be no driver
    expected: Sequence[str] | None = ()
    error: str = ""  # a word of the expected error message, "" if the create must succeed
    by_name: bool = False  # whether the request is a CDI name, which spec files define


def first_of_each_plan(all_cases: Sequence[Case]) -> list[Case]:
    """Return the first case for each of the two plans: without and with a CDI name."""
    with_devices = [case for case in all_cases if case.expected]
    return [
        next(case for case in with_devices if case.by_name is by_name) for by_name in (False, True)
    ]


def _env(value: str) -> dict[str, Any]:
    variable = f"NVIDIA_VISIBLE_DEVICES={value}"
    return {"request": variable, "env": [variable]}


def cases(gpus: Sequence[Gpu]) -> list[Case]:
    """Return the cases for a node with eight GPUs, one of them in MIG mode."""
    whole = {gpu.index: gpu.uuid for gpu in gpus if not gpu.mig_enabled}
    mig = [(gpu.index, device) for gpu in gpus for device in gpu.mig]
    everything = [*whole.values(), *(device.uuid for _index, device in mig)]
    null = {"type": "bind", "source": "/dev/null", "options": ["bind", "ro"]}
    listed = [{**null, "destination": f"{DEVICE_LIST}/{index}"} for index in (4, 5)]
    mig_cases = [
        Case(title="a MIG device", **_env(f"{parent}:{device.index}"), expected=[device.uuid])
        for parent, device in mig[2:3]
    ]
    return [
        Case(title="no request", request="nothing", expected=None),
        Case(title="two by index", **_env("0,1"), expected=[whole[0], whole[1]]),
        Case(title="by UUID", **_env(whole[6]), expected=[whole[6]]),
        *mig_cases,
        Case(title="all", **_env("all"), expected=everything),
        Case(
            title="a list of volume mounts",
            request=f"{DEVICE_LIST}/{{4,5}}",
            mounts=listed,
            expected=[whole[4], whole[5]],
        ),
        Case(
            title="a CDI name",
            request="cdi.k8s.io/demo: nvidia.com/gpu=7",
            annotations={"cdi.k8s.io/demo": "nvidia.com/gpu=7"},
            expected=[whole[7]],
            by_name=True,
        ),
        Case(title="a typo", **_env("gpu0"), expected=None, error="gpu0"),
    ]


UUID = re.compile(r"UUID: ((?:GPU|MIG)-[0-9a-f-]+)\)")
SCRIPT = "command -v nvidia-smi >/dev/null && exec nvidia-smi -L; echo no GPU, no driver in here"
TIMEOUT_S = 60
GRACE_S = 5
TURNS = 7


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of a case, with the numbers of injected entries."""

    case: Case
    lines: list[str]
    seconds: float
    nodes: int
    mounts: int
    hooks: int
    right: bool


class Runner:
    """Runs containers from one rootfs by nvidia-container-runtime, or by runc or crun alone."""

    def __init__(self, work: Path, rootfs: Path, shim: Path, bare: Path) -> None:
        self.work = work
        self.rootfs = rootfs
        self.shim = shim
        self.bare = bare
        self._count = 0

    def run(self, case: Case) -> Outcome:
        """Run a case through the shim and judge it."""
        folder = self._bundle(case)
        before = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        status, seconds, lines = self._start(self.shim, folder)
        after = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        bundle.remove(folder)
        return Outcome(
            case=case,
            lines=lines,
            seconds=seconds,
            nodes=_count(after, "linux", "devices") - _count(before, "linux", "devices"),
            mounts=_count(after, "mounts") - _count(before, "mounts"),
            hooks=_count(after, "hooks", "createContainer"),
            right=judge(case, status, lines),
        )

    def compare(self, case: Case) -> tuple[float, float]:
        """Return the seconds of a case by the bare runtime and by the shim.

        Each is the fastest of TURNS alternating runs.
        """
        bare, shim = [], []
        for _ in range(TURNS):
            bare.append(self._timed(self.bare, case))
            shim.append(self._timed(self.shim, case))
        return min(bare), min(shim)

    def _timed(self, program: Path, case: Case) -> float:
        folder = self._bundle(case)
        _status, seconds, _lines = self._start(program, folder)
        bundle.remove(folder)
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
        name = f"nvct-demo-{os.getpid()}-{folder.name}"
        root = str(self.work / "runc")
        command = [str(program), "--root", root, "run", "--bundle", str(folder), name]
        started = time.perf_counter()
        # In its own session, because Ctrl-C must not interrupt a runtime halfway.
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, start_new_session=True,
        )  # fmt: skip
        try:
            output, _ = process.communicate(timeout=TIMEOUT_S)
        except BaseException as error:
            self._end(process, root, name)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            return 1, TIMEOUT_S, [f"it did not end within {TIMEOUT_S} s"]
        return process.returncode, time.perf_counter() - started, output.splitlines()

    def _end(self, process: subprocess.Popen[str], root: str, name: str) -> None:
        """Wait for a container to end, kill it after GRACE_S seconds, and delete it."""
        try:
            process.communicate(timeout=GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
        subprocess.run(
            [str(self.bare), "--root", root, "delete", "--force", name], check=False,
            capture_output=True, stdin=subprocess.DEVNULL,
        )  # fmt: skip


def _count(document: object, *keys: str) -> int:
    for key in keys:
        document = document.get(key) if isinstance(document, dict) else None
    return len(document) if isinstance(document, list) else 0


def judge(case: Case, status: int, lines: Sequence[str]) -> bool:
    """Report whether a container had the expected exit status and output."""
    text = "\n".join(lines)
    if case.error:
        return status != 0 and len(lines) == 1 and case.error in text
    if case.expected is None:
        return status == 0 and not UUID.search(text) and "no driver" in text
    seen = [uuid for uuid in UUID.findall(text) if uuid not in _parents(lines)]
    return status == 0 and sorted(seen) == sorted(case.expected)


def _parents(lines: Sequence[str]) -> set[str]:
    """Return the UUIDs of GPUs that are only listed as parents of MIG devices."""
    parents = set()
    for line, following in itertools.pairwise(lines):
        match = UUID.search(line)
        if match and line.startswith("GPU ") and following.lstrip().startswith("MIG "):
            parents.add(match[1])
    return parents
