# SPDX-License-Identifier: Apache-2.0
"""Missing dependencies (DT_NEEDED) of the driver's libraries."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from nvct.host import discover
from nvct.host.driver import libraries
from nvct.host.driver.tree import Tree
from nvct.host.model import Findings
from nvct.linux import ldcache
from nvct_sim.elf_writer import shared_object
from tests.support.host_tree import LIB, VERSION, HostTree

NAME = f"libnvidia-eglcore.so.{VERSION}"


def warnings(host: HostTree, *needed: str) -> list[str]:
    """Return the warnings about a library that needs some others."""
    host.write(f"driver/{LIB}/{NAME}", shared_object(soname=NAME, needed=needed))
    findings = Findings()
    with Tree(str(host.driver)) as tree:
        search = libraries.Search(tree, host.roots, "x86_64", findings)
        dirs = libraries.directories(search)
        discover.check_dependencies(search, libraries.find_libraries(search, VERSION, dirs), dirs)
    return findings.warnings


@pytest.fixture
def host(tmp_path: Path) -> HostTree:
    return HostTree(tmp_path).user_space()


def test_dependencies_among_the_drivers_libraries_cause_no_warning(host: HostTree) -> None:
    host.library("libnvidia-cfg", "libnvidia-cfg.so.1")
    (host.driver / LIB / "libnvidia-cfg.so.1").unlink()

    assert warnings(host, "libnvidia-cfg.so.1", f"libnvidia-gpucomp.so.{VERSION}") == []


def test_a_missing_driver_library_is_named_once_with_the_driver_root(host: HostTree) -> None:
    missing = f"libnvidia-glsi.so.{VERSION}"

    assert warnings(host, missing, missing) == [
        f"{NAME} needs {missing}, which is not in {host.driver}"
    ]


def test_all_missing_dependencies_of_a_library_are_one_warning(host: HostTree) -> None:
    names = [f"libodd{n}.so.1" for n in range(5)]

    (warning,) = warnings(host, *names)

    assert warning == (
        f"{NAME} needs libodd0.so.1 and libodd1.so.1 and libodd2.so.1 and 2 more, which are not "
        f"in {host.driver}"
    )


@pytest.mark.parametrize(
    "name",
    ["libc.so.6", "libgcc_s.so.1", "ld-linux-x86-64.so.2", "libX11.so.6", "libxcb-dri3.so.0",
     "libwayland-client.so.0", "libcrypto.so.1.1", "libgtk-3.so.0", "libpangocairo-1.0.so.0"],
)  # fmt: skip
def test_missing_libraries_that_images_contain_cause_no_warning(host: HostTree, name: str) -> None:
    assert warnings(host, name) == []


def test_a_driver_library_on_the_host_causes_no_warning(host: HostTree) -> None:
    host.library("libodd", folder="usr/lib64", suffix="1")

    assert warnings(host, "libodd.so.1") == []


def test_a_driver_library_in_the_linker_cache_causes_no_warning(host: HostTree) -> None:
    cache = ldcache.merge(None, [("libodd.so.1", "/opt/libodd.so.1")], machine="x86_64")
    host.write("driver/etc/ld.so.cache", cache)

    assert warnings(host, "libodd.so.1") == []


def test_a_driver_library_that_containers_do_not_get_is_named(host: HostTree) -> None:
    host.library("libnvidia-glsi", suffix="570.10.01")

    (warning,) = warnings(host, "libnvidia-glsi.so.570.10.01")

    assert warning == (
        f"{NAME} needs libnvidia-glsi.so.570.10.01, which is in {host.driver}, but containers "
        "do not get it"
    )


@pytest.mark.parametrize("name", ["libodd\n.so", "x" * 3000])
def test_hostile_names_of_dependencies_stay_on_one_line(host: HostTree, name: str) -> None:
    (warning,) = warnings(host, name)

    assert warning.isprintable()


def test_dependencies_of_32_bit_libraries_are_32_bit_libraries(host: HostTree) -> None:
    findings = Findings()
    with Tree(str(host.driver)) as tree:
        search = libraries.Search(tree, host.roots, "x86_64", findings)
        dirs = libraries.directories(search)
        files = libraries.find_libraries(search, VERSION, dirs)
        cuda = next(f for f in files if os.path.basename(f.host_path).startswith("libcuda."))
        compat = replace(cuda, capability="compat32", needed=(f"libnvidia-gpucomp.so.{VERSION}",))
        discover.check_dependencies(search, [*files, compat], dirs)

    assert len(findings.warnings) == 1
    assert "needs libnvidia-gpucomp" in findings.warnings[0]
