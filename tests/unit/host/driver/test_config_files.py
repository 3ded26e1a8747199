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

# nvidia-container-toolkit v1.20 looks for these names; where they are in containers.
SHARE = (
    "glvnd/egl_vendor.d/10_nvidia.json",
    "egl/egl_external_platform.d/15_nvidia_gbm.json",
    "egl/egl_external_platform.d/10_nvidia_wayland.json",
    "egl/egl_external_platform.d/09_nvidia_wayland2.json",
    "egl/egl_external_platform.d/20_nvidia_xcb.json",
    "egl/egl_external_platform.d/20_nvidia_xlib.json",
    "nvidia/nvoptix.bin",
    "X11/xorg.conf.d/10-nvidia.conf",
    "X11/xorg.conf.d/nvidia-drm-outputclass.conf",
)
ETC = (
    "OpenCL/vendors/nvidia.icd",
    "vulkan/icd.d/nvidia_icd.json",
    "vulkan/icd.d/nvidia_layers.json",
    "vulkan/implicit_layer.d/nvidia_layers.json",
    "vulkan/icd.d/nvidia_icd.x86_64.json",
)


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


@pytest.mark.parametrize("folder", ["etc", "usr/share", "usr/local/share"])
def test_every_name_of_the_incumbent_is_mounted_where_it_mounts_it(
    host: HostTree, folder: str
) -> None:
    for name in (*SHARE, *ETC):
        host.write(f"driver/{folder}/{name}", "{}")

    files, findings = find(host)

    expected = {f"/usr/share/{name}" for name in SHARE} | {f"/etc/{name}" for name in ETC}
    assert set(files) == expected
    assert all(file.kind == "config" for file in files.values())
    assert files["/etc/OpenCL/vendors/nvidia.icd"].capability == "compute"
    assert files["/etc/vulkan/icd.d/nvidia_icd.json"].capability == "graphics"
    host_path = f"{host.driver}/{folder}/OpenCL/vendors/nvidia.icd"
    assert files["/etc/OpenCL/vendors/nvidia.icd"].host_path == host_path
    assert not findings.warnings


def test_etc_wins_over_the_data_directories(host: HostTree) -> None:
    for folder in ("usr/share", "etc"):
        host.write(f"driver/{folder}/vulkan/icd.d/nvidia_icd.json", folder)

    files, _ = find(host)

    file = files["/etc/vulkan/icd.d/nvidia_icd.json"]
    assert file.host_path == f"{host.driver}/etc/vulkan/icd.d/nvidia_icd.json"


@pytest.mark.parametrize(("machine", "other"), [("x86_64", "aarch64"), ("aarch64", "x86_64")])
def test_vulkan_driver_of_another_machine_is_left_out(
    host: HostTree, machine: str, other: str
) -> None:
    folder = "usr/share/vulkan/icd.d"
    for name in (machine, other, "i686"):
        host.write(f"driver/{folder}/nvidia_icd.{name}.json", "{}")

    files, findings = find(host, machine=machine)

    assert set(files) == {f"/etc/vulkan/icd.d/nvidia_icd.{machine}.json"}
    assert {entry.path: entry.reason for entry in findings.left_out.values()} == {
        f"{host.driver}/{folder}/nvidia_icd.{name}.json": f"for {name}" for name in (other, "i686")
    }


def test_files_with_similar_names_are_not_included(host: HostTree) -> None:
    for name in (
        "glvnd/egl_vendor.d/50_mesa.json",
        "egl/egl_external_platform.d/20_other_xcb.json",
        "vulkan/icd.d/radeon_icd.x86_64.json",
        "vulkan/icd.d/nvidia_icd.json.bak",
        "vulkan/icd.d/nvidia_icd.a\nb.json",
        "X11/xorg.conf.d/20-nvidia-mine.conf",
        "nvidia/nvidia-application-profiles-580.159.04-rc",
    ):
        host.write(f"driver/usr/share/{name}", "{}")

    assert find(host)[0] == {}


def test_a_link_that_leaves_the_driver_root_stays_inside(host: HostTree, tmp_path: Path) -> None:
    host.write("secret.json", "{}")
    host.link("driver/etc/vulkan/icd.d/nvidia_icd.json", "../../../../secret.json")

    assert find(host)[0] == {}

    host.write("driver/secret.json", "{}")
    assert find(host)[0]["/etc/vulkan/icd.d/nvidia_icd.json"].host_path == str(
        tmp_path / "driver/secret.json"
    )


def test_search_paths_are_of_the_host_and_replace_the_directories(host: HostTree) -> None:
    host.write("driver/etc/OpenCL/vendors/nvidia.icd", "libnvidia-opencl.so.1\n")
    host.write("elsewhere/vulkan/icd.d/nvidia_icd.json", "{}")
    host.write("elsewhere/nvidia/nvoptix.bin")

    files, _ = find(host, [str(host.base / "elsewhere")])

    assert {path: file.host_path for path, file in files.items()} == {
        "/etc/vulkan/icd.d/nvidia_icd.json": f"{host.base}/elsewhere/vulkan/icd.d/nvidia_icd.json",
        "/usr/share/nvidia/nvoptix.bin": f"{host.base}/elsewhere/nvidia/nvoptix.bin",
    }


def warnings_for(host: HostTree) -> list[str]:
    """Return the warnings about libraries in configuration files."""
    findings = Findings()
    find_files(host.module().user_space().roots, DiscoveryOptions(nvml=None), "x86_64", findings)
    marks = ("driver's libraries", "JSON", "can't be read")
    return [text for text in findings.warnings if any(mark in text for mark in marks)]


def test_a_missing_library_that_a_file_names_is_reported_once(host: HostTree) -> None:
    document = {"ICD": {"library_path": "libEGL_nvidia.so.0"}}
    path = host.write("driver/usr/share/glvnd/egl_vendor.d/10_nvidia.json", json.dumps(document))
    icd = host.write("driver/etc/OpenCL/vendors/nvidia.icd", "libnvidia-opencl.so.1\n")

    assert warnings_for(host) == [
        f"{icd} names libnvidia-opencl.so.1, which is not among the driver's libraries",
        f"{path} names libEGL_nvidia.so.0, which is not among the driver's libraries",
    ]


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
    [("no JSON", "is no JSON"), ("[" * 50_000, "is no JSON"), (b"\xff\xfe", "is no JSON"),
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
