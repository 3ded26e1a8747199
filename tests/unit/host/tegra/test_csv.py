# SPDX-License-Identifier: Apache-2.0
"""JetPack's CSV files and their patterns."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvct.host import go_pattern
from nvct.host.discovery_options import DiscoveryOptions
from nvct.host.model import Findings
from nvct.host.tegra import board as tegra
from nvct.host.tegra import csv
from tests.support.host_tree import HostTree

FOLDER = f"etc/{csv.FOLDER}"


def pairs(text: str) -> list[tuple[str, str]]:
    return [(entry.kind, entry.path) for entry in csv.parse(text, "/l.csv", Findings())]


def test_spaces_around_type_and_path_and_carriage_returns_do_not_matter() -> None:
    text = " dev ,  /dev/nvmap \r\ndir,/usr/x\nlib, /a b,c\n\nsym,/l"

    assert pairs(text) == [
        ("dev", "/dev/nvmap"),
        ("dir", "/usr/x"),
        ("lib", "/a b,c"),
        ("sym", "/l"),
    ]


def test_a_malformed_line_is_skipped_and_noted_with_its_number() -> None:
    findings = Findings()

    entries = csv.parse(
        "# board\nfile, /etc/x\ndev\nlib,\nlib, /a\0b\nlib, /c", "/l.csv", findings
    )

    assert [entry.path for entry in entries] == ["/c"]
    assert findings.notes == [
        "line 2 of /l.csv is not TYPE, PATH: 'file, /etc/x'",
        "line 3 of /l.csv is not TYPE, PATH: 'dev'",
        "line 4 of /l.csv is not TYPE, PATH: 'lib,'",
        "line 5 of /l.csv is not TYPE, PATH: 'lib, /a\\x00b'",
    ]


@pytest.mark.parametrize(
    ("folder", "options", "read"),
    [
        (FOLDER, {}, ["/devices.csv", "/l4t.csv"]),
        (FOLDER, {"csv_all": True}, ["/cuda.CSV", "/devices.csv", "/l4t.csv"]),
        ("l4t", {"csv_folder": "{}/l4t"}, ["/devices.csv", "/l4t.csv"]),
    ],
    ids=["the base files", "all files", "another folder"],
)
def test_lists_of_the_folder_are_read(
    tmp_path: Path, folder: str, options: dict[str, Any], read: list[str]
) -> None:
    host = HostTree(tmp_path)
    for name in ("devices.csv", "l4t.csv", "cuda.CSV", ".csv", "devices.csv.bak"):
        host.write(f"{folder}/{name}", f"lib, /{name}\n")
    (tmp_path / folder / "folder.csv").mkdir()
    findings = Findings()
    if "csv_folder" in options:
        options = {"csv_folder": options["csv_folder"].format(tmp_path)}

    entries = csv.read(host.roots, DiscoveryOptions(**options), findings)

    assert [entry.path for entry in entries] == read
    assert findings.warnings == []


def test_a_named_file_that_is_missing_or_empty_is_warned_about(tmp_path: Path) -> None:
    host = HostTree(tmp_path)
    empty, missing = host.write("empty.csv", "# nothing\n"), tmp_path / "missing.csv"
    findings = Findings()

    entries = csv.read(
        host.roots, DiscoveryOptions(csv_files=(str(empty), str(missing))), findings
    )

    assert entries == []
    assert findings.warnings == [
        f"the CSV file {empty} has no entries",
        f"the CSV file {missing} cannot be read",
    ]


def test_a_path_in_two_lists_is_included_once(tmp_path: Path) -> None:
    host = HostTree(tmp_path)
    host.write(f"{FOLDER}/devices.csv", "dev, /dev/nvmap\ndev, /dev/nvmap\n")
    host.write(f"{FOLDER}/l4t.csv", "dev, /dev/nvmap\nlib, /dev/nvmap\n")

    entries = csv.read(host.roots, DiscoveryOptions(), Findings())

    assert [(entry.kind, entry.source.rpartition("/")[2]) for entry in entries] == [
        ("dev", "devices.csv"),
        ("lib", "l4t.csv"),
    ]


def test_ignore_patterns_drop_links_and_nothing_else(tmp_path: Path) -> None:
    host = HostTree(tmp_path)
    host.write(f"{FOLDER}/l4t.csv", "sym, /a/libx.so\nlib, /a/libx.so\nsym, /b/liby.so\n")
    findings = Findings()

    entries = csv.read(host.roots, DiscoveryOptions(csv_ignore=("**/libx.so",)), findings)

    assert [(entry.kind, entry.path) for entry in entries] == [
        ("lib", "/a/libx.so"),
        ("sym", "/b/liby.so"),
    ]
    assert findings.left_out["/a/libx.so"].reason == "it matches an ignore pattern"


@pytest.mark.parametrize(
    ("pattern", "path", "is_ignored"),
    [
        ("**/libx.so", "/a/b/libx.so", True),
        ("**/lib*", "/a/b/libx.so", True),
        ("**/b/libx.so", "/a/b/libx.so", False),
        ("/a/b/libx.so", "/a/b/libx.so", True),
        ("/a/*/libx.so", "/a/b/libx.so", True),
        ("/a/*", "/a/b/libx.so", False),
        ("libx.so", "/a/b/libx.so", False),
        ("**/[", "/a/[", False),
    ],
)
def test_ignore_patterns_match_the_last_component_or_the_whole_path(
    pattern: str, path: str, *, is_ignored: bool
) -> None:
    assert csv.ignore_rule(pattern)(path) is is_ignored


# The rows of Go's own match_test.go that do not need runes: path/filepath.
@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        ("abc", "abc", True),
        ("*", "abc", True),
        ("*c", "abc", True),
        ("a*", "a", True),
        ("a*", "ab/c", False),
        ("a*/b", "abc/b", True),
        ("a*/b", "a/c/b", False),
        ("a*b?c*x", "abxbbxdbxebxczzx", True),
        ("a*b?c*x", "abxbbxdbxebxczzy", False),
        ("ab[c]", "abc", True),
        ("ab[b-d]", "abc", True),
        ("ab[e-g]", "abc", False),
        ("ab[^c]", "abc", False),
        ("ab[^b-d]", "abc", False),
        ("ab[^e-g]", "abc", True),
        ("a\\*b", "a*b", True),
        ("a\\*b", "ab", False),
        ("a?b", "a/b", False),
        ("a*b", "a/b", False),
        ("[\\]a]", "]", True),
        ("[\\-]", "-", True),
        ("[x\\-]", "x", True),
        ("[x\\-]", "z", False),
        ("[\\-x]", "a", False),
        ("*x", "xxx", True),
    ],
)
def test_patterns_match_as_go_matches(pattern: str, name: str, *, matches: bool) -> None:
    compiled = go_pattern.compile_pattern(pattern)

    assert compiled is not None
    assert (compiled.fullmatch(name) is not None) is matches


@pytest.mark.parametrize(
    "pattern", ["[]a]", "[-]", "[x-]", "[-x]", "[", "[^", "[^bc", "a[", "\\", "[a-b-c]", "[^]"]
)
def test_a_malformed_pattern_matches_nothing(pattern: str) -> None:
    assert go_pattern.compile_pattern(pattern) is None


def test_a_pattern_is_expanded_directory_by_directory() -> None:
    tree = {"/": ["dev", "etc"], "/dev": ["dri", "drm"], "/dev/dri": ["card0", "card1", "by-path"]}

    assert list(go_pattern.expand("/dev/dr?/card*", lambda path: tree.get(path, []))) == [
        "/dev/dri/card0",
        "/dev/dri/card1",
    ]
    assert list(go_pattern.expand("/dev/dri/card7", lambda path: tree.get(path, []))) == [
        "/dev/dri/card7"
    ]


@given(st.text(alphabet="ab*?[]^-\\/\n", max_size=12), st.text(alphabet="ab-]^\n", max_size=6))
def test_a_star_before_a_pattern_lets_it_match_more(pattern: str, name: str) -> None:
    compiled, longer = (
        go_pattern.compile_pattern(pattern),
        go_pattern.compile_pattern(f"*{pattern}"),
    )

    assert (compiled is None) == (longer is None)
    if compiled and longer and compiled.fullmatch(name):
        assert longer.fullmatch(name)
        assert longer.fullmatch(f"x{name}")
        # A class may have a slash; but a pattern is applied to one name, which has none.
        assert "/" in pattern or not longer.fullmatch(f"/x{name}")


@given(st.text(max_size=12))
def test_an_escaped_name_matches_itself_and_nothing_longer(name: str) -> None:
    compiled = go_pattern.compile_pattern("".join(f"\\{character}" for character in name))

    assert compiled is not None
    assert compiled.fullmatch(name)
    assert not compiled.fullmatch(f"{name}x")


# Which boards are Tegras; what they give containers is in tests/hosts/other_changes.py.


@pytest.mark.parametrize(
    ("board_files", "gpus", "expected"),
    [
        ((), (), False),
        (("etc/nv_tegra_release",), (), True),
        (("sys/devices/soc0/family",), (), True),
        (("etc/nv_tegra_release",), ("NVIDIA RTX A6000",), False),
        (("etc/nv_tegra_release", "sys/module/nvgpu/version"), ("NVIDIA RTX A6000",), True),
        ((), ("NVIDIA RTX A6000",), False),
        ((), ("NVIDIA Thor",), True),
        (("etc/nv_tegra_release",), ("NVIDIA RTX A6000", "NVIDIA Thor"), True),
    ],
)
def test_a_tegra_is_distinguished_from_an_igx_board_that_uses_its_discrete_gpu(
    tmp_path: Path, board_files: tuple[str, ...], gpus: tuple[str, ...], *, expected: bool
) -> None:
    host = HostTree(tmp_path)
    for path in board_files:
        host.write(path, "Tegra\n")
    for index, model in enumerate(gpus):
        host.gpu(index, model=model)

    assert tegra.is_tegra(host.roots) is expected


def test_a_chip_family_of_another_vendor_is_not_a_tegra(tmp_path: Path) -> None:
    host = HostTree(tmp_path)
    host.write("sys/devices/soc0/family", "Snapdragon\n")

    assert not tegra.is_tegra(host.roots)
