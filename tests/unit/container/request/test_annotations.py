# SPDX-License-Identifier: Apache-2.0
"""Device requests in annotations."""

from __future__ import annotations

import pytest

from nvct.config.model import Config
from nvct.container.request.annotations import requested
from nvct.errors import RequestError


def configured(mode: str = "auto", *prefixes: str) -> Config:
    config = Config(mode=mode)
    return config.replaced(annotation_prefixes=prefixes) if prefixes else config


def test_keys_are_read_in_order_and_values_split_and_trimmed() -> None:
    annotations = {
        "cdi.k8s.io/b": "v.com/gpu=2, v.com/gpu=1,",
        "cdi.k8s.io/a": "v.com/gpu=0",
        "x.cdi.k8s.io/c": "v.com/gpu=3",
    }

    words = requested(annotations, configured(), [])

    assert words == (
        "annotation cdi.k8s.io/a, cdi.k8s.io/b",
        ["v.com/gpu=0", "v.com/gpu=2", "v.com/gpu=1"],
    )


def test_prefixes_are_configured() -> None:
    annotations = {
        "cdi.k8s.io/a": "v.com/gpu=0",
        "mine/a": "v.com/gpu=1",
        "yours/a": "v.com/gpu=2",
    }

    assert requested(annotations, configured("auto", "mine/", "yours/"), []) == (
        "annotation mine/a, yours/a",
        ["v.com/gpu=1", "v.com/gpu=2"],
    )


@pytest.mark.parametrize(
    "annotations", [{}, {"a": "v.com/gpu=0"}, {"cdi.k8s.io/a": ""}, {"cdi.k8s.io/a": 5}], ids=str
)
def test_without_words_there_is_no_request(annotations: dict[str, object]) -> None:
    notes: list[str] = []

    assert requested(annotations, configured(), notes) is None
    assert notes == []


@pytest.mark.parametrize("mode", ["jit-cdi", "legacy", "csv"])
def test_other_modes_ignore_annotations_with_a_note(mode: str) -> None:
    notes: list[str] = []

    assert requested({"cdi.k8s.io/a": "v.com/gpu=0"}, configured(mode), notes) is None
    assert notes == [f"annotation cdi.k8s.io/a is ignored: mode {mode} reads no annotations"]


@pytest.mark.parametrize("word", ["0", "all", "void", "v.com/gpu"])
def test_mode_auto_takes_cdi_names_only(word: str) -> None:
    with pytest.raises(RequestError, match=r"^annotation cdi.k8s.io/a asks for"):
        requested({"cdi.k8s.io/a": word}, configured(), [])


def test_mode_cdi_takes_plain_words_too() -> None:
    assert requested({"cdi.k8s.io/a": "0,all"}, configured("cdi"), []) == (
        "annotation cdi.k8s.io/a",
        ["0", "all"],
    )


def test_a_huge_annotation_is_refused() -> None:
    with pytest.raises(RequestError, match="characters long"):
        requested({"cdi.k8s.io/a": "x" * 70000}, configured(), [])
