# SPDX-License-Identifier: Apache-2.0
"""Measure commands: CPU (user and system) of all their processes, and wall time, interleaved.

A container's init, and the hooks that it starts, outlive `runc create`. The measuring process is a
subreaper: they become its children, and their CPU time counts.
"""

import os
import resource
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from nvct.linux.kernel import call

PR_SET_CHILD_SUBREAPER = 36  # prctl(2)


@dataclass(kw_only=True)
class Subject:
    """A subject of a measurement.

    Attributes:
        name: in the report.
        commands: argument vectors that run in sequence and are measured together.
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
    """Run a subject's commands and record their CPU and wall time.

    Raises:
        RuntimeError: a command failed.
    """
    subject.prepare()
    before = _children_cpu()
    started = time.perf_counter()
    for command in subject.commands:
        pid = spawn(command, subject.env, subject.stdin)
        _, status = os.waitpid(pid, 0)
        if status:
            raise RuntimeError(f"{subject.name}: {' '.join(command)} ended with {status}")
    subject.wall.append((time.perf_counter() - started) * 1000)
    _reap_the_rest()
    subject.cpu.append((_children_cpu() - before) * 1000)


def _children_cpu() -> float:
    """Return the CPU seconds of all reaped children and their descendants."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _reap_the_rest() -> None:
    try:
        while True:
            os.waitpid(-1, 0)
    except ChildProcessError:
        return


def spawn(command: Sequence[str], env: Mapping[str, str], stdin: str = "/dev/null") -> int:
    """Start a command with its output discarded; return its process id."""
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, stdin, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0),
        (os.POSIX_SPAWN_OPEN, 2, "/dev/null", os.O_WRONLY, 0),
    ]
    return os.posix_spawn(command[0], list(command), dict(env), file_actions=actions)


def interleaved(subjects: Sequence[Subject], rounds: int) -> None:
    """Run all subjects in turn, `rounds` times, after one unrecorded run each."""
    call("prctl", PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
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
