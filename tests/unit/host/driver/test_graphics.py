# SPDX-License-Identifier: Apache-2.0
"""EGL platform libraries, Xorg's modules, and the links of graphics."""

from pathlib import Path

import pytest

from nvct.host.discover import find_files
from nvct.host.discovery_options import DiscoveryOptions
from nvct.host.driver import graphics, libraries
from nvct.host.driver.tree import Tree
from nvct.host.model import DriverFile, Findings, Link
from tests.support.host_tree import LIB, VERSION, HostTree, elf_bytes


def find(host: HostTree, *, explicit: bool = False) -> tuple[dict[str, DriverFile], Findings]:
    findings = Findings()
    with Tree(str(host.driver)) as tree:
        search = libraries.Search(tree, host.roots, "x86_64", findings)
        dirs = libraries.directories(search)
        if explicit:
            files = graphics.find_loaders(search, dirs)
        else:
            files = graphics.find_graphics(search, VERSION, dirs)
    assert len({file.container_path for file in files}) == len(files)
    return {file.container_path: file for file in files}, findings


def add_module(host: HostTree, folder: str, name: str, machine: str = "x86_64") -> None:
    host.write(f"driver/{folder}/{name}", elf_bytes(name, machine))


def left_out(findings: Findings) -> dict[str, str]:
    return {entry.path: entry.reason for entry in findings.left_out.values()}


def test_of_two_versions_without_a_link_the_newer_is_included(tmp_path: Path) -> None:
    host = HostTree(tmp_path)
    for version in ("1.1.9", "1.1.10"):
        name = f"libnvidia-egl-gbm.so.{version}"
        host.write(f"driver/{LIB}/{name}", elf_bytes("libnvidia-egl-gbm.so.1"))

    assert set(find(host)[0]) == {f"/{LIB}/libnvidia-egl-gbm.so.1.1.10"}


def test_a_platform_library_without_readable_headers_is_included_without_links(
    tmp_path: Path,
) -> None:
    host = HostTree(tmp_path)
    path = host.write(f"driver/{LIB}/libnvidia-egl-xcb.so.1.0.3", "nothing")

    files, findings = find(host)

    assert files[f"/{LIB}/libnvidia-egl-xcb.so.1.0.3"].links == ()
    assert [str(path) in warning for warning in findings.warnings] == [True]


def test_other_libraries_with_egl_in_their_name_are_not_platforms(tmp_path: Path) -> None:
    host = HostTree(tmp_path)
    host.library("libnvidia-eglcore").library("libnvidia-egl-foo", suffix="1.0.0")

    assert find(host)[0] == {}


@pytest.mark.parametrize(
    ("machine", "folder", "reasons"),
    [("x86_64", f"{LIB}/nvidia/xorg", []),
     ("aarch64", "usr/lib/xorg/modules/drivers", ["for aarch64"])],
)  # fmt: skip
def test_module_beside_the_libraries_wins_if_it_is_of_this_machine(
    tmp_path: Path, machine: str, folder: str, reasons: list[str]
) -> None:
    host = HostTree(tmp_path)
    add_module(host, f"{LIB}/nvidia/xorg", "nvidia_drv.so", machine)
    add_module(host, "usr/lib/xorg/modules/drivers", "nvidia_drv.so")

    files, findings = find(host)

    assert set(files) == {f"/{folder}/nvidia_drv.so"}
    assert [reason for reason in left_out(findings).values() if "for" in reason] == reasons


def test_module_behind_alternatives_is_mounted_under_its_own_name(tmp_path: Path) -> None:
    host = HostTree(tmp_path)
    server = f"libglxserver_nvidia.so.{VERSION}"
    add_module(host, "usr/lib/nvidia/current", server)
    folder = "usr/lib/xorg/modules/extensions"
    host.link(f"driver/{folder}/libglxserver_nvidia.so", "/etc/alternatives/glx")
    host.link("driver/etc/alternatives/glx", f"/usr/lib/nvidia/current/{server}")

    files, _ = find(host)

    file = files[f"/{folder}/libglxserver_nvidia.so"]
    assert file.host_path == f"{host.driver}/usr/lib/nvidia/current/{server}"
    assert file.links == ()


def test_module_of_another_driver_version_is_left_out(tmp_path: Path) -> None:
    host = HostTree(tmp_path)
    folder = "usr/lib/xorg/modules/extensions"
    add_module(host, folder, "libglxserver_nvidia.so.570.10")
    host.link(f"driver/{folder}/libglxserver_nvidia.so", "libglxserver_nvidia.so.570.10")

    files, findings = find(host)

    assert not files
    assert list(left_out(findings).values()) == ["of driver 570.10"]


def test_explicit_libraries_are_found_by_soname_without_development_links(tmp_path: Path) -> None:
    host = HostTree(tmp_path)
    host.library("libOpenCL", "libOpenCL.so.1", suffix="1.0.0")
    host.library("libGLdispatch", "libGLdispatch.so.0", suffix="0.0.0")
    host.link(f"driver/{LIB}/libOpenCL.so", "libOpenCL.so.1")

    files, _ = find(host, explicit=True)

    opencl = files[f"/{LIB}/libOpenCL.so.1.0.0"]
    assert opencl.links == (
        Link(target="libOpenCL.so.1.0.0", path=f"/{LIB}/libOpenCL.so.1"),
        Link(target="libOpenCL.so.1", path=f"/{LIB}/libOpenCL.so"),
    )
    assert opencl.capability == "compute"
    assert files[f"/{LIB}/libGLdispatch.so.0.0.0"].links == (
        Link(target="libGLdispatch.so.0.0.0", path=f"/{LIB}/libGLdispatch.so.0"),
    )


def test_explicit_libraries_come_only_with_their_flag(tmp_path: Path) -> None:
    host = HostTree(tmp_path).module().user_space()
    host.library("libEGL", "libEGL.so.1", suffix="1.1.0")

    def paths(flags: frozenset[str]) -> set[str]:
        options = DiscoveryOptions(nvml=None, flags=flags)
        _, files = find_files(host.roots, options, "x86_64", Findings())
        return {file.container_path for file in files}

    explicit = frozenset({"enable-explicit-driver-libraries"})
    assert paths(explicit) - paths(frozenset()) == {f"/{LIB}/libEGL.so.1.1.0"}


def test_an_existing_link_of_a_library_is_not_added_twice(tmp_path: Path) -> None:
    host = HostTree(tmp_path).user_space()
    path = "/usr/lib64/libnvidia-vulkan-producer.so"
    link = Link(target=f"libnvidia-vulkan-producer.so.{VERSION}", path=path)
    file = DriverFile(
        host_path=f"{path}.{VERSION}",
        container_path=f"{path}.{VERSION}",
        reason="test",
        kind="library",
        links=(link,),
    )

    with Tree(str(host.driver)) as tree:
        search = libraries.Search(tree, host.roots, "x86_64", Findings())

        assert graphics.add_links(search, [], [file]) == [file]
