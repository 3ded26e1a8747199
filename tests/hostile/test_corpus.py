# SPDX-License-Identifier: Apache-2.0
"""Every hostile image by the shim, in real containers. (By hooks: test_corpus_hooks; two files so
that two workers share the time.)"""

from collections.abc import Callable

import pytest

from tests.hostile import corpus, verdicts
from tests.hostile.shapes import LIVE, SHAPES, SPEC
from tests.integration.conftest import SimulatedNode

WAYS = {"classic": corpus.by_classic, "farm": corpus.by_farm}


@pytest.mark.engine
@pytest.mark.parametrize("program_kind", WAYS)
def test_hostile_images_read_nothing_of_the_host(
    simulated: SimulatedNode, golden: Callable[[str, str], None], program_kind: str
) -> None:
    verdicts.check(simulated, golden, WAYS[program_kind])


def test_every_cve_has_a_shape() -> None:
    text = ", ".join(shape.stands_for for shape in SHAPES)
    assert text.count("CVE-") >= 10
    for cve in (
        "2024-0132", "2024-0133", "2024-0134", "2024-0135", "2024-0136", "2024-0137", "2025-23359",
        "2025-23266", "2025-23267", "2026-24260",
    ):  # fmt: skip
        assert cve in text
    assert len({shape.name for shape in (*SHAPES, *LIVE, *SPEC)}) == len(SHAPES) + len(LIVE) + len(
        SPEC
    )
