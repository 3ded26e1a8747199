# SPDX-License-Identifier: Apache-2.0
"""The user's own labels: constants, references, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvct.agent.labels import custom
from nvct.errors import DocumentError

LABELS = {"nvidia.com/gpu.product": "Tesla-T4"}


def test_constants_and_references_are_added(tmp_path: Path) -> None:
    file = tmp_path / "labels.yaml"
    file.write_text(
        "example.com/pool: training\n"
        'example.com/gpu: "@nvidia.com/gpu.product"\n'
        'example.com/none: "@nvidia.com/gpu.absent"\n'
        "rack: 7\n"
        "ready: true\n"
        "nvidia.com/gpu.product: mine\n"
    )

    labels, warnings = custom.added(LABELS, custom.load(str(file)))

    assert labels == {
        **LABELS, "example.com/pool": "training", "example.com/gpu": "Tesla-T4", "rack": "7",
        "ready": "true",
    }  # fmt: skip
    assert warnings == [
        "label nvidia.com/gpu.product of the labels file is left out: nvct sets it"
    ]


def test_an_empty_file_has_no_labels(tmp_path: Path) -> None:
    (tmp_path / "labels.yaml").touch()
    assert custom.load(f"{tmp_path}/labels.yaml") == {}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a b: c", "'a b' is no key of a label"),
        ("a: b c", "'b c' is no value of label a"),
        ("a: [1]", r"\[1\] is no value of label a"),
        ("a:", "None is no value of label a"),
        ('a: "@b c"', "'@b c' is no value of label a"),
        ("kubernetes.io/hostname: x", "is of a domain that is Kubernetes's own"),
        ("node-role.kubernetes.io/gpu: x", "is of a domain that is Kubernetes's own"),
        ("topology.k8s.io/rack: x", "is of a domain that is Kubernetes's own"),
        ("- a", "is no table"),
        ("{", "is malformed"),
    ],
)
def test_a_bad_file_is_refused_with_a_sentence(text: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "labels.yaml").write_text(text)
    with pytest.raises(DocumentError, match=sentence):
        custom.load(f"{tmp_path}/labels.yaml")


def test_labels_of_node_feature_discovery_are_allowed(tmp_path: Path) -> None:
    (tmp_path / "labels.yaml").write_text("feature.node.kubernetes.io/mine: x")
    assert custom.load(f"{tmp_path}/labels.yaml") == {"feature.node.kubernetes.io/mine": "x"}


def test_a_missing_file_is_named() -> None:
    with pytest.raises(DocumentError, match="labels file /nowhere: No such file"):
        custom.load("/nowhere")
