# SPDX-License-Identifier: Apache-2.0
"""Measure commands: CPU (user and system, of all processes waited for) and wall time, interleaved."""

from __future__ import annotations

import os
import statistics
import time
from dataclasses import dataclass, field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


@dataclass(kw_only=True)
class Subject:
    """Something to measure.

    Attributes:
        name: for people.
        commands: argument vectors that are run one after another and measured together.
        prepare: called before each run, not measured.
        stdin: a file for the commands' standard input.
        cpu, wall: milliseconds of each run.
    """

    name: str
    commands: Sequence[Sequence[str]]
    env: Mapping[str, str]
    prepare: Callable[[], None] = lambda: None
    stdin: str = "/dev/null"
    cpu: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)


def run_once(subject: Subject) -> None:
    """Run a subject's commands and keep what they took.

    Raises:
        RuntimeError: a command failed.
    """
    subject.prepare()
    cpu = 0.0
    started = time.perf_counter()
    for command in subject.commands:
        pid = spawn(command, subject.env, subject.stdin)
        _, status, usage = os.wait4(pid, 0)
        cpu += usage.ru_utime + usage.ru_stime
        if status:
            raise RuntimeError(f"{subject.name}: {' '.join(command)} ended with {status}")
    subject.wall.append((time.perf_counter() - started) * 1000)
    subject.cpu.append(cpu * 1000)


def spawn(command: Sequence[str], env: Mapping[str, str], stdin: str = "/dev/null") -> int:
    """Start a command with its output thrown away; return its process id."""
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, stdin, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0),
        (os.POSIX_SPAWN_OPEN, 2, "/dev/null", os.O_WRONLY, 0),
    ]
    return os.posix_spawn(command[0], list(command), dict(env), file_actions=actions)


def interleaved(subjects: Sequence[Subject], rounds: int) -> None:
    """Run all subjects in turn, `rounds` times, after one run each that does not count."""
    for subject in subjects:
        run_once(subject)
        subject.cpu.clear()
        subject.wall.clear()
    for _ in range(rounds):
        for subject in subjects:
            run_once(subject)


def low(values: Sequence[float]) -> float:
    """Return the minimum."""
    return min(values)


def mid(values: Sequence[float]) -> float:
    """Return the median."""
    return statistics.median(values)


def spread(values: Sequence[float]) -> tuple[float, float]:
    """Return a 95 % confidence interval of the median, by order statistics."""
    ordered = sorted(values)
    count = len(ordered)
    half = 0.98 * count**0.5  # 1.96 * sqrt(n) / 2
    first = max(int(count / 2 - half), 0)
    last = min(int(count / 2 + half), count - 1)
    return ordered[first], ordered[last]
