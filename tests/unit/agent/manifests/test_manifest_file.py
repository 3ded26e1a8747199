# SPDX-License-Identifier: Apache-2.0
"""Manifests are read as kubectl reads them, and what is written it reads as the same."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from nvct.agent.manifests import manifest_file
from nvct.errors import DocumentError


def loaded(path: Path, text: str) -> Any:
    file = path / "manifest.yaml"
    file.write_text(text)
    return manifest_file.load_all(str(file))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0777", 511), ("0o17", 15), ("0x1F", 31), ("1e3", 1000.0), ('"1e3"', "1e3"),
        ("1:30", "1:30"), ("2026-11-24", "2026-11-24"), ("y", "y"), ("on", True), ("0.50", 0.5),
        ('"0777"', "0777"), ("0b11", 3), ("1_000", 1000), ("~", None), ("-5", -5), ("+7", 7),
    ],
)  # fmt: skip
def test_values_are_those_of_yaml_1_1(text: str, value: object, tmp_path: Path) -> None:
    assert loaded(tmp_path, f"a: {text}\n") == [{"a": value}]
    assert loaded(tmp_path, manifest_file.dump_all([{"a": value}])) == [{"a": value}]


@pytest.mark.parametrize(
    "text", ["1e3", "12345e6", "0777", "0o7", "y", "N", "on", "1:30", "2026-11-24", "null", "~",
             "1_000", ".5", "0x1F", "=", "<<", "", " a", "a: b", "# a", "-", "1.10", "+1", ".inf"]
)  # fmt: skip
def test_a_string_that_looks_like_another_value_has_quotes(text: str) -> None:
    assert re.search(r"""^- (["']).*\1$""", manifest_file.dump_all([[text]])), text


def test_scripts_stay_readable_and_long_lines_whole() -> None:
    script = "set -e\n" + "nvidia-smi " * 30 + "-L\necho ü\n"
    text = manifest_file.dump_all([{"args": [script]}])
    assert "- |\n  set -e\n  nvidia-smi nvidia-smi" in text
    assert "echo ü" in text
    assert yaml.safe_load(text) == {"args": [script]}


def test_what_is_shared_is_written_twice() -> None:
    shared = {"a": "b"}
    assert "*" not in manifest_file.dump_all([[shared, shared]])


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: 1\na: 2\n", "malformed in line 2: duplicate key a"),
        ("a: {{ .Values.a }}\n", "malformed in line 1"),
        ("{{- if .Values.a }}\n", "malformed in line 1"),
        ("a: !!python/object:os.system {}\n", "is not allowed"),
        ("[" * 200, "nested too deeply"),
    ],
)
def test_what_is_no_manifest_is_refused(text: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(DocumentError) as error:
        loaded(tmp_path, text)
    assert sentence in error.value.message


def test_a_chart_with_its_definitions_is_not_too_large(tmp_path: Path) -> None:
    file = tmp_path / "manifest.yaml"
    file.write_text("# " + "x" * (2 << 20) + "\na: 1\n")
    assert manifest_file.load_all(str(file)) == [{"a": 1}]
    file.write_text("#" * (manifest_file.SIZE_LIMIT + 1))
    with pytest.raises(DocumentError, match="has more than 8 MiB"):
        manifest_file.load_all(str(file))
