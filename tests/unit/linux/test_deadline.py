# SPDX-License-Identifier: Apache-2.0
"""Deadlines of processes that wait for a processor, and of some that do not."""

import contextlib
import os
import posix
import subprocess
import time
from collections.abc import Callable, Iterator

import pytest

from nvct.linux import deadline
from nvct.linux.deadline import PARTS, Deadline, Use
from tests.support.cpu import Limit, starved

SPIN = "while :; do :; done"


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the time, to be changed."""
    at = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: at[0])
    return at


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Use:
    """Return what is seen of every process at the next look."""
    seen = Use(0)
    monkeypatch.setattr(deadline, "Use", lambda _pid: seen)
    return seen


def looks(limit: Deadline, now: list[float], at_most: int = 1000) -> int:
    """Return how many looks there are until the deadline."""
    for number in range(at_most):
        left_s = limit.left_s()
        if not left_s:
            return number
        now[0] += left_s
    return at_most


@contextlib.contextmanager
def running(script: str) -> Iterator[int]:
    process = subprocess.Popen(["/bin/sh", "-c", script], start_new_session=True)
    try:
        yield process.pid
    finally:
        os.killpg(process.pid, 9)
        process.wait()


def until(holds: Callable[[], object]) -> None:
    limit = Limit(60)
    while not holds():
        assert not limit.is_over
        time.sleep(0.05)


def passes(limit: Deadline) -> None:
    """Wait for a deadline, as its users do."""
    end = Limit(60)
    while left_s := limit.left_s():
        assert not end.is_over
        time.sleep(left_s)


@pytest.mark.parametrize("pid", [0, 1])
def test_a_deadline_passes_after_its_time(now: list[float], use: Use, pid: int) -> None:
    limit = Deadline(10.0, pid)

    assert looks(limit, now) == PARTS
    assert now[0] == pytest.approx(110)
    assert Deadline(0.0, pid).left_s() == 0
    assert Deadline(-1.0, pid).left_s() == 0


def test_who_is_ready_and_does_not_run_waits(now: list[float], use: Use) -> None:
    use.is_ready = True
    limit = Deadline(10.0, 1)

    assert looks(limit, now) == 1000
    use.is_ready = False
    assert looks(limit, now) == PARTS - 1


def test_only_the_time_counts_in_which_it_ran(now: list[float], use: Use) -> None:
    use.is_ready = True
    limit = Deadline(10.0, 1)
    number = 0
    while left_s := limit.left_s():
        now[0] += left_s
        use.ran_s += 0.1
        number += 1

    assert number == pytest.approx(100, abs=6)  # to half a part
    assert now[0] == pytest.approx(150, abs=3)


def test_a_caller_that_waits_for_a_processor_counts_one_part(now: list[float], use: Use) -> None:
    limit = Deadline(10.0, 1)

    now[0] += 1000

    assert limit.left_s() == 10 / PARTS


@pytest.mark.parametrize("spinning", [f"{SPIN} & {SPIN} & {SPIN} & wait", SPIN])
def test_what_loops_is_over_although_others_want_the_processor(spinning: str) -> None:
    with starved(), running(spinning) as pid:
        passes(Deadline(0.2, pid))


def test_who_waited_does_not_hang_longer_for_it() -> None:
    script = f"for i in 1 2 3 4 5 6; do timeout 0.3 sh -c '{SPIN}' & done; wait; sleep 600"
    with starved(), running(script) as pid:
        passes(Deadline(1.0, pid))


def test_what_the_kernel_says_of_a_process_and_its_children() -> None:
    with running(f"({SPIN}) & wait") as pid:
        until(lambda: Use(pid).ran_s > 0.1)
        seen = Use(pid)
        assert seen.is_ready
        assert seen.threads == 2
    ended = Use(pid)
    assert (ended.is_ready, ended.ran_s, ended.threads) == (False, 0, 0)


def test_the_time_of_ended_children_counts() -> None:
    with running("i=0; while [ $i -lt 40 ]; do (j=0; while [ $j -lt 9999 ]; do j=$((j+1)); done); "
                 "i=$((i+1)); done; exec sleep 600") as pid:  # fmt: skip
        until(lambda: not (seen := Use(pid)).is_ready and seen.threads == 1 and seen.ran_s > 0.1)


def test_who_sleeps_is_not_ready() -> None:
    with running("exec sleep 600") as pid:
        until(lambda: not Use(pid).is_ready)


def test_too_many_threads_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadline, "THREADS", 2)
    with running(f"({SPIN}) & ({SPIN}) & ({SPIN}) & wait") as pid:
        until(lambda: Use(pid).threads >= 2)
        assert not Use(pid).is_ready


def test_the_processes_of_another_pid_namespace_are_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert Use(1).threads
    monkeypatch.setattr(posix, "readlink", lambda _path: "4711")
    assert not Use(1).threads


def test_the_thread_that_asks_is_left_out() -> None:
    assert not Use(os.getpid()).is_ready
