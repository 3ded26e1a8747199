# SPDX-License-Identifier: Apache-2.0
"""Cost of `nvidia-ctk cdi generate` on nodes of growing size, inside each node's namespace.

On the smallest node also the cold starts of the commands that scripts run most often.
"""

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
COLD_STARTS = ("--version", "cdi list", "cdi generate", "--help")
COLD_ROUNDS = int(os.environ.get("NVCT_BENCH_COLD_ROUNDS", "20"))


def main() -> None:
    """Measure one node; the arguments are its output folder and its title."""
    folder, title = Path(sys.argv[1]), sys.argv[2]
    if title == PROFILES["h100"]:
        for words in COLD_STARTS:
            _measure(f"cold start: nvidia-ctk {words}", words.split(), COLD_ROUNDS)
    _measure(title, ["cdi", "generate", "--output", f"{folder}/{{name}}.yaml"], ROUNDS)


def _measure(title: str, words: list[str], rounds: int) -> None:
    """Measure a command line of nvidia-ctk and the incumbent's; {name} in it names which."""
    env = {"PATH": os.environ["PATH"]}
    subjects = [Subject(name="nothing", commands=[["/bin/true"]], env=env)]
    names = [("nvct", str(Path(sys.executable).parent / "nvidia-ctk"))]
    if peer := os.environ.get("NVCT_BENCH_PEER"):
        names.append(("peer", f"{peer}/nvidia-ctk"))
    for name, program in names:
        command = [program, *(word.format(name=name) for word in words)]
        subjects.append(Subject(name=name, commands=[command], env=env))
    measure.interleaved(subjects, rounds)
    report.print_group(title, subjects, subjects[2:])
