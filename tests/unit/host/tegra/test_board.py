# SPDX-License-Identifier: Apache-2.0
"""Boards with an integrated GPU: mode csv."""

from pathlib import Path

import pytest

from nvct.errors import HostError, NvmlError
from nvct.host import discovery_options
from nvct.host.discovery_options import DiscoveryOptions
from nvct.host.tegra import board as tegra
from tests.support.host_tree import FakeNvml, HostTree
from tests.support.jetson import FOLDER, ORIN, RTX, THOR, Board, node_paths


@pytest.fixture
def board(tmp_path: Path) -> Board:
    (tmp_path / "driver").mkdir()
    return Board(HostTree(tmp_path))


def test_the_compat_folder_of_an_orin_can_be_configured(board: Board) -> None:
    inventory = board.listed("nvidia0").cuda().find(ORIN, compat_container_root="/opt/compat")

    assert inventory.compat_container_root == "/opt/compat"


def test_other_boards_have_their_compat_libraries_in_the_usual_folder(board: Board) -> None:
    board.listed("nvidia0").cuda()

    assert board.find(THOR, compat_container_root="/opt/compat").compat_container_root == ""


def test_without_nvml_there_is_one_device_and_no_cuda_version(board: Board) -> None:
    inventory = board.listed("nvidia0").cuda().find()

    assert node_paths(inventory) == {"0": ["/dev/nvidia0"]}
    assert inventory.cuda_version == inventory.devices[0].uuid == ""
    assert inventory.notes == ("no NVML: one device, and CUDA of a container's own is not used",)


def test_if_nvml_fails_the_cuda_version_is_unknown_with_a_warning(board: Board) -> None:
    broken = FakeNvml(error=NvmlError("nvmlInit of libnvidia-ml.so.1 failed: driver not loaded"))

    inventory = board.listed("nvidia0").cuda().find(nvml=broken)

    assert node_paths(inventory) == {"0": ["/dev/nvidia0"]}
    (warning,) = inventory.warnings
    assert warning == (
        "nvmlInit of libnvidia-ml.so.1 failed: driver not loaded: "
        "one device, and no CUDA of a container's own"
    )


def test_nothing_is_made_in_a_folder_of_dev_that_a_list_mounts(board: Board) -> None:
    board.listed("nvidia0", "nvidia1").node("dri/card1")
    board.devices += "dir, /dev/dri/by-path\n"
    (board.host.base / "sys/bus/pci/devices/0000:03:00.0/drm/card1").mkdir(parents=True)
    board.host.link("dev/dri/by-path/pci-0000:03:00.0-card", "../card1")

    inventory = board.cuda().find(THOR, RTX)

    folder = next(f for f in inventory.files if f.container_path == "/dev/dri/by-path")
    assert (folder.kind, folder.host_path) == (
        "directory",
        str(board.host.base / "dev/dri/by-path"),
    )
    assert "/dev/dri/card1" in node_paths(inventory)["1"]
    assert not any("by-path" in path for path in node_paths(inventory)["1"])


def test_a_discrete_gpu_without_its_node_is_left_out(board: Board) -> None:
    board.listed("nvidia0", "nvmap").devices += "dev, /dev/nvidia1\n"

    inventory = board.cuda().find(THOR, RTX)

    assert node_paths(inventory) == {"0": ["/dev/nvidia0", "/dev/nvmap"]}
    assert inventory.warnings == (
        f"{board.host.base}/dev/nvidia1 is no device node: GPU 1 is left out",
    )


def test_one_device_can_be_requested(board: Board) -> None:
    board.listed("nvidia0", "nvidia1").cuda()

    inventory = board.find(THOR, RTX, flags=frozenset({discovery_options.ONE_CSV_DEVICE}))

    assert node_paths(inventory) == {"0": ["/dev/nvidia0", "/dev/nvidia1"]}
    assert inventory.devices[0].uuid == ""


def test_unknown_sets_of_gpus_are_one_device_with_a_warning(board: Board) -> None:
    inventory = board.listed("nvidia0", "nvidia1").cuda().find(RTX, THOR)

    assert node_paths(inventory) == {"0": ["/dev/nvidia0", "/dev/nvidia1"]}
    (warning,) = inventory.warnings
    assert warning == (
        "the GPUs RTX PRO 6000, NVIDIA Thor are not an integrated and a discrete one: "
        "all are one device"
    )


def test_a_list_without_libcuda_is_warned_about(board: Board) -> None:
    inventory = board.listed("nvidia0").find()

    assert inventory.warnings[1:] == (
        "no libcuda in devices.csv: CUDA will not start in containers",
    )


def test_a_board_without_lists_is_an_error_that_names_their_folder(board: Board) -> None:
    folder = board.host.base / FOLDER

    with pytest.raises(HostError) as caught:
        tegra.discover(board.host.roots, DiscoveryOptions(nvml=None))

    assert caught.value.message == (
        f"no CSV file says what containers get on this board: {folder}"
    )
    assert caught.value.hint == "install nvidia-l4t-init, or name them: --csv.file"


def test_a_board_without_any_listed_node_is_an_error(board: Board) -> None:
    board.cuda().devices = "dev, /dev/nvidia0\n"

    with pytest.raises(HostError, match="no device node that this board's CSV files name is in"):
        board.find()


@pytest.mark.parametrize(
    ("board_files", "gpus", "expected"),
    [
        ((), (), False),
        (("etc/nv_tegra_release",), (), True),
        (("sys/devices/soc0/family",), (), True),
        (("etc/nv_tegra_release",), ("NVIDIA RTX A6000",), False),
        (("etc/nv_tegra_release", "sys/module/nvgpu/version"), ("NVIDIA RTX A6000",), True),
        ((), ("NVIDIA RTX A6000",), False),
        ((), ("NVIDIA Thor",), True),
        (("etc/nv_tegra_release",), ("NVIDIA RTX A6000", "NVIDIA Thor"), True),
    ],
)
def test_a_tegra_is_distinguished_from_an_igx_board_that_uses_its_discrete_gpu(
    tmp_path: Path, board_files: tuple[str, ...], gpus: tuple[str, ...], *, expected: bool
) -> None:
    host = HostTree(tmp_path)
    for path in board_files:
        host.write(path, "Tegra\n")
    for index, model in enumerate(gpus):
        host.gpu(index, model=model)

    assert tegra.is_tegra(host.roots) is expected


def test_a_chip_family_of_another_vendor_is_not_a_tegra(tmp_path: Path) -> None:
    host = HostTree(tmp_path)
    host.write("sys/devices/soc0/family", "Snapdragon\n")

    assert not tegra.is_tegra(host.roots)
