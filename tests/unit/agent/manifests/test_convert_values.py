# SPDX-License-Identifier: Apache-2.0
"""Values of NVIDIA's charts become nvct's, by `nvct convert values`; tests/kubernetes renders them."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from nvct.agent.manifests.convert_values import convert
from nvct.errors import DocumentError
from tests.support.commands import invoke


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"driver": {"enabled": False}, "toolkit": {"version": "v1"}}, {"driver": {"enabled": False}}),
        ({"image": {"tag": "4.6.0", "pullPolicy": "Always"}}, {"image": {"pullPolicy": "Always"}}),
        ({"image": {"repository": "r/nvct"}}, {"image": {"repository": "r/nvct"}}),
        ({"gpuResourcesEnabledOverride": True, "resources": {"gpus": {"enabled": False}}},
         {"dra": {"enabled": False}}),
        ({"kubeletPlugin": {"nodeSelector": {"a": "b"}}, "nodeSelector": {"c": "d"}},
         {"nodeSelector": {"a": "b", "c": "d"}}),
        ({"nfd": {"enabled": False}, "controller": {"affinity": None}, "typo": 1, 2: 3, "a.b": 4}, {}),
    ],
)  # fmt: skip
def test_values_become_those_of_the_chart(given: dict[str, Any], expected: dict[str, Any]) -> None:
    before = yaml.safe_dump(given)
    assert convert(given, "values.yaml")[0] == expected
    assert yaml.safe_dump(given) == before


GONE = "nvct has no value of that name"


@pytest.mark.parametrize(
    ("given", "expected", "sentences"),
    [
        ({"typo": 1, "toolkit": {"version": "v1"}, "nfd": {"enabled": False}, "psp": {"a": 1}}, {},
         ["psp: Kubernetes no longer has these policies", f"typo: {GONE}",
          f"toolkit.version: {GONE}"]),
        ({"dcgmExporter": {"serviceMonitor": {"enabled": True, "labels": {"a": "b"}},
                           "config": {"map": {"c": "d"}}},
          "devicePlugin": {"config": {"name": "plugin", "fallbackStrategies": ["empty"]}}},
         {"dcgmExporter": {"serviceMonitor": {"enabled": True}, "config": {}},
          "devicePlugin": {"config": {"name": "plugin"}}},
         [f"dcgmExporter.config.map: {GONE}", f"dcgmExporter.serviceMonitor.labels: {GONE}",
          f"devicePlugin.config.fallbackStrategies: {GONE}"]),
        # The values of a parent chart are those of its dependency.
        ({"gpu-operator": {"nfd": {"a": 1}, "mig": {"strategy": "mixed"}}, "other": {"b": 2}},
         {"other": {"b": 2}, "nvct": {"mig": {"strategy": "mixed"}}},
         ["gpu-operator becomes nvct",
          "gpu-operator.nfd: nvct needs no Node Feature Discovery"]),
    ],
)  # fmt: skip
def test_each_value_that_goes_is_named(
    given: dict[str, Any], expected: dict[str, Any], sentences: list[str]
) -> None:
    assert convert(given, "values.yaml") == (expected, sentences)


@pytest.mark.parametrize("second", ["dcgm-exporter", "nvct"])
def test_a_parent_chart_with_two_of_them_is_refused(second: str) -> None:
    with pytest.raises(DocumentError, match=f"values of 2 charts: gpu-operator, {second}"):
        convert({"gpu-operator": {}, second: {}}, "values.yaml")


def test_the_command_prints_values_and_sentences(tmp_path: Path) -> None:
    file = tmp_path / "values"
    file.write_text("extraEnv: [{name: A, value: b}]\nhostPID: true\n")
    done = invoke("nvct", ["convert", "values", str(file)])
    assert yaml.safe_load(done.stdout) == {"dcgmExporter": {"env": [{"name": "A", "value": "b"}]}}
    assert done.stderr == (
        "extraEnv becomes dcgmExporter.env\nhostPID: the chart chooses which pods see the host's processes\n"
    )


def test_sections_that_share_a_text_by_an_alias_are_changed_one_by_one() -> None:
    shared = yaml.safe_load("exporter: &it {config: {create: true}}\ndcgmExporter: *it\n")
    values = {
        "dcgmExporter": shared["dcgmExporter"],
        "customMetrics": "a",
        "dra": shared["exporter"],
    }
    converted, _ = convert(values, "values.yaml")
    assert converted["dcgmExporter"]["config"] == {"create": True, "data": "a"}
    assert shared["exporter"] == {"config": {"create": True}}
    assert "data" not in str(converted.get("dra", {}))


def test_a_release_without_values_is_converted(tmp_path: Path) -> None:
    """`helm get values --output yaml` prints null then."""
    (tmp_path / "values.yaml").write_text("null\n")
    done = invoke("nvct", ["convert", "values", str(tmp_path / "values.yaml")])
    assert (done.exit_code, done.stdout, done.stderr) == (0, "{}\n", "")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("kind: HelmRelease\n", "has no values of a chart"),
        ("[]", "has no values of a chart"),
        ("a: 1\n---\nb: 2\n", "has no values of a chart"),
        (
            "basicAuth: {users: {a: b}}",
            "basicAuth.users: metrics would be served without a password",
        ),
    ],
)
def test_what_cannot_be_converted_is_refused(text: str, sentence: str, tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(text)
    done = invoke("nvct", ["convert", "values", str(file)])
    assert isinstance(done.exception, DocumentError)
    assert done.stdout == ""
    assert f"{file}" in done.exception.message
    assert sentence in done.exception.message


@pytest.mark.parametrize("words", [["x", "FILE"], ["values", "FILE", "--claims"], []])
def test_other_words_are_refused(words: list[str]) -> None:
    assert invoke("nvct", ["convert", *words]).exit_code == 2
