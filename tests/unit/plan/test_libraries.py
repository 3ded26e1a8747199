# SPDX-License-Identifier: Apache-2.0
"""What of mounted files the dynamic linker is told, and by which names."""

from __future__ import annotations

import os

import pytest

from nvct.plan import libraries
from nvct.sim.elf_writer import shared_object

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any


class Driver:
    """Files of a driver, and the edits that mount them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.edits: Any = {"mounts": [], "hooks": [{"args": ["nvidia-cdi-hook", "apply"]}]}

    def tell(self, *words: str) -> Driver:
        self.edits["hooks"][0]["args"] += words
        return self

    def mount(self, path: str, data: bytes) -> Driver:
        place = self.folder / path.replace("/", "-")
        place.write_bytes(data)
        self.edits["mounts"].append({"hostPath": str(place), "containerPath": path})
        return self

    def library(self, path: str, soname: str = "", machine: str = "x86_64") -> Driver:
        return self.mount(path, shared_object(machine, soname=soname or None))

    def entries(self) -> list[list[str]]:
        return libraries.entries(self.edits, libraries.Hooks([self.edits]))


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    return Driver(tmp_path).tell("--folder", "/lib64")


def test_a_library_has_its_soname_and_the_link_programs_are_built_with(driver: Driver) -> None:
    driver.tell("--link", "libcuda.so.580::/lib64/libcuda.so.1")
    driver.tell("--link", "libcuda.so.1::/lib64/libcuda.so")
    driver.tell("--link", "libcuda.so.580::/lib64/libOther.so.0")

    assert driver.library("/lib64/libcuda.so.580", "libcuda.so.1").entries() == [
        ["x86_64", "libcuda.so", "/lib64/libcuda.so"],
        ["x86_64", "libcuda.so.1", "/lib64/libcuda.so.1"],
    ]


def test_without_a_link_the_file_itself_is_named(driver: Driver) -> None:
    driver.library("/lib64/libnvidia-x.so.580", "libnvidia-x.so.1").library("/lib64/liby.so.1")

    assert driver.entries() == [
        ["x86_64", "libnvidia-x.so.1", "/lib64/libnvidia-x.so.580"],
        ["x86_64", "liby.so.1", "/lib64/liby.so.1"],
    ]


def test_each_machine_has_its_own(driver: Driver) -> None:
    driver.tell("--folder", "/lib32").library("/lib32/libcuda.so.1", "libcuda.so.1", "i386")

    assert driver.library("/lib64/libcuda.so.1", "libcuda.so.1").entries() == [
        ["i386", "libcuda.so.1", "/lib32/libcuda.so.1"],
        ["x86_64", "libcuda.so.1", "/lib64/libcuda.so.1"],
    ]


def test_of_two_files_with_one_soname_the_later_version_is_named(driver: Driver) -> None:
    for version in ("580.9", "580.10", "570.1"):
        driver.library(f"/lib64/libcuda.so.{version}", "libcuda.so.1")

    assert driver.entries() == [["x86_64", "libcuda.so.1", "/lib64/libcuda.so.580.10"]]


def test_what_the_linker_is_not_told_of_is_left_out(driver: Driver, tmp_path: Path) -> None:
    driver.library("/opt/libcuda.so.1").library("/lib64/nvidia_drv.so", "nvidia_drv.so")
    driver.mount("/lib64/libscript.so", b"INPUT(libc.so.6)")
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", tmp_path / "gone", tmp_path):
        driver.edits["mounts"].append({"hostPath": str(path), "containerPath": "/lib64/libz.so.1"})

    assert driver.entries() == []


def test_links_that_lead_in_circles_end(driver: Driver) -> None:
    driver.tell("--link", "libcuda.so.1::/lib64/libcuda.so", "--link")
    driver.tell("libcuda.so::/lib64/libcuda.so.1").library("/lib64/libcuda.so.1", "libcuda.so.1")

    assert driver.entries()[-1] == ["x86_64", "libcuda.so.1", "/lib64/libcuda.so.1"]


def test_without_folders_nothing_is_read(tmp_path: Path) -> None:
    assert Driver(tmp_path).library("/lib64/libcuda.so.1", "libcuda.so.1").entries() == []
