# SPDX-License-Identifier: Apache-2.0
"""Checks for every row of the corpus, and the golden table of verdicts."""

import json
from collections.abc import Callable
from pathlib import Path

from tests.hostile import corpus
from tests.hostile.shapes import LIVE, SHAPES, SPEC
from tests.integration.conftest import SimulatedNode


def check(
    simulated: SimulatedNode, golden: Callable[[str, str], None], by: Callable[[Path], None]
) -> None:
    """Start a container of every hostile image by one kind of program; compare the verdicts."""
    simulated.run(by)
    results = json.loads((simulated.work / corpus.RESULTS).read_text(encoding="utf-8"))
    assert {name: wrong for name, (_, wrong, _) in results.items() if wrong} == {}
    for name, (verdict, _, message) in results.items():
        if verdict == corpus.FAILED:
            codes = ("[unsafe-path]", "[host]", "[bad-", "cannot use /etc/")
            assert any(code in message for code in codes), (name, message)
    shapes = {shape.name: shape.stands_for for shape in (*SHAPES, *LIVE, *SPEC)}
    lines = [f"{name:24} {verdict:8} {shapes[name]}" for name, (verdict, _, _) in results.items()]
    program_kind = by.__name__.removeprefix("by_")
    golden(f"hostile/{program_kind}.txt", "".join(f"{line}\n" for line in lines))
