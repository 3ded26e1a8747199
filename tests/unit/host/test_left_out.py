# SPDX-License-Identifier: Apache-2.0
"""Libraries with unusual names: included with their links, or left out with a reason."""

import os
from pathlib import Path

import pytest

from nvct.host.driver import libraries
from nvct.host.driver import names as driver_names
from nvct.host.driver.tree import Tree
from nvct.host.model import DriverFile, Findings
from nvct.linux import ldcache
from tests.support.host_tree import LIB, VERSION, HostTree, elf_bytes


def look(host: HostTree) -> tuple[dict[str, DriverFile], Findings]:
    findings = Findings()
    with Tree(str(host.driver)) as tree:
        search = libraries.Search(tree, host.roots, "x86_64", findings)
        files = libraries.find_libraries(search, VERSION, libraries.directories(search))
    return {os.path.basename(file.container_path): file for file in files}, findings


def reasons(findings: Findings) -> dict[str, str]:
    return {path: entry.reason for path, entry in findings.left_out.items()}


def test_link_to_a_library_of_another_driver_is_left_out(tmp_path: Path) -> None:
    host = HostTree(tmp_path).user_space().library("libnvidia-cfg", suffix="570.10.01")
    host.link(f"driver/{LIB}/libnvidia-cfg.so.{VERSION}", "libnvidia-cfg.so.570.10.01")

    files, findings = look(host)

    assert f"libnvidia-cfg.so.{VERSION}" not in files
    path = f"{host.driver}/{LIB}/libnvidia-cfg.so.{VERSION}"
    assert reasons(findings)[path] == f"leads to a file of driver 570.10.01, not {VERSION}"


def test_files_with_names_similar_to_the_drivers_have_no_entry(tmp_path: Path) -> None:
    host = HostTree(tmp_path).user_space()
    host.write(f"driver/{LIB}/libnvidia-container.so.1.17.8", elf_bytes("x"))
    host.write(f"driver/{LIB}/libnvme.so.1.3.0", elf_bytes("x"))

    _, findings = look(host)

    assert reasons(findings) == {}


def test_nvvm_with_the_drivers_version_is_included_once(tmp_path: Path) -> None:
    host = HostTree(tmp_path).user_space().library("libnvidia-nvvm", "libnvidia-nvvm.so.4")

    files, _ = look(host)

    assert "libnvidia-nvvm.so.4" not in files
    assert files[f"libnvidia-nvvm.so.{VERSION}"].reason == (
        f"suffix is the driver's version {VERSION}"
    )


@pytest.mark.parametrize("soname", ["..", ".", "lib\n.so.1", "etc", "libx::y.so"])
def test_a_soname_that_is_not_a_library_name_makes_no_link(tmp_path: Path, soname: str) -> None:
    host = HostTree(tmp_path).user_space()
    host.write(f"driver/{LIB}/libnvidia-evil.so.{VERSION}", elf_bytes(soname))

    assert look(host)[0][f"libnvidia-evil.so.{VERSION}"].links == ()


def test_directories_of_another_machines_cache_entries_are_not_searched(tmp_path: Path) -> None:
    host = HostTree(tmp_path).user_space()
    host.library("libnvidia-cfg", "libnvidia-cfg.so.1", folder="opt/lib")
    path = "/opt/lib/libnvidia-cfg.so.1"
    cache = ldcache.merge(None, [("libnvidia-cfg.so.1", path)], machine="i386")
    host.write("driver/etc/ld.so.cache", cache)

    assert f"libnvidia-cfg.so.{VERSION}" not in look(host)[0]


def test_of_too_many_directories_in_the_cache_some_are_searched(
    tmp_path: Path,
) -> None:
    host = HostTree(tmp_path).user_space()
    entries = [(f"libnvidia-cfg.so.{n}", f"/opt/{n}/libnvidia-cfg.so.{n}") for n in range(100)]
    host.write("driver/etc/ld.so.cache", ldcache.merge(None, entries, machine="x86_64"))

    _, findings = look(host)

    (warning,) = findings.warnings
    assert warning == (
        f"{host.driver}/etc/ld.so.cache has libraries of the driver in 100 directories: "
        "64 are searched"
    )


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        ("libcuda.so.580.1", "libcuda"),
        ("libcuda.so", "libcuda"),
        ("libnvidia-ml.so.1", "libnvidia-ml"),
        ("nvidia_drv.so", "nvidia_drv.so"),
        ("lib.so", "lib.so"),
    ],
)
def test_stem_is_the_name_up_to_so(name: str, stem: str) -> None:
    assert driver_names.stem(name) == stem


def test_no_library_serves_two_classes_by_the_table() -> None:
    names = [name for names in driver_names.CLASSES.values() for name in names]

    assert len(names) == len(set(names)) == len(driver_names.CLASS_OF)


def test_folder_of_vdpau_may_be_a_link(tmp_path: Path) -> None:
    host = HostTree(tmp_path).user_space()
    host.library("libvdpau_nvidia", "libvdpau_nvidia.so.1", folder="opt/vdpau")
    host.link("driver/usr/lib64/vdpau", "/opt/vdpau")

    findings = Findings()
    with Tree(str(host.driver)) as tree:
        search = libraries.Search(tree, host.roots, "x86_64", findings)
        files = libraries.find_libraries(search, VERSION, libraries.directories(search))

    assert f"/opt/vdpau/libvdpau_nvidia.so.{VERSION}" in {f.container_path for f in files}


def test_same_library_in_a_second_directory_is_left_out(tmp_path: Path) -> None:
    host = HostTree(tmp_path).user_space()
    host.library("libnvidia-cfg", folder="usr/lib64").library("libnvidia-cfg", folder="usr/lib")

    files, findings = look(host)

    name = f"libnvidia-cfg.so.{VERSION}"
    first = f"{host.driver}/usr/lib64/{name}"
    assert files[name].host_path == first
    assert reasons(findings) == {f"{host.driver}/usr/lib/{name}": f"{first} is found before it"}


def test_library_that_would_hide_the_images_glvnd_is_left_out(tmp_path: Path) -> None:
    host = HostTree(tmp_path).user_space().library("libEGL", "libEGL.so.1")

    files, findings = look(host)

    assert f"libEGL.so.{VERSION}" not in files
    assert list(reasons(findings).values()) == ["it would take the place of the image's GLVND"]
