# SPDX-License-Identifier: Apache-2.0
"""32-bit libraries of the driver."""

from pathlib import Path

import pytest

from nvct.host.discover import discover
from nvct.host.discovery_options import DiscoveryOptions
from nvct.host.model import DriverFile, Inventory
from nvct.linux import ldcache
from nvct_sim.elf_writer import shared_object
from tests.support.host_tree import VERSION, HostTree, elf_bytes

REASON = "32-bit, which containers get that ask for compat32"


@pytest.fixture
def host(tmp_path: Path) -> HostTree:
    return HostTree(tmp_path).module().user_space().gpu(0)


def add(host: HostTree, folder: str, stem: str = "libcuda", soname: str = "libcuda.so.1") -> str:
    path = f"{folder}/{stem}.so.{VERSION}"
    host.write(f"driver/{path}", shared_object("i386", soname=soname))
    return f"/{path}"


def look(host: HostTree, *, compat32: bool = True, machine: str = "x86_64") -> Inventory:
    options = DiscoveryOptions(
        nvml=None, stat_node=host.stat_node, machine=machine, compat32=compat32
    )
    return discover(host.roots, options)


def compat(inventory: Inventory) -> dict[str, DriverFile]:
    return {f.container_path: f for f in inventory.files if f.capability == "compat32"}


@pytest.mark.parametrize(
    "folder", ["usr/lib/i386-linux-gnu", "usr/lib32", "usr/lib", "lib32", "lib/i386-linux-gnu"]
)
def test_libraries_of_all_usual_directories_are_included_with_their_links(
    host: HostTree, folder: str
) -> None:
    path = add(host, folder)

    file = compat(look(host))[path]

    assert {link.path: link.target for link in file.links} == {
        f"/{folder}/libcuda.so.1": f"libcuda.so.{VERSION}",
        f"/{folder}/libcuda.so": "libcuda.so.1",
    }
    assert file.reason.startswith("32-bit")


def test_vdpau_and_the_linker_caches_directories_are_searched(host: HostTree) -> None:
    inner = add(host, "usr/lib32/vdpau", "libvdpau_nvidia", "libvdpau_nvidia.so.1")
    far = add(host, "opt/lib32")
    cache = ldcache.merge(None, [("libcuda.so.1", "/opt/lib32/libcuda.so.1")], machine="i386")
    host.write("driver/etc/ld.so.cache", cache)
    host.link("driver/opt/lib32/libcuda.so.1", f"libcuda.so.{VERSION}")

    assert set(compat(look(host))) == {inner, far}


@pytest.mark.parametrize("folder", ["usr/lib/i386-linux-gnu", "usr/lib"])
def test_libraries_are_left_out_with_a_reason_unless_requested(
    host: HostTree, folder: str
) -> None:
    path = add(host, folder)

    inventory = look(host, compat32=False)

    assert compat(inventory) == {}
    assert {entry.path: entry.reason for entry in inventory.left_out}[
        f"{host.driver}{path}"
    ] == REASON


@pytest.mark.parametrize("requested", [True, False])
def test_platform_libraries_of_egl_are_32_bit_libraries_too(
    host: HostTree, *, requested: bool
) -> None:
    path = "usr/lib/i386-linux-gnu/libnvidia-egl-gbm.so.1.1.3"
    host.write(f"driver/{path}", shared_object("i386", soname="libnvidia-egl-gbm.so.1"))

    inventory = look(host, compat32=requested)

    reasons = {entry.path: entry.reason for entry in inventory.left_out}
    assert (f"/{path}" in compat(inventory)) is requested
    assert reasons.get(f"{host.driver}/{path}") == (None if requested else REASON)


def test_a_file_that_may_not_be_32_bit_is_left_out(host: HostTree) -> None:
    host.write(f"driver/usr/lib32/libcuda.so.{VERSION}", "not ELF")
    host.write(f"driver/usr/lib32/libnvidia-ml.so.{VERSION}", elf_bytes("x", "aarch64"))

    assert compat(look(host)) == {}


def test_a_machine_without_a_32_bit_mode_has_no_32_bit_libraries(host: HostTree) -> None:
    add(host, "usr/lib32")
    host.write(f"driver/usr/lib64/libcuda.so.{VERSION}", elf_bytes("libcuda.so.1", "aarch64"))

    assert compat(look(host, machine="aarch64")) == {}
