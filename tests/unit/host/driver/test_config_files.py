# SPDX-License-Identifier: Apache-2.0
"""Configuration files: their paths on the host and in containers, and the libraries in them."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from nvct.host.discover import find_files
from nvct.host.discovery_options import DiscoveryOptions
from nvct.host.driver import config_files, libraries
from nvct.host.driver.tree import Tree
from nvct.host.model import DriverFile, Findings
from tests.support.host_tree import LIB, HostTree


def find(
    host: HostTree, search_paths: Sequence[str] = (), machine: str = "x86_64"
) -> tuple[dict[str, DriverFile], Findings]:
    findings = Findings()
    with Tree(str(host.driver)) as tree:
        search = libraries.Search(tree, host.roots, machine, findings)
        files = config_files.find_config_files(search, search_paths)
    assert len({file.container_path for file in files}) == len(files)
    return {file.container_path: file for file in files}, findings


@pytest.fixture
def host(tmp_path: Path) -> HostTree:
    tree = HostTree(tmp_path)
    tree.driver.mkdir()
    return tree


def warnings_for(host: HostTree) -> list[str]:
    """Return the warnings about libraries in configuration files."""
    findings = Findings()
    find_files(host.module().user_space().roots, DiscoveryOptions(nvml=None), "x86_64", findings)
    marks = ("driver's libraries", "JSON", "can't be read")
    return [text for text in findings.warnings if any(mark in text for mark in marks)]


@pytest.mark.parametrize(
    ("library", "is_there"),
    [
        ("libGLX_nvidia.so.0", True),
        (f"/{LIB}/libGLX_nvidia.so.0", True),  # negativo17's packages write the whole path
        (f"../../../{LIB}/libGLX_nvidia.so.0", True),
        ("", True),
        ("/usr/lib64/libGLX_nvidia.so.0", False),
        ("./libGLX_nvidia.so.0", False),
    ],
)
def test_a_library_that_is_not_the_drivers_causes_a_warning(
    host: HostTree, library: str, *, is_there: bool
) -> None:
    layers = {"layers": [{"library_path": library}, {"name": "none"}]}
    icd = {"ICD": {"library_path": library}}
    host.write("driver/usr/share/vulkan/implicit_layer.d/nvidia_layers.json", json.dumps(layers))
    path = host.write("driver/etc/vulkan/icd.d/nvidia_icd.json", json.dumps(icd))

    said = f"names {library}, which is not among the driver's libraries"
    warnings = warnings_for(host)
    assert (f"{path} {said}" in warnings) is not is_there
    assert [warning for warning in warnings if said not in warning] == []
    assert not is_there or warnings == []


@pytest.mark.parametrize(
    ("text", "said"),
    [("no JSON", "is not JSON"), ("[" * 50_000, "is not JSON"), (b"\xff\xfe", "is not JSON"),
     (" " * 70_000, "can't be read")],
    ids=["text", "nested", "no UTF-8", "huge"],
)  # fmt: skip
def test_a_file_that_is_not_json_is_reported_and_mounted(
    host: HostTree, text: str | bytes, said: str
) -> None:
    path = host.write("driver/etc/vulkan/icd.d/nvidia_icd.json", text)

    (warning,) = warnings_for(host)

    assert warning.startswith(f"{path} {said}")
    assert "/etc/vulkan/icd.d/nvidia_icd.json" in find(host)[0]
