# SPDX-License-Identifier: Apache-2.0
"""Every hostile image by every way to a GPU, in real containers: a table of verdicts each."""

from __future__ import annotations

import json

import pytest

from tests.hostile import corpus
from tests.hostile.shapes import SHAPES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.integration.conftest import SimulatedNode

WAYS = {
    "classic": corpus.by_classic,
    "farm": corpus.by_farm,
    "cdi": corpus.by_cdi,
    "prestart": corpus.by_prestart,
}


@pytest.mark.engine
@pytest.mark.parametrize("way", WAYS)
def test_hostile_images_get_nothing_out_of_the_host(
    simulated: SimulatedNode, golden: Callable[[str, str], None], way: str
) -> None:
    simulated.run(WAYS[way])
    results = json.loads((simulated.work / corpus.RESULTS).read_text(encoding="utf-8"))
    assert {name: wrong for name, (_, wrong, _) in results.items() if wrong} == {}
    for name, (verdict, _, said) in results.items():
        if verdict == corpus.FAILED:
            assert "[unsafe-path]" in said or "[host]" in said or "[bad-" in said, (name, said)
    known = {shape.name: shape.stands_for for shape in SHAPES}
    lines = [f"{name:24} {verdict:8} {known[name]}" for name, (verdict, _, _) in results.items()]
    golden(f"hostile/{way}.txt", "".join(f"{line}\n" for line in lines))


def test_every_cve_has_a_shape() -> None:
    text = ", ".join(shape.stands_for for shape in SHAPES)
    assert text.count("CVE-") >= 10
    for cve in (
        "2024-0132", "2024-0133", "2024-0134", "2024-0135", "2024-0136", "2024-0137", "2025-23359",
        "2025-23266", "2025-23267", "2026-24260",
    ):  # fmt: skip
        assert cve in text
    assert len({shape.name for shape in SHAPES}) == len(SHAPES)
