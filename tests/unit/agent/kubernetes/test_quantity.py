# SPDX-License-Identifier: Apache-2.0
"""Numbers as Kubernetes writes them."""

import pytest

from nvct.agent.kubernetes import quantity


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("80Gi", 80 << 30), ("1500M", 1_500_000_000), ("7", 7), ("1.5Gi", 1.5 * 2**30),
        ("1k", 1000), ("12e2", 1200), ("1E", 10**18), ("x", None), ("", None), ("-1", None),
        ("4Ki", 4096), ("4ki", None), ("3K", None), ("1e-1", 0.1), ("500m", 0.5),
    ],
)  # fmt: skip
def test_quantities(text: str, number: float | None) -> None:
    assert quantity.parse(text) == number


@pytest.mark.parametrize(("value", "number"), [("1k", 1000), (8, 8), ("many", 0), (None, 0)])
def test_counts(value: object, number: int) -> None:
    assert quantity.count(value) == number
