# SPDX-License-Identifier: Apache-2.0
"""Written YAML is read unchanged by PyYAML and by libyaml."""

from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from nvct.cdi.make import store

READERS: list[Any] = [
    yaml.SafeLoader,
    *([yaml.CSafeLoader] if hasattr(yaml, "CSafeLoader") else []),
]
# Lone surrogates are no text that a file could hold.
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
WORDS = st.sampled_from(
    [
        "y", "No", "ON", "null", "~", "1e3", "0:1", "0x1F", "1_000", ".5", ".inf", "=", "<<", "-",
        "---", "...", "- a", "a: b", "a #b", "#", "--link", "-x", "a::/b", "a:", ":a", "2026-11-21",
        "/dev/nvidia0", "NVIDIA_VISIBLE_DEVICES=void", "GPU-0f8377f3", "MIG-GPU-1/2/3", "", " ", "\x85",
        "\u2028", "\ufeff", "\U0001f600", "é", "'", '"', "\\", "!a", "&a", "*a", "%a", "@a", "`a", "?", "{}", "[a]",
    ]
)  # fmt: skip
SCALARS = st.one_of(TEXTS, WORDS, st.integers(-(2**40), 2**40), st.booleans())
DOCUMENTS: st.SearchStrategy[dict[str, Any]] = st.dictionaries(
    st.one_of(TEXTS, WORDS),
    st.recursive(
        SCALARS,
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(st.one_of(TEXTS, WORDS), inner, max_size=4)
        ),
        max_leaves=12,
    ),
    max_size=4,
)


@given(DOCUMENTS)
@example({"a": [[1, [2, "3"]], {"b": {"c": []}}, {}]})
def test_document_is_read_back_as_it_was(document: dict[str, Any]) -> None:
    text = store.yaml_text(document)

    for reader in READERS:
        assert yaml.load(text, Loader=reader) == document  # noqa: S506  both are safe loaders


def test_value_of_another_type_is_refused() -> None:
    with pytest.raises(TypeError, match="float"):
        store.yaml_text({"a": 1.5})


def test_lists_are_written_below_their_key_as_engines_do() -> None:
    text = store.yaml_text({"devices": [{"name": "0", "env": ["A=b"]}], "kind": "a.b/c"})

    assert text == '---\ndevices:\n- name: "0"\n  env:\n  - A=b\nkind: a.b/c\n'
