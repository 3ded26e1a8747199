# SPDX-License-Identifier: Apache-2.0
"""Which specs count, and what is in the way of the others."""

import json
from pathlib import Path

from nvct.cdi.check import conflicts
from nvct.cdi.read import registry
from nvct.cdi.read.registry import Registry


def put(base: Path, name: str, *devices: str, kind: str = "a.com/dev") -> str:
    path = base / name
    path.parent.mkdir(exist_ok=True)
    edits = {"env": ["A=b"]}
    document = {
        "cdiVersion": "0.5.0",
        "kind": kind,
        "devices": [{"name": device, "containerEdits": edits} for device in devices],
    }
    path.write_text(json.dumps(document))
    return str(path)


def scan(base: Path) -> Registry:
    return registry.scan([str(base / name) for name in ("low", "mid", "high")])


def texts(base: Path) -> list[str]:
    return [entry.text for entry in conflicts.overlaps(scan(base))]


def test_a_file_counts_with_the_devices_that_are_taken_from_it(tmp_path: Path) -> None:
    put(tmp_path, "low/a.json", "x", "y")
    put(tmp_path, "high/b.json", "y")
    put(tmp_path, "high/c.json", "y", kind="b.com/dev")

    effective = conflicts.in_force(scan(tmp_path))

    names = [[entry.name(device) for device in entry.devices] for entry in effective]
    assert names == [["a.com/dev=x"], ["a.com/dev=y"], ["b.com/dev=y"]]
    assert [entry.kind for entry in effective] == ["a.com/dev", "a.com/dev", "b.com/dev"]


def test_the_common_edits_are_for_no_device(tmp_path: Path) -> None:
    put(tmp_path, "low/a.json", "x")

    (entry,) = conflicts.in_force(scan(tmp_path))

    assert list(entry.edits()) == [({}, ()), ({"env": ["A=b"]}, ("a.com/dev=x",))]


def test_a_shadow_is_reported_once_for_two_files(tmp_path: Path) -> None:
    low = put(tmp_path, "low/a.json", "p", "q", "r", "s", "t")
    high = put(tmp_path, "high/b.json", "p", "q", "r", "s")

    (entry,) = conflicts.overlaps(scan(tmp_path))

    assert entry.text == (
        f"{low}: a.com/dev=p and 3 other devices are taken from {high}, whose folder has a higher "
        "priority"
    )
    assert (entry.kind, entry.path, len(entry.devices)) == ("shadowed", high, 4)


def test_of_three_folders_the_last_one_is_named(tmp_path: Path) -> None:
    low = put(tmp_path, "low/a.json", "x")
    mid = put(tmp_path, "mid/a.json", "x")
    high = put(tmp_path, "high/a.json", "x")

    text = "a.com/dev=x is taken from"
    assert texts(tmp_path) == [
        f"{low}: {text} {high}, whose folder has a higher priority",
        f"{mid}: {text} {high}, whose folder has a higher priority",
    ]


def test_a_conflict_is_reported_once_and_its_devices_count_nowhere(tmp_path: Path) -> None:
    first = put(tmp_path, "low/a.json", "x", "y")
    second = put(tmp_path, "low/b.json", "y", "x")

    assert texts(tmp_path) == [
        f"{first}: a.com/dev=x, a.com/dev=y are also defined by {second}, so engines refuse them"
    ]
    assert conflicts.in_force(scan(tmp_path)) == []


def test_a_conflict_below_a_good_definition_is_a_shadow(tmp_path: Path) -> None:
    files = [put(tmp_path, f"low/{name}.json", "x") for name in "ab"]
    high = put(tmp_path, "high/a.json", "x")

    assert texts(tmp_path) == [
        f"{path}: a.com/dev=x is taken from {high}, whose folder has a higher priority"
        for path in files
    ]


def test_a_conflict_above_hides_what_is_below(tmp_path: Path) -> None:
    low = put(tmp_path, "low/a.json", "x")
    first, second = (put(tmp_path, f"high/{name}.json", "x") for name in "ab")

    assert texts(tmp_path) == [
        f"{first}: a.com/dev=x is also defined by {second}, so engines refuse it",
        f"{low}: a.com/dev=x is taken from {first}, whose folder has a higher priority",
    ]


def test_files_and_folders_that_cannot_be_read_come_first(tmp_path: Path) -> None:
    put(tmp_path, "low/a.json", "x")
    (tmp_path / "low/z.yaml").write_text("")
    (tmp_path / "mid").write_text("no folder")

    drifts = conflicts.overlaps(scan(tmp_path))

    assert [entry.kind for entry in drifts] == ["unreadable", "unreadable"]
    assert drifts[0].text == f"{tmp_path}/low/z.yaml: is empty"
    assert drifts[1].source == f"{tmp_path}/mid"
