# SPDX-License-Identifier: Apache-2.0
"""The strict codec: what it reads back, what it refuses, and that nothing else happens."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvct import typed
from nvct.typed import MalformedError


class Range(NamedTuple):
    start: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    uuid: str
    place: Range
    pair: tuple[str, int] = ("", 0)

    def __post_init__(self) -> None:
        if "/" in self.uuid:
            raise ValueError("a UUID has no slash")


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    flag: bool
    number: int
    amount: float
    word: Literal["one", "two", 3]
    maybe: int | None = None
    either: str | Part | None = None
    parts: tuple[Part, ...] = ()
    values: Mapping[str, float] = field(default_factory=dict)
    by_name: dict[str, Part] = field(default_factory=dict)
    rest: object = None


PART = Part(uuid="GPU-1", place=Range(0, 4))
WHOLE = Whole(
    flag=True, number=1, amount=2.5, word="two", either=PART, parts=(PART, PART),
    values={"power": 1, "heat": 0.5}, by_name={"a": PART}, rest=[None, {"x": 1}],
)  # fmt: skip
TEXTS = st.text(st.characters(exclude_characters="/"), max_size=5)
PARTS = st.builds(
    Part, uuid=TEXTS, place=st.builds(Range, st.integers(), st.integers()),
    pair=st.tuples(TEXTS, st.integers()),
)  # fmt: skip
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | FLOATS | st.text(max_size=5),
    lambda each: (
        st.lists(each, max_size=3) | st.dictionaries(st.text(max_size=5), each, max_size=3)
    ),
    max_leaves=8,
)
WHOLES = st.builds(
    Whole, flag=st.booleans(), number=st.integers(), amount=FLOATS | st.integers(),
    word=st.sampled_from(("one", "two", 3)), maybe=st.none() | st.integers(),
    either=st.none() | TEXTS | PARTS, parts=st.lists(PARTS, max_size=2).map(tuple),
    values=st.dictionaries(TEXTS, FLOATS, max_size=2),
    by_name=st.dictionaries(TEXTS, PARTS, max_size=2), rest=JSON,
)  # fmt: skip


def sent(value: object) -> Any:
    return json.loads(json.dumps(typed.dump(value)))


@given(WHOLES)
def test_an_object_comes_back_as_it_was(whole: Whole) -> None:
    assert typed.load(Whole, sent(whole)) == whole


@given(JSON)
def test_whatever_comes_is_read_or_refused(value: object) -> None:
    for kind in (Whole, Part, Range, bool, dict[str, Part]):
        try:
            typed.load(kind, value)
        except MalformedError:
            pass


@given(st.data(), JSON)
def test_one_wrong_value_anywhere_is_refused_or_is_what_is_read(
    data: st.DataObject, other: object
) -> None:
    value = sent(WHOLE)
    here: Any = value
    while True:
        keys = list(here) if isinstance(here, dict) else list(range(len(here)))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(here[key], (dict, list)) or not here[key] or data.draw(st.booleans()):
            break
        here = here[key]
    here[key] = other
    try:
        loaded = typed.load(Whole, value)
    except MalformedError:
        return
    assert sent(loaded) == value


def change_of(**changes: object) -> Any:
    return {**sent(WHOLE), **changes}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "the whole: it is null, not an object"),
        (change_of(flag=1), "the whole.flag: it is an integer, not a boolean"),
        (change_of(number=True), "the whole.number: it is a boolean, not an integer"),
        (change_of(number=1.0), "the whole.number: it is a number, not an integer"),
        (change_of(amount=True), "the whole.amount: it is a boolean, not a number"),
        (change_of(amount=float("nan")), "the whole.amount: it is not finite"),
        (change_of(word=3.0), "the whole.word: it is not one of 'one', 'two', 3"),
        (change_of(maybe="x"), "the whole.maybe: it is a string, not an integer"),
        (change_of(values=[]), "the whole.values: it is a list, not an object"),
        (change_of(values={"a": None}), "the whole.values['a']: it is null, not a number"),
        (change_of(parts={}), "the whole.parts: it is an object, not a list"),
        (change_of(parts=[sent(PART), 1]), "the whole.parts[1]: it is an integer, not an object"),
        (change_of(parts=[{**sent(PART), "place": [1]}]), "the whole.parts[0].place: it is a list, not a list of 2"),
        (change_of(parts=[{**sent(PART), "pair": ["", True]}]), "the whole.parts[0].pair[1]: it is a boolean, not an integer"),
        (change_of(either={"uuid": ""}), "the whole.either: it is an object, not a string"),
        (change_of(by_name={"\n": {**sent(PART), "uuid": "/"}}), r"the whole.by_name['\n']: a UUID has no slash"),
        (change_of(more=1), "the whole: it has the unknown field 'more'"),
        ({"flag": True}, "the whole: it lacks number"),
    ],
)  # fmt: skip
def test_the_error_says_where_and_why(value: object, text: str) -> None:
    with pytest.raises(MalformedError) as caught:
        typed.load(Whole, value, "the whole")

    assert str(caught.value) == text


def test_a_huge_key_is_shown_shortly() -> None:
    with pytest.raises(MalformedError) as caught:
        typed.load(Whole, change_of(**{"x" * 1000: 1}))

    assert len(str(caught.value)) < 100


@pytest.mark.parametrize("kind", [list, set, list[int], dict[int, str], complex, "Whole"])
def test_a_type_that_json_has_not_is_an_error_of_the_caller(kind: Any) -> None:
    with pytest.raises(TypeError, match="not a type of JSON data"):
        typed.load(kind, [])
