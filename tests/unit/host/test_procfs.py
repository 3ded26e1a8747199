# SPDX-License-Identifier: Apache-2.0
"""GPUs from procfs and sysfs."""

from pathlib import Path

import pytest

from nvct.host import procfs
from nvct.host.gpu.nodes import cap_minors, mig_instances, parse_minors
from tests.support.host_tree import HostTree


@pytest.mark.parametrize(
    "line",
    [
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04  Tue Jul  1 2025",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build",
        "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.159.04  Release Build",
    ],
)
def test_version_of_both_kernel_modules_is_read(tmp_path: Path, line: str) -> None:
    host = HostTree(tmp_path)
    host.write("proc/driver/nvidia/version", f"{line}\nGCC version:  gcc version 12.2.0\n")

    assert procfs.driver_version(host.roots) == "580.159.04"


def test_the_version_comes_from_sysfs_if_procfs_has_none(tmp_path: Path) -> None:
    host = HostTree(tmp_path)
    host.write("proc/driver/nvidia/version", "GCC version: 12.2.0\n")
    host.write("sys/module/nvidia/version", "535.104.05\n")

    assert procfs.driver_version(host.roots) == "535.104.05"


def test_version_is_empty_without_a_module(tmp_path: Path) -> None:
    assert procfs.driver_version(HostTree(tmp_path).roots) == ""


def test_gpus_are_in_the_order_of_the_bus_not_of_names_or_minors(tmp_path: Path) -> None:
    host = HostTree(tmp_path)
    for name, minor in (("0001:02:00.0", 0), ("0000:C1:00.0", 1), ("00000000:0a:00.0", 2)):
        host.write(
            f"proc/driver/nvidia/gpus/{name}/information",
            f"Model: \t X\nGPU UUID: \t GPU-{minor}\nDevice Minor: \t {minor}\n",
        )

    pairs = [(gpu.bus_id, gpu.minor) for gpu in procfs.gpus(host.roots)]

    assert pairs == [("0000:0a:00.0", 2), ("0000:c1:00.0", 1), ("0001:02:00.0", 0)]


def test_uuid_of_a_gpu_that_was_never_initialized_is_empty(tmp_path: Path) -> None:
    host = HostTree(tmp_path).gpu(0, uuid="GPU-????????-????-????-????-????????????")

    assert procfs.gpus(host.roots)[0].uuid == ""


def test_excluded_gpu_and_foreign_names_are_left_out(tmp_path: Path) -> None:
    host = HostTree(tmp_path).gpu(0)
    host.write("proc/driver/nvidia/gpus/0000:2a:00.0/information", "GPU Excluded:\t Yes\n")
    host.write("proc/driver/nvidia/gpus/not-a-bus/information", "Model: X\n")

    assert [gpu.bus_id for gpu in procfs.gpus(host.roots)] == ["0000:18:00.0"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("00000000:18:00.0", "0000:18:00.0"),
        ("00010000:AB:1F.7", "10000:ab:1f.7"),
        ("0000:18:00.0\n", "0000:18:00.0"),
        ("18:00.0", ""),
        ("0000:18:00.8", ""),
        ("../0000:18:00.0", ""),
    ],
)
def test_bus_id_is_written_as_sysfs_does(text: str, expected: str) -> None:
    assert procfs.canonical_bus_id(text) == expected


def test_drm_names_are_cards_and_render_nodes_only(tmp_path: Path) -> None:
    host = HostTree(tmp_path).gpu(0)
    (tmp_path / "sys/bus/pci/devices/0000:18:00.0/drm/card1-DP-1").mkdir()

    assert procfs.drm_names(host.roots, "0000:18:00.0") == ["card1", "renderD128"]
    assert procfs.drm_names(host.roots, "") == []


def test_mig_minors_skip_lines_that_are_not_theirs() -> None:
    text = "config 1\nmonitor 2\ngpu0/gi1/access 12\ngpu0/gi1/ci0/access 13\ngpu0/gi1 14\nx\ngpu1/gi0/access  9\n"

    assert parse_minors(text) == {
        "config": 1,
        "monitor": 2,
        "gpu0/gi1/access": 12,
        "gpu0/gi1/ci0/access": 13,
    }


def test_mig_instances_are_read_as_numbers(tmp_path: Path) -> None:
    host = HostTree(tmp_path).instance(0, 10, 0, (90, 91)).instance(0, 9, 1, (81, 83))
    host.instance(0, 9, 0, (81, 82))

    assert mig_instances(host.roots, 0) == {9: [0, 1], 10: [0]}
    assert mig_instances(host.roots, 1) == {}


def test_cap_minors_come_from_the_access_files_without_the_table(tmp_path: Path) -> None:
    host = HostTree(tmp_path).instance(3, 7, 0, (66, 67))

    assert cap_minors(host.roots, {}, 3, 7, 0) == (66, 67)
    assert cap_minors(host.roots, {"gpu3/gi7/access": 1, "gpu3/gi7/ci0/access": 2}, 3, 7, 0) == (
        1,
        2,
    )
    assert cap_minors(host.roots, {}, 3, 8, 0) is None
