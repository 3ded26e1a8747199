# SPDX-License-Identifier: Apache-2.0
"""The fuzzer that needs nothing but Python: mutates seeds, and what was accepted, N times.

An input that ends in anything but an answer or an NvctError, that breaks a property, or that
takes longer than SLOW_S of processor time is saved, so that it can be played again.
"""

import hashlib
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.fuzz.mutate import mutate
from tests.fuzz.outcome import try_one
from tests.fuzz.targets import Target

FOUND = Path(__file__).parent / "found"
"""Inputs that once broke something; each is played again by `make test`."""
SLOW_S = 0.5
POOL = 512
KINDS = 12
"""So many different failures end a run."""


@dataclass(slots=True)
class Result:
    """What came of one run.

    Attributes:
        executions, accepted: inputs that were tried, and that the target had an answer to.
        seconds: wall-clock time.
        slowest: processor time of the slowest input.
        failures: what went wrong: one line, and the file that was saved.
    """

    executions: int = 0
    accepted: int = 0
    seconds: float = 0.0
    slowest: float = 0.0
    failures: list[tuple[str, Path]] = field(default_factory=list)


def save(target: Target, data: bytes, folder: Path) -> Path:
    """Keep an input that broke something."""
    place = folder / target.name
    place.mkdir(parents=True, exist_ok=True)
    path = place / hashlib.sha256(data).hexdigest()[:16]
    path.write_bytes(data)
    return path


def fuzz(target: Target, executions: int, seed: int, folder: Path) -> Result:
    """Run a target on so many mutated inputs.

    Args:
        target: what to run.
        executions: how often.
        seed: of the random numbers; the same one gives the same inputs.
        folder: where failing inputs go.
    """
    chosen = Random(seed)
    seeds = target.seeds()
    words = target.words
    pool = list(seeds)
    result = Result()
    seen: set[str] = set()
    clock, begin = time.process_time, time.monotonic()
    for data in seeds:
        if not try_one(target, data):
            raise AssertionError(f"{target.name} refuses the seed {data[:80]!r}")
    while result.executions < executions and len(seen) < KINDS:
        data = mutate(
            pool[int(chosen.random() * len(pool))],
            pool[int(chosen.random() * len(pool))],
            words,
            chosen,
        )
        result.executions += 1
        start = clock()
        try:
            accepted = try_one(target, data)
        except Exception as error:
            _note(target, data, error, seen=seen, result=result, folder=folder)
            continue
        took = clock() - start
        if took > result.slowest:
            result.slowest = took
            if took > SLOW_S and _is_slow(target, data):
                slow = TimeoutError(f"{took:.1f} s")
                _note(target, data, slow, seen=seen, result=result, folder=folder)
        if accepted:
            result.accepted += 1
            # What got through is the better start; the seeds themselves stay.
            if len(pool) < POOL:
                pool.append(data)
            else:
                pool[len(seeds) + int(chosen.random() * (POOL - len(seeds)))] = data
    result.seconds = time.monotonic() - begin
    return result


def _is_slow(target: Target, data: bytes) -> bool:
    """Tell whether an input is slow again: the first time, the machine may have been."""
    start = time.process_time()
    try_one(target, data)
    return time.process_time() - start > SLOW_S


def _note(
    target: Target,
    data: bytes,
    error: Exception,
    *,
    seen: set[str],
    result: Result,
    folder: Path,
) -> None:
    last = traceback.extract_tb(error.__traceback__)[-1:]
    where = "".join(f" at {Path(f.filename).name}:{f.lineno}" for f in last)
    if f"{type(error).__name__}{where}" in seen:
        return
    seen.add(f"{type(error).__name__}{where}")
    text = f"{type(error).__name__}{where}: {error!s:.200}"
    result.failures.append((text, save(target, data, folder)))
