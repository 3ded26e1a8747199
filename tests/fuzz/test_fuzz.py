# SPDX-License-Identifier: Apache-2.0
"""Each fuzz target for a short while, and on all that once broke something."""

import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz import go_json, loop, targets
from tests.fuzz.large import LARGE
from tests.fuzz.mutate import MOST, mutate
from tests.fuzz.outcome import try_one

REPOSITORY = Path(__file__).parents[2]
PATIENCE_S = 2.5
"""Processor time: well under one second where nothing is quadratic, minutes where it is."""
NAMES = sorted(targets.TARGETS)
FOUND = sorted(path for path in loop.FOUND.glob("*/*") if path.parent.name in targets.TARGETS)


@pytest.mark.parametrize("name", NAMES)
@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=150)
@given(number=st.integers(0, 1 << 32), rounds=st.integers(1, 8))
def test_mutated_inputs_are_answered_or_refused(name: str, number: int, rounds: int) -> None:
    target = targets.TARGETS[name]
    seeds = target.seeds()
    chosen = Random(number)
    data = seeds[number % len(seeds)]
    for _ in range(rounds):
        data = mutate(data, seeds[0], target.words, chosen)
    try_one(target, data)


@pytest.mark.parametrize("name", NAMES)
@given(data=st.binary(max_size=200))
def test_any_bytes_are_answered_or_refused(name: str, data: bytes) -> None:
    try_one(targets.TARGETS[name], data)


@pytest.mark.parametrize("name", NAMES)
def test_every_seed_is_accepted(name: str) -> None:
    target = targets.TARGETS[name]
    assert all(try_one(target, data) for data in target.seeds())


@pytest.mark.parametrize("path", FOUND, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_what_was_found_once_is_not_found_again(path: Path) -> None:
    try_one(targets.TARGETS[path.parent.name], path.read_bytes())


@pytest.mark.parametrize(
    ("name", "shape"), [(name, shape) for name in LARGE for shape in LARGE[name]]
)
def test_a_large_input_takes_no_longer_than_it_must(name: str, shape: str) -> None:
    data = LARGE[name][shape]
    start = time.process_time()
    try_one(targets.TARGETS[name], data)
    assert time.process_time() - start < PATIENCE_S


def test_the_loop_finds_what_is_there_and_says_how_to_repeat_it(tmp_path: Path) -> None:
    def broken(data: bytes) -> bool:
        if data.count(b"all") > 1:
            raise KeyError("twice")
        return True

    target = targets.Target(name="broken", run=broken, seeds=lambda: [b"0,all"], words=[b"all"])
    result = loop.fuzz(target, 5000, 1, tmp_path)
    ((text, path),) = result.failures
    assert text.startswith("KeyError at test_fuzz.py:")
    assert path.read_bytes().count(b"all") > 1
    again = loop.fuzz(target, 5000, 1, tmp_path)
    assert (again.failures, again.accepted) == (result.failures, result.accepted)


def test_the_loop_finds_what_is_slow(tmp_path: Path) -> None:
    slow: list[bytes] = []

    def run(data: bytes) -> bool:
        if data.startswith(b"\0") and len(slow) < 2:
            slow.append(data)
            end = time.process_time() + loop.SLOW_S * 1.1
            while time.process_time() < end:
                pass
        return True

    target = targets.Target(name="slow", run=run, seeds=lambda: [b"x"], words=[b"\0"])
    result = loop.fuzz(target, 300, 2, tmp_path)
    assert [text.partition(":")[0] for text, _ in result.failures] == ["TimeoutError"]
    assert slow[0] == slow[1]


def test_a_target_that_refuses_its_seeds_is_a_mistake(tmp_path: Path) -> None:
    target = targets.Target(name="no", run=lambda _: False, seeds=lambda: [b"x"], words=[])
    with pytest.raises(AssertionError, match="refuses the seed"):
        loop.fuzz(target, 1, 1, tmp_path)


def test_inputs_stay_small() -> None:
    chosen = Random(1)
    data = b"x" * MOST
    for _ in range(200):
        data = mutate(data, data, [b"word" * 20], chosen)
        assert len(data) <= MOST


@pytest.mark.parametrize(
    ("text", "env"),
    [
        ('{"Process":{"env":["a"]}}', ["a"]),
        ('{"proce\\u017f\\u017f":{"ENV":["a"]}}', ["a"]),
        ('{"process":{"env":["a"]},"process":{"env":["b"]}}', ["b"]),
        ('{"process":{"env":["a"]},"process":{"cwd":"/"}}', ["a"]),
        ('{"process":{"env":["\\ud800a"]}}', ["\ufffda"]),
        ('{"process":null}', []),
        ('{"process":{"env":[null]}}', [""]),
    ],
)
def test_the_model_of_gos_reader_knows_its_rules(text: str, env: list[str]) -> None:
    assert go_json.Reading(text.encode()).env == env


@pytest.mark.parametrize("text", ['{"process":[]}', '{"process":{"env":[1]}}', "[]", "{} {}"])
def test_the_model_of_gos_reader_refuses_other_types(text: str) -> None:
    with pytest.raises(go_json.GoRefusesError):
        go_json.Reading(text.encode())


def test_the_command_line_runs_a_target_and_replays_a_file(tmp_path: Path) -> None:
    def fuzz(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "tests.fuzz", *words], cwd=REPOSITORY, capture_output=True,
            text=True, check=False, timeout=120,
        )  # fmt: skip

    done = fuzz("elf", "--engine", "plain", "--executions", "500", "--seed", "1")
    assert (done.returncode, done.stderr) == (0, "")
    assert "seed 1" in done.stdout
    assert "500 executions" in done.stdout
    path = tmp_path / "input"
    path.write_bytes(b"no library")
    assert fuzz("elf", "--replay", str(path)).stdout == "refused\n"
    assert fuzz("nothing").returncode == 2
