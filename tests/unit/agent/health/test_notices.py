# SPDX-License-Identifier: Apache-2.0
"""Notices: what was said just now is not repeated."""

from __future__ import annotations

import pytest

from nvct.agent.health.notices import AGAIN_S, Notices


@pytest.mark.parametrize(
    ("later", "is_new"),
    [(0.0, False), (AGAIN_S - 1, False), (AGAIN_S, True), (-1.0, False), (-3600.0, True)],
)
def test_a_sentence_is_repeated_after_a_while_even_if_the_clock_is_set_back(
    later: float, *, is_new: bool
) -> None:
    notices = Notices()
    assert notices.add("GPUUnhealthy", "XID 79", 1e6, ["GPU-0"], is_warning=True)

    again = notices.add("GPUUnhealthy", "XID 79", 1e6 + later, ["GPU-0"], is_warning=True)

    assert (again is not None) == is_new
