# SPDX-License-Identifier: Apache-2.0
"""What `nvidia-ctk cdi generate` costs on nodes of growing size, inside each node's namespace."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.bench import measure, report
from tests.bench.measure import Subject

ROUNDS = int(os.environ.get("NVCT_BENCH_GENERATE_ROUNDS", "7"))
PROFILES = {
    "h100": "cdi generate, 8 GPUs",
    "h100-64": "cdi generate, 64 GPUs",
    "h100-64-mig": "cdi generate, 64 GPUs x 7 MIG devices",
}
"""Profiles of nodes and the titles of their groups."""


def main() -> None:
    """Measure one node: its folder for output and its title are the arguments."""
    folder, title = Path(sys.argv[1]), sys.argv[2]
    own = str(Path(sys.executable).parent / "nvidia-ctk")
    env = {"PATH": os.environ["PATH"]}
    subjects = [Subject(name="nothing", commands=[["/bin/true"]], env=env)]
    names = [("nvct", own)]
    if peer := os.environ.get("NVCT_BENCH_PEER"):
        names.append(("peer", f"{peer}/nvidia-ctk"))
    for name, program in names:
        output = str(folder / f"{name}.yaml")
        command = [program, "cdi", "generate", "--output", output]
        subjects.append(Subject(name=name, commands=[command], env=env))
    measure.interleaved(subjects, ROUNDS)
    report.print_group(title, subjects, subjects[2:])
