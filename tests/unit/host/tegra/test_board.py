# SPDX-License-Identifier: Apache-2.0
"""Which boards are Tegras; what they give containers is in tests/hosts/other_changes.py."""

from pathlib import Path

import pytest

from nvct.host.tegra import board as tegra
from tests.support.host_tree import HostTree


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
