# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from nvct.compile.plans import linker_entries
from nvct.container.plan.model import no_work
from nvct.host.model import DriverFile


class Driver:
    def __init__(self) -> None:
        self.work = no_work()
        self.files: list[DriverFile] = []

    def link(self, target: str, path: str) -> Driver:
        self.work["links"].append([target, path])
        return self

    def library(self, path: str, soname: str = "", machine: str = "x86_64") -> Driver:
        file = DriverFile(
            host_path=path, container_path=path, reason="", kind="library",
            machine=machine, soname=soname,
        )  # fmt: skip
        self.files.append(file)
        return self

    def entries(self) -> list[list[str]]:
        return linker_entries(self.files, self.work)


@pytest.fixture
def driver() -> Driver:
    driver = Driver()
    driver.work["folders"].append("/lib64")
    return driver


def test_a_library_has_its_soname_and_the_link_programs_are_built_with(driver: Driver) -> None:
    driver.link("libcuda.so.580", "/lib64/libcuda.so.1")
    driver.link("libcuda.so.1", "/lib64/libcuda.so")
    driver.link("libcuda.so.580", "/lib64/libOther.so.0")

    assert driver.library("/lib64/libcuda.so.580", "libcuda.so.1").entries() == [
        ["x86_64", "libcuda.so", "/lib64/libcuda.so"],
        ["x86_64", "libcuda.so.1", "/lib64/libcuda.so.1"],
    ]


def test_of_two_files_with_one_soname_the_later_version_is_named(driver: Driver) -> None:
    for version in ("580.9", "580.10", "570.1"):
        driver.library(f"/lib64/libcuda.so.{version}", "libcuda.so.1")

    assert driver.entries() == [["x86_64", "libcuda.so.1", "/lib64/libcuda.so.580.10"]]


def test_links_that_lead_in_circles_end(driver: Driver) -> None:
    driver.link("libcuda.so.1", "/lib64/libcuda.so").link("libcuda.so", "/lib64/libcuda.so.1")
    driver.library("/lib64/libcuda.so.1", "libcuda.so.1")

    assert driver.entries()[-1] == ["x86_64", "libcuda.so.1", "/lib64/libcuda.so.1"]
