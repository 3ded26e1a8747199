# SPDX-License-Identifier: Apache-2.0
"""Names of the driver's files and folders; what hosts have is in tests/hosts/server_changes.py."""

from pathlib import Path

import pytest

from nvct.host.driver import names, programs
from tests.support.host_tree import HostTree


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        ("libcuda.so.580.1", "libcuda"),
        ("libcuda.so", "libcuda"),
        ("nvidia_drv.so", "nvidia_drv.so"),
        ("lib.so", "lib.so"),
    ],
)
def test_stem_is_the_name_up_to_so(name: str, stem: str) -> None:
    assert names.stem(name) == stem


def test_no_library_serves_two_classes_by_the_table() -> None:
    libraries = [name for each in names.CLASSES.values() for name in each]

    assert len(libraries) == len(set(libraries)) == len(names.CLASS_OF)


def test_firmware_directories_are_the_kernels_in_its_order(tmp_path: Path) -> None:
    host = HostTree(tmp_path).module()
    host.write("sys/module/firmware_class/parameters/path", "/custom\n")

    assert programs.directories(host.roots) == [
        "/custom", "/lib/firmware/updates/6.1.0-40-amd64", "/lib/firmware/updates",
        "/lib/firmware/6.1.0-40-amd64", "/lib/firmware",
    ]  # fmt: skip
