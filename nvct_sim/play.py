# SPDX-License-Identifier: Apache-2.0
"""Plays a script of changes to a simulated node, for example a GPU that works and then fails.

A script is TOML, or YAML with the same keys::

    [[step]]
    at = 0                      # seconds since the start
    gpu = 0
    set = {util = 90, temp = 70}

    [[step]]
    at = 10
    over = 30                   # seconds of a linear change from the current value
    gpu = 0
    set = {temp = 95}

    [[step]]
    at = 45
    do = "xid 0 79"             # any change of `nvct sim set`

The whole script is checked before the first change.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nvct.config import toml
from nvct.errors import DocumentError, NvctError, UsageError
from nvct_sim import node_changes, state
from nvct_sim.tree import Node

KEYS = ("at", "over", "gpu", "set", "do")
INTERVAL_S = 0.5  # Between two values of a linear change


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A change in a script."""

    at_s: float  # seconds since the start
    change: tuple[str, ...]  # a name of node_changes.CHANGES and its arguments
    over_s: float = 0.0

    def __str__(self) -> str:
        """Return the change as in `nvct sim set`, for a log."""
        over = f" over {self.over_s:g} s" if self.over_s else ""
        return f"{' '.join(self.change)}{over}"


def read(path: Path) -> tuple[Step, ...]:
    """Return a script's steps in the order of their times; DocumentError for another file."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise DocumentError(f"cannot read {path}: {reason}") from error
    document = _yaml(text, path) if path.suffix in (".yaml", ".yml") else _toml(text, path)
    if not isinstance(document, dict) or set(document) != {"step"}:
        raise DocumentError(f"{path} is not a script", hint="write [[step]] tables only")
    steps = document["step"]
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        raise DocumentError(f"step in {path} is not a list of tables", hint="write [[step]]")
    parsed = []
    for number, step in enumerate(steps, 1):
        try:
            parsed.append(_step(step))
        except NvctError as error:
            hint = error.hint
            raise DocumentError(f"step {number} of {path}: {error.message}", hint=hint) from error
    return tuple(sorted(parsed, key=lambda step: step.at_s))


def check(node: Node, steps: Sequence[Step]) -> None:
    """Check that the GPUs of all steps exist; DocumentError if one does not."""
    now = node.state()
    for step in steps:
        usage, _ = node_changes.CHANGES[step.change[0]]
        if usage.startswith("GPU") and step.change[1].isdecimal():
            now.gpu(int(step.change[1]))


def play(
    node: Node,
    steps: Sequence[Step],
    tell: Callable[[str], None],  # called with a line about each step
    *,
    speed: float = 1.0,  # how much faster than written
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,  # seconds that do not go back
) -> None:
    """Carry out all steps at their times; NvctError if a change fails, and former changes stay."""
    began = clock()
    starts: dict[int, Mapping[str, str]] = {}
    for at_s, number in _moments(steps):
        wait_s = at_s / speed - (clock() - began)
        if wait_s > 0:
            sleep(wait_s)
        step = steps[number]
        if number not in starts:
            tell(f"{at_s:8.1f} s  {step}")
            gpu = step.over_s and node.state().gpu(int(step.change[1]))
            starts[number] = dict(gpu.fields) if gpu else {}
        part = (at_s - step.at_s) / step.over_s if step.over_s else 1.0
        node_changes.apply(node, step.change[0], _words(step, starts[number], part))


def _moments(steps: Sequence[Step]) -> list[tuple[float, int]]:
    """Return times in seconds since the start, each with the number of the step to carry out."""
    moments = []
    for number, step in enumerate(steps):
        count = int(step.over_s / INTERVAL_S)
        moments += [(step.at_s + i * INTERVAL_S, number) for i in range(count)]
        moments.append((step.at_s + step.over_s, number))
    return sorted(moments)


def _words(step: Step, start: Mapping[str, str], part: float) -> list[str]:
    """Return the arguments of a change, or of a part (0 to 1) of a linear change."""
    if part >= 1:
        return list(step.change[1:])
    index, *pairs = step.change[1:]
    words = [index]
    for name, _, end in (pair.partition("=") for pair in pairs):
        first = int(start.get(name, 0))
        words.append(f"{name}={round(first + (int(end) - first) * part)}")
    return words


def _step(step: Mapping[str, Any]) -> Step:
    unknown = sorted(map(str, set(step) - set(KEYS)))
    if unknown:
        raise UsageError(f"unknown key {unknown[0]!r}", hint=f"use one of {', '.join(KEYS)}")
    at_s, over_s = (_seconds(step.get(key, 0 if key == "over" else None), key)
                    for key in ("at", "over"))  # fmt: skip
    if "do" in step:
        if not isinstance(step["do"], str) or set(step) - {"at", "do"}:
            raise UsageError(
                "do must be a text, without keys except at", hint='for example do = "xid 0 79"'
            )
        words = tuple(shlex.split(step["do"]))
        node_changes.check(words[0] if words else "", words[1:])
        return Step(at_s=at_s, change=words)
    fields = step.get("set")
    if not isinstance(fields, dict) or not fields or type(step.get("gpu")) is not int:
        raise UsageError(
            "there is neither do nor gpu with set",
            hint="for example gpu = 0 and set = {temp = 91}",
        )
    for name, value in fields.items():
        _check_field(name, value, is_line=bool(over_s))
    pairs = [f"{name}={value}" for name, value in fields.items()]
    return Step(at_s=at_s, over_s=over_s, change=("gpu", str(step["gpu"]), *pairs))


def _check_field(name: str, value: object, *, is_line: bool) -> None:
    if name not in state.NAMES:
        raise UsageError(
            f"a GPU has no field {name!r}", hint=f"use one of {', '.join(state.NAMES)}"
        )
    if type(value) not in (int, str):
        raise UsageError(f"{name} must be a number or a word, not {value!r}")
    state.value(name, str(value))
    if is_line and name not in state.NUMBERS:
        raise UsageError(f"{name} cannot change linearly", hint="leave over out")


def _seconds(value: object, key: str) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value < 1e6:
        raise UsageError(f"{key} must be a number of seconds", hint=f"for example {key} = 10")
    return float(value)


def _toml(text: str, path: Path) -> object:
    try:
        return toml.loads(text)
    except (ValueError, RecursionError) as error:
        raise DocumentError(f"{path} is not TOML: {error}") from error


def _yaml(text: str, path: Path) -> object:
    import yaml

    from nvct.host.yaml_aliases import Loader

    try:
        return yaml.load(text, Loader=Loader)  # noqa: S506 - a SafeLoader
    except (yaml.YAMLError, RecursionError) as error:
        problem = " ".join(str(error).split())
        raise DocumentError(f"{path} is not YAML: {problem}") from error
