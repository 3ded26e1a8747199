# SPDX-License-Identifier: Apache-2.0
"""Unit tests for what tests share: limits of CPU time, and what is made once."""

import time
from pathlib import Path

import pytest

from tests.support import cpu
from tests.support.once import made_once


def test_cpu_time_over_the_limit_fails_and_waiting_does_not() -> None:
    with cpu.at_most(0.05):
        time.sleep(0.1)
    with pytest.raises(AssertionError, match="s of CPU time"), cpu.at_most(0.05):
        sum(range(20_000_000))


def test_a_limit_is_longer_on_a_busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(cpu, "_share", lambda: 0.25)
    limit = cpu.Limit(10)

    now[0] += 39
    assert not limit.is_over
    now[0] += 2
    assert limit.is_over


def test_what_failed_is_made_again_and_what_was_made_is_not(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    name, tries = f"once-{time.monotonic_ns()}", []

    def make(folder: Path) -> None:
        tries.append(folder)
        if len(tries) == 1:
            pytest.skip("not yet")
        (folder / "file").write_text("x")

    with pytest.raises(pytest.skip.Exception):
        made_once(tmp_path_factory, name, make)
    folder = made_once(tmp_path_factory, name, make)
    assert made_once(tmp_path_factory, name, make) == folder
    assert len(tries) == 2
    assert (folder / "file").read_text() == "x"
