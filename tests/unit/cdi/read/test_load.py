# SPDX-License-Identifier: Apache-2.0
"""Spec files as people write them, and as nobody should."""

from pathlib import Path
from typing import Any

import pytest

from nvct.cdi.read import load
from nvct.errors import CdiSpecError, line

HEAD = "cdiVersion: 1.1.0\nkind: vendor.com/device\n"


def device(text: str) -> dict[str, Any]:
    """Return a device written as YAML in flow style."""
    spec = load.loads(f"{HEAD}devices: [{text}]\n".encode(), source="file")
    return dict(spec["devices"][0])


def named(name: str) -> str:
    return str(device(f"{{name: {name}, containerEdits: {{env: [A=1]}}}}")["name"])


def refusal(data: str | bytes) -> str:
    with pytest.raises(CdiSpecError) as caught:
        load.loads(data if isinstance(data, bytes) else data.encode(), source="file")
    return caught.value.message


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("0", "0"),
        ("10", "10"),
        ('"0"', "0"),
        ("'007'", "007"),
        ("'on'", "on"),
        ("0:1", "0:1"),
        ("1:30:00", "1:30:00"),
        ("GPU-1e3", "GPU-1e3"),
        ("2001-01-01", "2001-01-01"),
        ("1.5", "1.5"),
        ("all", "all"),
        ("0000.18.00.0", "0000.18.00.0"),
        ('! "1"', "1"),
    ],
)
def test_a_name_stays_what_was_written(written: str, name: str) -> None:
    assert named(written) == name


@pytest.mark.parametrize(
    "written",
    ["on", "off", "y", "No", "TRUE", "007", "08", "0x1F", "0b1", "0o7", "1e3", "1_000", "1.50", "1.0"],
)  # fmt: skip
def test_a_name_that_yaml_would_change_is_refused(written: str) -> None:
    with pytest.raises(CdiSpecError) as caught:
        named(written)

    assert line("nvct", caught.value) == (
        f"nvct: file: devices[0].name is {written}, which YAML does not read as a "
        f'string; put it in quotes: "{written}" [bad-cdi-spec]'
    )


@pytest.mark.parametrize(
    ("written", "mode"),
    [("438", 438), ("0666", 438), ("0o666", 438), ("0x1b6", 438), ("0b110", 6), ("0", 0)],
)
def test_numbers_are_those_of_yaml_1_1(written: str, mode: int) -> None:
    node = f"{{path: /dev/a, fileMode: {written}}}"

    edits = device(f"{{name: a, containerEdits: {{deviceNodes: [{node}]}}}}")["containerEdits"]

    assert edits["deviceNodes"] == [{"path": "/dev/a", "fileMode": mode}]


@pytest.mark.parametrize(
    "written", ['"438"', "4_38", "1e2", "4.0", "0:1", "yes", "089", "9" * 5000]
)
def test_what_is_no_number_is_refused(written: str) -> None:
    node = f"{{path: /dev/a, uid: {written}}}"

    message = refusal(f"{HEAD}devices: [{{name: a, containerEdits: {{deviceNodes: [{node}]}}}}]\n")

    assert message.startswith("file: devices[0].containerEdits.deviceNodes[0].uid is ")


def test_truth_values_are_those_of_json() -> None:
    edits = "{name: a, containerEdits: {intelRdt: {enableCMT: true, enableMBM: False}}}"

    assert device(edits)["containerEdits"] == {"intelRdt": {"enableCMT": True, "enableMBM": False}}
    assert "is 'yes', not true or false" in refusal(
        f"{HEAD}devices: [{edits.replace('true', 'yes')}]\n"
    )


def test_numbers_are_numbers_whatever_the_spelling_of_their_member() -> None:
    assert device("{name: a, containerEdits: {additionalGIDs: [44]}}")["containerEdits"] == {
        "additionalGids": [44]
    }


@pytest.mark.parametrize("value", ["3", "true", "no", "{}", "[]"])
def test_an_annotation_that_is_no_string_is_refused(value: str) -> None:
    text = f"{HEAD}annotations: {{a: {value}}}\ndevices: [{{name: a, containerEdits: {{env: [A=1]}}}}]"

    assert "annotations.a is " in refusal(text)


def test_an_annotation_named_as_a_number_field_stays_a_string() -> None:
    text = "{name: a, annotations: {major: abc, uid: x1}, containerEdits: {env: [A=1]}}"

    assert device(text)["annotations"] == {"major": "abc", "uid": "x1"}


def test_nulls_and_empty_values_are_absent() -> None:
    spec_device = device(
        "{name: a, annotations: ~, containerEdits: {env: [A=1], mounts: , hooks: null}}"
    )

    assert spec_device == {"name": "a", "containerEdits": {"env": ["A=1"]}}


def test_a_merge_takes_what_is_not_there() -> None:
    text = f"""{HEAD}devices:
- name: a
  containerEdits: &a
    env: [A=1]
    additionalGids: [1]
- name: b
  containerEdits: &b
    env: [A=2]
- name: c
  containerEdits:
    <<: [*b, *a]
"""

    spec = load.loads(text.encode(), source="file")

    assert spec["devices"][2]["containerEdits"] == {"env": ["A=2"], "additionalGids": [1]}


def test_json_is_read_under_any_name_and_yaml_too(tmp_path: Path) -> None:
    json = '{"cdiVersion": "0.3.0", "kind": "ve/cl", "devices": [{"name": "a", "containerEdits": {"env": ["A=1"]}}]}'
    yaml = "cdiVersion: 0.3.0\nkind: ve/cl\ndevices:\n- {name: a, containerEdits: {env: [A=1]}}\n"
    (tmp_path / "json.yaml").write_text(json)
    (tmp_path / "yaml.json").write_text(yaml)
    (tmp_path / "flow.json").write_text("{" + json[1:].replace('"', "") + "  # flow style")
    (tmp_path / "mark.json").write_text("\ufeff" + json)

    specs = [load.load_file(str(path)) for path in sorted(tmp_path.iterdir())]

    assert specs == [specs[0]] * 4
    assert specs[0]["devices"][0]["containerEdits"] == {"env": ["A=1"]}


DEEP = (
    "file is not YAML: nested too deeply",
    "file is not YAML in line 1: exceeded maximum nesting depth",
)
"""Our limit, or that of libyaml as PyYAML 6.0.4 has it, whichever is reached first."""


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "file is empty"),
        (b"---\n...\n", "file is empty"),
        (b"null", "file is empty"),
        (b"\xff\xfe", "file is not UTF-8 at byte 0"),
        (b"a: \x01", "file is not YAML: unacceptable character #x0001"),
        (b"a: 1\na: 2\n", "file is not YAML in line 2: duplicate key 'a'"),
        (b"? [a]\n: b\n", "file is not YAML in line 1: a key that is not a scalar"),
        (b"<<: a\n", "file is not YAML in line 1: << merges a table"),
        (b"a: &a [*a]\n", "file is not YAML in line 1: found unconstructable recursive node"),
        (b"a: *b\n", "file is not YAML in line 1: found undefined alias"),
        (b"a: !!int 1\n", "file is not YAML in line 1: a CDI spec has no tag"),
        (b'{"a": 1, "b": {"c": 1, "c": 2}}', "file has the duplicate key 'c' in one object"),
        (b'{"a": 1,', "file is not JSON: "),
        (b'{"a": ' + b"9" * 5000 + b"}", "file "),
        (b'{"a":' * 100_000, "file is nested too deeply"),
        (b"[" * 100_000, DEEP),
        (b"- " * 100_000, DEEP),
        (b"{" * 100_000, "file is not JSON: "),
    ],
)
def test_what_is_neither_json_nor_yaml_is_refused(
    data: bytes, message: str | tuple[str, ...]
) -> None:
    sentences = refusal(data)

    assert sentences.startswith(message)
    assert len(sentences) < 200


def test_few_bytes_do_not_become_many_values() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]

    assert refusal("\n".join(lines)) == "file is nested too deeply or too large"


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    large = tmp_path / "large.yaml"
    with large.open("wb") as file:
        file.truncate(load.SIZE_LIMIT + 1)

    for path, message in (
        (
            tmp_path / "none.yaml",
            f"{tmp_path}/none.yaml cannot be read: No such file or directory",
        ),
        (tmp_path, f"{tmp_path} is no regular file"),
        (large, f"{large} is larger than {load.SIZE_LIMIT} bytes"),
    ):
        with pytest.raises(CdiSpecError) as caught:
            load.load_file(str(path))
        assert caught.value.message == message
