# SPDX-License-Identifier: Apache-2.0
"""Agents as real processes: of two on a node one serves, whichever is killed; one may sleep."""

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvct.host.modes import has_gpu
from tests.unit.agent.programs import Machine, Program, simulated, wait_for

SERVES = ("serving",)
LIMIT_S = 2.0
SLACK = 5
"""The limit is for an idle machine; a test may share its processors with others."""
ROUNDS = 6
SLEEPS_KIB = 25 << 10
"""The design allows 20 MiB; the size of the interpreter and its libraries differs by system."""


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with simulated("t4", "t4", tmp_path) as machine:
        yield machine


def serving(programs: list[Program]) -> list[Program]:
    return [p for p in programs if p.is_running and p.state in SERVES]


@pytest.mark.slow
def test_whichever_is_killed_exactly_one_serves(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    programs = [machine.start("--tasks=device-plugin")]
    wait_for(lambda: serving(programs) == programs, programs)
    dice, times = random.Random(), []
    for _ in range(ROUNDS):
        newer = machine.start()
        programs.append(newer)
        if dice.random() < 0.5:  # else one of them is killed while the newer one takes over
            wait_for(lambda newer=newer: serving(programs) == [newer], programs)
        time.sleep(dice.random())
        victim = dice.choice(programs)
        victim.kill()
        programs.remove(victim)
        if victim is newer or newer.state:
            times.append(wait_for(lambda: len(serving(programs)) == 1, programs, SLACK * LIMIT_S))
        else:  # it has not started yet
            wait_for(lambda: len(serving(programs)) == 1, programs)
    with capsys.disabled():
        print(f"\none serves again after {', '.join(f'{t:.1f}' for t in sorted(times))} s")
    assert [p.state for p in programs].count("standby") == len(programs) - 1


@pytest.mark.slow
def test_without_a_gpu_the_agent_sleeps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if has_gpu() or os.geteuid():
        pytest.skip("needs root's privileges and a machine without a GPU")
    machine = Machine(None, str(tmp_path), tmp_path)
    try:
        agent = machine.start()
        wait_for(lambda: agent.state == "waiting", machine.programs)
        loaded = Path(f"/proc/{agent.process.pid}/maps").read_text()
        size = agent.pss_kib()
    finally:
        machine.close()

    with capsys.disabled():
        print(f"\nthe sleeping agent takes {size / 1024:.1f} MiB (PSS, with NVML's supervisor)")
    assert "grpc" not in loaded
    assert size < SLEEPS_KIB
