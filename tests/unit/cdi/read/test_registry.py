# SPDX-License-Identifier: Apache-2.0
"""Spec folders: priorities, conflicts, and what one bad file costs."""

import json
import os
from pathlib import Path

import pytest

from nvct.cdi.read import registry
from nvct.errors import (
    CdiSpecError,
    HostError,
)


def write(path: Path, *names: str, kind: str = "vendor.com/device", version: str = "0.5.0") -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    devices = [{"name": n, "containerEdits": {"env": [f"FROM={path.name}"]}} for n in names]
    path.write_text(json.dumps({"cdiVersion": version, "kind": kind, "devices": devices}))
    return str(path)


def sources(scanned: registry.Registry) -> dict[str, str]:
    return {name: Path(file.path).name for name, (file, _) in scanned.devices.items()}


@pytest.fixture
def low(tmp_path: Path) -> Path:
    return tmp_path / "low"


@pytest.fixture
def high(tmp_path: Path) -> Path:
    return tmp_path / "high"


def scan(*dirs: Path) -> registry.Registry:
    return registry.scan([str(folder) for folder in dirs])


def test_devices_of_all_folders_are_found(low: Path, high: Path) -> None:
    write(low / "a.json", "one", "two")
    write(high / "b.yaml", "three")
    write(high / "c.yml", "0", kind="other.com/device")

    scanned = scan(low, high)

    assert sources(scanned) == {
        "vendor.com/device=one": "a.json",
        "vendor.com/device=two": "a.json",
        "vendor.com/device=three": "b.yaml",
        "other.com/device=0": "c.yml",
    }
    assert [Path(s.path).name for s in scanned.specs] == ["a.json", "b.yaml", "c.yml"]
    assert scanned.errors == {}
    assert scanned.conflicts == {}


def test_the_later_folder_wins(low: Path, high: Path) -> None:
    write(low / "a.json", "one")
    write(high / "b.json", "one")

    assert sources(scan(low, high)) == {"vendor.com/device=one": "b.json"}
    assert sources(scan(high, low)) == {"vendor.com/device=one": "a.json"}


def test_two_files_of_one_folder_conflict(low: Path) -> None:
    write(low / "a.json", "one", "two")
    assert scan(low, low).conflicts == {}  # a folder that is named twice
    write(low / "b.json", "one")

    scanned = scan(low)

    assert sources(scanned) == {"vendor.com/device=two": "a.json"}
    files = [str(low / "a.json"), str(low / "b.json")]
    assert scanned.conflicts == {"vendor.com/device=one": files}


def test_a_conflict_below_hides_no_valid_device_above_and_none_above_is_resolved_from_below(
    low: Path, high: Path
) -> None:
    write(low / "a.json", "one")
    write(low / "b.json", "one")
    write(high / "c.json", "one")

    assert sources(scan(low, high)) == {"vendor.com/device=one": "c.json"}
    assert scan(low, high).conflicts == {}
    assert scan(high, low).devices == {}
    assert list(scan(high, low).conflicts) == ["vendor.com/device=one"]


def test_one_bad_file_costs_only_itself(low: Path) -> None:
    write(low / "good.json", "one")
    (low / "bad.json").write_text("{")
    write(low / "old.json", "0", version="0.3.0")
    os.mkfifo(low / "fifo.yaml")
    (low / "dangling.yaml").symlink_to("nowhere")

    scanned = scan(low)

    assert sources(scanned) == {"vendor.com/device=one": "good.json"}
    bad = {Path(path).name: error for path, error in scanned.errors.items()}
    assert sorted(bad) == ["bad.json", "dangling.yaml", "fifo.yaml", "old.json"]
    assert all(isinstance(error, CdiSpecError) for error in bad.values())
    assert bad["fifo.yaml"].message == f"{low}/fifo.yaml is not a regular file"
    assert all(path in error.message for path, error in scanned.errors.items())


def test_an_unreadable_folder_and_a_loop_of_links_cost_only_themselves(
    low: Path, high: Path
) -> None:
    assert scan(low).errors == {}  # a folder that is not there
    low.write_text("a file")
    write(high / "a.json", "one")
    loop = high / "loop.yaml"
    loop.symlink_to("loop.yaml")

    scanned = scan(low, high)

    assert sources(scanned) == {"vendor.com/device=one": "a.json"}
    assert list(scanned.errors) == [str(low), str(loop)]
    assert isinstance(scanned.errors[str(low)], HostError)


def test_only_spec_files_right_in_the_folder_are_read(low: Path) -> None:
    write(low / "a.json", "one")
    write(low / "below" / "b.json", "two")
    write(low / "folder.json" / "c.json", "three")
    write(low / "d.json.bak", "four")
    write(low / "spec.123.tmp", "five")
    write(low / ".nvct-1f", "six")
    (low / "link.yaml").symlink_to("below/b.json")

    scanned = scan(low)

    assert sources(scanned) == {
        "vendor.com/device=one": "a.json",
        "vendor.com/device=two": "link.yaml",
    }
    assert scanned.errors == {}
