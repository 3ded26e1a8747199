# SPDX-License-Identifier: Apache-2.0
"""CDI: a written spec is read unchanged, and no document causes an unexpected exception."""

import json
import string
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from nvct.cdi import names, versions
from nvct.cdi.make import store
from nvct.cdi.read import load, schema
from nvct.cdi.read.validate import validate
from nvct.cdi.types import Spec
from nvct.errors import CdiSpecError, RequestError

ALPHANUMERIC = string.ascii_letters + string.digits


def words(first: str, between: str, *, least: int) -> st.SearchStrategy[str]:
    """Return words that begin with `first` and end with a letter or digit."""
    longer = st.builds(
        lambda a, b, c: a + b + c,
        st.sampled_from(first),
        st.text(between, max_size=12),
        st.sampled_from(ALPHANUMERIC),
    )
    return longer if least > 1 else longer | st.sampled_from(first)


def optional(**fields: st.SearchStrategy[Any]) -> dict[str, st.SearchStrategy[Any]]:
    return fields


KIND_PART = words(string.ascii_letters, ALPHANUMERIC + "_.-", least=2)
DEVICE_NAME = words(ALPHANUMERIC, ALPHANUMERIC + "_.-:", least=1)
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
TRICKY = st.sampled_from(["", "0", "on", "y", "~", "1e3", "0:1", "007", "- a", "a: b", "#", "\n"])
PATH = TEXT.map(lambda text: "/" + text)
VARIABLE = st.builds(
    lambda name, value: f"{name.replace('=', '_')}={value}", TEXT.filter(bool), TEXT | TRICKY
)
UINT32 = st.integers(0, 2**32 - 1)
NODE = st.fixed_dictionaries(
    optional(path=PATH),
    optional=optional(
        hostPath=PATH,
        type=st.sampled_from("bcup"),
        major=st.integers(0, 4095),
        minor=st.integers(0, 2**20 - 1),
        fileMode=st.integers(0, 0o7777),
        permissions=st.sampled_from(["r", "rw", "rwm", "none"]),
        uid=UINT32,
        gid=UINT32,
    ),
)
MOUNT = st.fixed_dictionaries(
    optional(hostPath=PATH, containerPath=PATH),
    optional=optional(options=st.lists(TEXT.filter(bool), max_size=3), type=TEXT.filter(bool)),
)
HOOK = st.fixed_dictionaries(
    optional(hookName=st.sampled_from(["prestart", "createContainer", "poststop"]), path=PATH),
    optional=optional(
        args=st.lists(TEXT | TRICKY, max_size=3),
        env=st.lists(VARIABLE, max_size=2),
        timeout=st.integers(1, 100),
    ),
)
EDITS = st.fixed_dictionaries(
    {},
    optional=optional(
        env=st.lists(VARIABLE, min_size=1, max_size=3),
        deviceNodes=st.lists(NODE, min_size=1, max_size=2),
        mounts=st.lists(MOUNT, min_size=1, max_size=2),
        hooks=st.lists(HOOK, min_size=1, max_size=2),
        additionalGids=st.lists(st.integers(1, 2**32 - 1), min_size=1, max_size=3),
        intelRdt=st.fixed_dictionaries({}, optional=optional(enableMonitoring=st.booleans())),
    ),
)
ANNOTATIONS = st.dictionaries(DEVICE_NAME.map(lambda n: n.replace(":", "_")), TEXT | TRICKY)
DEVICE = st.fixed_dictionaries(
    optional(name=DEVICE_NAME, containerEdits=EDITS.filter(bool)),
    optional=optional(annotations=ANNOTATIONS),
)
SPEC = st.fixed_dictionaries(
    optional(
        cdiVersion=st.just("1.1.0"),
        kind=st.builds(lambda vendor, cls: f"{vendor}/{cls}", KIND_PART, KIND_PART),
        devices=st.lists(DEVICE, min_size=1, max_size=4, unique_by=lambda device: device["name"]),
    ),
    optional=optional(annotations=ANNOTATIONS, containerEdits=EDITS),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(KIND_PART, KIND_PART, DEVICE_NAME)
def test_a_name_is_parsed_into_its_parts(vendor: str, cls: str, device: str) -> None:
    assert names.parse(names.qualified(f"{vendor}/{cls}", device)) == (vendor, cls, device)


@given(st.text() | st.text(ALPHANUMERIC + "/=.-_:"))
def test_a_word_is_a_name_made_of_allowed_parts_or_refused(word: str) -> None:
    try:
        vendor, cls, device = names.parse(word)
    except RequestError:
        assert not names.is_qualified(word)
    else:
        assert f"{vendor}/{cls}={device}" == word
        assert set(word) <= set(ALPHANUMERIC + "/=.-_:")


@given(SPEC, st.sampled_from(store.FORMATS))
def test_a_written_spec_is_read_unchanged(document: dict[str, Any], form: str) -> None:
    spec = validate(document, source="document")

    again = load.loads(store.dumps(spec, form), source="again")

    assert again == {**document, "cdiVersion": versions.minimum_version(spec)}
    assert store.dumps(again, form) == store.dumps(spec, form)


@given(SPEC)
def test_a_spec_that_the_schema_accepts_is_valid(document: dict[str, Any]) -> None:
    schema.check(document, source="document")

    assert validate(document, source="document") == document


@given(SPEC)
def test_only_a_version_lower_than_needed_is_refused(document: dict[str, Any]) -> None:
    lowest = versions.minimum_version(validate(document, source="document"))

    for version in versions.KNOWN:
        document["cdiVersion"] = version
        try:
            validate(document, source="document")
        except CdiSpecError:
            assert versions.is_older(version, lowest)
        else:
            assert not versions.is_older(version, lowest)


@given(SPEC, JSON, st.randoms(use_true_random=False))
def test_a_damaged_spec_raises_only_document_errors(
    document: dict[str, Any], junk: object, random: Any
) -> None:
    places: list[tuple[Any, Any]] = []

    def walk(value: object) -> None:
        pairs = enumerate(value) if isinstance(value, list) else None
        for key, inner in value.items() if isinstance(value, dict) else pairs or ():
            places.append((value, key))
            walk(inner)

    walk(document)
    holder, key = random.choice(places)
    holder[key] = junk

    outcome = loaded(json.dumps(document).encode())

    if isinstance(outcome, str):
        assert outcome.startswith("document")
    else:
        again = load.loads(store.dumps(outcome), source="again")
        assert again["devices"] == outcome["devices"]


@given(st.binary() | st.text().map(str.encode))
def test_any_file_raises_only_cdi_errors(data: bytes) -> None:
    outcome = loaded(data)

    assert isinstance(outcome, str)
    assert outcome.startswith("document")


def loaded(data: bytes) -> Spec | str:
    """Return the spec, or the error as text."""
    try:
        return load.loads(data, source="document")
    except CdiSpecError as error:
        return error.message
