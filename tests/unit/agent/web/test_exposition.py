# SPDX-License-Identifier: Apache-2.0
"""The text of metrics, as Prometheus' own parser reads it."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families as parse

from nvct.agent.web.exposition import Family, Sample, text

ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r"))
"""The parser splits lines with splitlines, so that it refuses characters that Prometheus takes."""


@given(
    labels=st.dictionaries(
        st.from_regex("[a-z][a-z0-9_]*", fullmatch=True),
        ANY_TEXT.filter(lambda value: len(value.splitlines()) < 2),
        max_size=3,
    ),
    value=st.one_of(st.integers(-(2**53), 2**53), st.floats(allow_nan=False)),
)
def test_prometheus_reads_what_was_written(labels: dict[str, str], value: float) -> None:
    family = Family(
        name="some_metric", help="A\\b.", samples=(Sample(value=value, labels=labels),)
    )

    (read,) = parse(text([family]))

    (sample,) = read.samples
    assert (sample.name, sample.labels, sample.value) == ("some_metric", labels, value)
    assert (read.documentation, read.type) == ("A\\b.", "gauge")


def test_names_and_the_order_of_labels_stay() -> None:
    sample = Sample(value=2, labels={"b": "1", "a": 'x"\\\n'})
    family = Family(name="f_total", help="Two\nlines.", kind="counter", samples=(sample,))

    assert text([family]) == (
        "# HELP f_total Two\\nlines.\n# TYPE f_total counter\n"
        'f_total{b="1",a="x\\"\\\\\\n"} 2\n'
    )  # fmt: skip


@pytest.mark.parametrize(
    ("value", "written"),
    [(1.5, "1.5"), (math.inf, "+Inf"), (-math.inf, "-Inf"), (math.nan, "NaN"), (10**20, f"{10**20}")],
)  # fmt: skip
def test_values_are_those_of_the_format(value: float, written: str) -> None:
    family = Family(name="x", help="X.", samples=(Sample(value=value),))

    assert text([family]).splitlines()[-1] == f"x {written}"


def test_families_of_one_name_are_one_and_empty_ones_none() -> None:
    families = [
        Family(name="x", help="X.", samples=(Sample(value=1, labels={"a": "1"}),)),
        Family(name="empty", help="Nothing."),
        Family(name="x", help="Other.", samples=(Sample(value=2, labels={"a": "2"}),)),
    ]

    (read,) = parse(text(families))

    assert [sample.value for sample in read.samples] == [1, 2]
    assert read.documentation == "X."
