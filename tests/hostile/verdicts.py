# SPDX-License-Identifier: Apache-2.0
"""What must hold of every row of the corpus, and the golden table of verdicts."""

from __future__ import annotations

import json

from tests.hostile import corpus
from tests.hostile.shapes import LIVE, SHAPES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.integration.conftest import SimulatedNode


def check(
    simulated: SimulatedNode, golden: Callable[[str, str], None], by: Callable[[Path], None]
) -> None:
    """Let every shape have its container by one way, and compare what became of them."""
    simulated.run(by)
    results = json.loads((simulated.work / corpus.RESULTS).read_text(encoding="utf-8"))
    assert {name: wrong for name, (_, wrong, _) in results.items() if wrong} == {}
    for name, (verdict, _, said) in results.items():
        if verdict == corpus.FAILED:
            assert "[unsafe-path]" in said or "[host]" in said or "[bad-" in said, (name, said)
    known = {shape.name: shape.stands_for for shape in (*SHAPES, *LIVE)}
    lines = [f"{name:24} {verdict:8} {known[name]}" for name, (verdict, _, _) in results.items()]
    way = by.__name__.removeprefix("by_")
    golden(f"hostile/{way}.txt", "".join(f"{line}\n" for line in lines))
