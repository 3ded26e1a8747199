# SPDX-License-Identifier: Apache-2.0
"""Specs written: the same bytes each time, strings that stay strings, files in one step."""

import copy
import json
import os
import stat
from pathlib import Path
from typing import Any, cast

import pytest

from nvct.cdi.make import store
from nvct.cdi.read import load
from nvct.cdi.types import Spec
from nvct.errors import CdiSpecError, HostError, UnsafePathError, UsageError
from nvct.linux.kernel import Kernel

# Members on purpose in another order than the specification's.
DOCUMENT: dict[str, Any] = {
    "containerEdits": {
        "mounts": [{"options": ["ro"], "containerPath": "/b", "hostPath": "/a"}],
        "env": ["NVIDIA_VISIBLE_DEVICES=void"],
    },
    "devices": [
        {
            "containerEdits": {
                "deviceNodes": [{"minor": 1, "major": 195, "path": "/dev/nvidia1"}]
            },
            "name": "1",
        },
        {"name": "all", "containerEdits": {"additionalGids": [44]}},
    ],
    "kind": "nvidia.com/gpu",
    "cdiVersion": "1.1.0",
}
YAML = """\
---
cdiVersion: "0.7.0"
kind: nvidia.com/gpu
devices:
- name: "1"
  containerEdits:
    deviceNodes:
    - path: /dev/nvidia1
      major: 195
      minor: 1
- name: all
  containerEdits:
    additionalGids:
    - 44
containerEdits:
  env:
  - NVIDIA_VISIBLE_DEVICES=void
  mounts:
  - hostPath: /a
    containerPath: /b
    options:
    - ro
"""


def spec(**changes: object) -> Spec:
    return cast("Spec", {**copy.deepcopy(DOCUMENT), **changes})


def test_yaml_and_json_are_in_the_order_of_the_specification() -> None:
    data = store.dumps(spec(), "json")

    assert store.dumps(spec()).decode() == YAML
    assert json.loads(data) == load.parse(YAML.encode(), source="yaml")
    assert list(json.loads(data)) == ["cdiVersion", "kind", "devices", "containerEdits"]
    assert data.endswith(b"}\n")
    other = cast("Spec", dict(reversed(list(spec().items()))))
    for form in store.FORMATS:
        assert store.dumps(other, form) == store.dumps(spec(), form)


def test_the_version_is_the_lowest_that_will_do() -> None:
    plain = spec(devices=[{"name": "a", "containerEdits": {"env": ["A=1"]}}])
    del plain["containerEdits"]

    assert json.loads(store.dumps(plain, "json"))["cdiVersion"] == "0.3.0"


def test_the_spec_is_left_as_it_is() -> None:
    document = spec()

    store.dumps(document)

    assert document == DOCUMENT


@pytest.mark.parametrize("text", ["1e3", "y", "n", "0o7", "0x1f", "1_0", "1:30", "007", "08"])
def test_what_go_yaml_takes_for_something_else_is_quoted(text: str) -> None:
    document = spec(devices=[{"name": text, "containerEdits": {"env": ["A=1"]}}])

    assert f'- name: "{text}"\n' in store.dumps(document).decode()


def test_equal_edits_are_written_out_each_time() -> None:
    edits = {"env": ["A=1"]}
    document = spec(
        devices=[{"name": "a", "containerEdits": edits}, {"name": "b", "containerEdits": edits}]
    )

    assert "&" not in store.dumps(document).decode()
    assert store.dumps(document).count(b"A=1") == 2


def test_names_of_formats_are_in_any_case_and_unknown_ones_refused() -> None:
    for name in ("yaml", "YAML", "json", "Json"):
        assert store.check_format(name) == name.lower()
    with pytest.raises(UsageError, match="'toml' is not a format"):
        store.dumps(spec(), "toml")


@pytest.mark.parametrize(
    ("name", "form", "written", "begins"),
    [
        ("a.yaml", None, "a.yaml", b"---"),
        ("a.yml", None, "a.yml", b"---"),
        ("a.json", None, "a.json", b"{"),
        ("a.yaml", "json", "a.yaml", b"{"),
        ("a.json", "yaml", "a.json", b"---"),
        ("a", None, "a.yaml", b"---"),
        ("a", "json", "a.json", b"{"),
        ("nvidia.com-gpu", None, "nvidia.com-gpu.yaml", b"---"),
    ],
)
def test_the_format_wins_over_the_ending(
    tmp_path: Path, name: str, form: str | None, written: str, begins: bytes
) -> None:
    path = store.save(spec(), str(tmp_path / name), form)

    assert path == str(tmp_path / written)
    assert os.listdir(tmp_path) == [written]
    assert (tmp_path / written).read_bytes().startswith(begins)
    assert load.load_file(path) == load.loads(YAML.encode(), source="yaml")


def test_folders_are_made_and_a_file_is_readable_by_all_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        path = store.save(spec(), str(tmp_path / "run/cdi/a.yaml"))
    finally:
        os.umask(before)

    assert stat.S_IMODE(os.stat(path).st_mode) == 0o644
    assert (tmp_path / "run/cdi/a.yaml").read_text() == YAML


def test_folders_of_a_relative_path_are_made_in_the_current_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store.save(spec(), "new/deep/a.yaml")
    assert (tmp_path / "new/deep/a.yaml").exists()


def test_no_folder_that_is_made_can_be_written_by_others(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        store.save(spec(), str(tmp_path / "run/new/cdi/a.yaml"))
    finally:
        os.umask(before)

    for folder in ("run", "run/new", "run/new/cdi"):
        assert stat.S_IMODE((tmp_path / folder).stat().st_mode) == 0o755


def test_a_file_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the loss of power may leave an empty file, which engines refuse."""
    calls = list[str]()
    for name in ("fsync", "rename"):
        real = getattr(Kernel, name)

        def record(*given: Any, name: str = name, real: Any = real, **more: Any) -> None:
            calls.append(name)
            real(*given, **more)

        monkeypatch.setattr(Kernel, name, record)

    store.save(spec(), str(tmp_path / "nvidia.yaml"))

    assert calls == ["fsync", "rename", "fsync"]


def test_an_invalid_spec_replaces_nothing_and_what_cannot_be_written_is_named(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("old")
    (tmp_path / "folder.yaml").mkdir()

    with pytest.raises(CdiSpecError, match="has no devices"):
        store.save(spec(devices=[]), str(path))

    assert path.read_text() == "old"
    with pytest.raises(HostError, match=f"CDI spec {path}/a.yaml cannot be written: "):
        store.save(spec(), f"{path}/a.yaml")
    with pytest.raises(UnsafePathError):
        store.save(spec(), str(tmp_path / "folder.yaml"))


def test_a_pipe_gets_the_spec_and_keeps_its_name(tmp_path: Path) -> None:
    pipe = tmp_path / "stdout"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)

    path = store.save(spec(), str(pipe), "json", follow=True)

    assert path == str(pipe)
    assert os.read(reader, 1 << 16) == store.dumps(spec(), "json")
    os.close(reader)
    assert [entry.name for entry in tmp_path.iterdir()] == ["stdout"]


def test_a_comment_stands_before_yaml_and_not_in_json(tmp_path: Path) -> None:
    comment = "# nvct: {}\n"

    assert store.dumps(spec(), "yaml", comment).decode() == comment + YAML
    assert store.dumps(spec(), "json", comment) == store.dumps(spec(), "json")
    path = store.save(spec(), str(tmp_path / "a.yaml"), comment=comment)
    with open(path, encoding="utf-8") as file:
        assert file.read() == comment + YAML
