# SPDX-License-Identifier: Apache-2.0
"""Deadlines of processes that wait for a processor, and of some that do not."""

import os
import subprocess
import time

import pytest

from nvct.linux import deadline
from nvct.linux.deadline import LOOK_S, Deadline, Use
from tests.support.cpu import starved


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Use:
    """Return what is said of every process at the next look."""
    told = Use(0)
    told.waited_s = 3.0

    def look(_pid: int) -> Use:
        seen = Use(0)
        seen.is_ready, seen.ran_ns, seen.waited_s = told.is_ready, told.ran_ns, told.waited_s
        return seen

    monkeypatch.setattr(deadline, "Use", look)
    return told


def test_a_deadline_passes(use: Use) -> None:
    assert 9 < Deadline(10.0).left_s() <= 10
    assert Deadline(0.0).left_s() == 0
    assert Deadline(0.0, os.getpid()).left_s() == 0
    assert Deadline(-1.0, os.getpid()).left_s() == 0
    assert use.waited_s == 3


def test_the_wait_for_a_processor_is_added_once(use: Use) -> None:
    limit = Deadline(0.0, os.getpid())
    use.waited_s += 20

    assert 19 < limit.left_s() <= 20
    assert 19 < limit.left_s() <= 20
    late = Deadline(-20.0, os.getpid())
    use.waited_s += 1
    assert late.left_s() == 0


def test_a_short_wait_does_not_make_its_caller_look_all_the_time(use: Use) -> None:
    limit = Deadline(0.0, os.getpid())
    use.waited_s += 0.01

    assert limit.left_s() in {0, LOOK_S}


def test_who_is_ready_and_does_not_run_waits(use: Use) -> None:
    limit = Deadline(0.0, os.getpid())
    use.is_ready = True

    assert limit.left_s() == LOOK_S
    assert limit.left_s() == LOOK_S
    use.ran_ns += 1  # it has run between two looks: only the next one tells whether it loops
    assert limit.left_s() == LOOK_S
    use.ran_ns += 1
    assert limit.left_s() == 0


def test_what_loops_is_over_although_others_want_the_processor() -> None:
    with starved():
        loop = subprocess.Popen(["/bin/sh", "-c", "while :; do :; done"])
        try:
            limit = Deadline(0.2, loop.pid)
            end = time.monotonic() + 60
            while limit.left_s():
                assert time.monotonic() < end
                time.sleep(LOOK_S)
        finally:
            loop.kill()
            loop.wait()


def test_a_process_that_has_ended_waits_no_longer(use: Use) -> None:
    limit = Deadline(0.0, os.getpid())
    use.waited_s = 0.0

    assert limit.left_s() == 0


def test_what_a_kernel_says_of_a_process_and_its_children() -> None:
    with starved():
        child = subprocess.Popen(["/bin/sh", "-c", "(while :; do :; done) & wait"])
        try:
            end = time.monotonic() + 60
            while Use(child.pid).waited_s < 0.2:
                assert time.monotonic() < end
                time.sleep(0.05)
            seen = Use(child.pid)
            assert seen.is_ready
            assert seen.ran_ns > 0
        finally:
            subprocess.run(["pkill", "-P", str(child.pid)], check=True)
            child.wait()
    ended = Use(child.pid)
    assert (ended.is_ready, ended.ran_ns, ended.waited_s) == (False, 0, 0)


def test_who_sleeps_is_not_ready() -> None:
    idle = subprocess.Popen(["sleep", "600"])
    try:
        end = time.monotonic() + 60
        while Use(idle.pid).is_ready:
            assert time.monotonic() < end
            time.sleep(0.05)
    finally:
        idle.kill()
        idle.wait()
