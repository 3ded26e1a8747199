# SPDX-License-Identifier: Apache-2.0
"""Entries of JetPack's lists: files, directories and chains of links."""

from pathlib import Path

import pytest

from nvct.errors import UsageError
from tests.support.host_tree import HostTree, elf_bytes
from tests.support.jetson import LIB, Board, file_paths, links, node_paths


@pytest.fixture
def board(tmp_path: Path) -> Board:
    (tmp_path / "driver").mkdir()
    return Board(HostTree(tmp_path))


def test_a_name_below_a_linked_directory_is_made_at_its_resolved_path(board: Board) -> None:
    board.listed("nvidia0").cuda().link("/usr/lib/aarch64-linux-gnu/tegra", "nvidia")
    board.host.link(f"driver{LIB}/libx.so", "libcuda.so.1.1")
    board.drivers += "sym, /usr/lib/aarch64-linux-gnu/tegra/libx.so\n"

    inventory = board.find()

    assert links(inventory)[f"{LIB}/libx.so"] == "libcuda.so.1.1"
    assert not any(
        path.startswith("/usr/lib/aarch64-linux-gnu/tegra/") for path in links(inventory)
    )


@pytest.mark.parametrize("target", ["nowhere", "loop.so", "../../../../../../../../etc/passwd"])
def test_a_link_that_leads_nowhere_in_the_driver_root_is_left_out(
    board: Board, target: str
) -> None:
    board.listed("nvidia0").cuda().link(f"{LIB}/loop.so", target)

    inventory = board.find()

    assert f"{LIB}/loop.so" not in links(inventory)
    assert [entry.path for entry in inventory.left_out] == [f"{LIB}/loop.so"]
    assert len(inventory.files) == 2


def test_a_link_on_the_host_wins_over_the_name_in_the_library(board: Board) -> None:
    board.listed("nvidia0").cuda()
    board.library(f"{LIB}/libEGL_nvidia.so.0", "libEGL.so.1")
    board.library(f"{LIB}/libEGL.so.1")

    inventory = board.find()

    assert f"{LIB}/libEGL.so.1" not in links(inventory)
    assert f"{LIB}/libEGL.so.1" in file_paths(inventory)


def test_the_kind_of_a_file_depends_on_its_folder_or_name(board: Board) -> None:
    board.listed("nvidia0").cuda()
    for path, mode in (
        ("/usr/sbin/nvidia-smi", 0o755),
        ("/lib/firmware/tegra23x/desc_prod.bin", 0o644),
        (f"{LIB}/weston/drm-backend.so", 0o755),
        ("/var/nvidia/nvcam/settings/imx219.nito", 0o644),
    ):
        board.host.write(f"driver{path}", mode=mode)
        board.drivers += f"lib, {path}\n"
    board.host.write("etc/nv_tegra_release", "# R36 (release), REVISION: 4.0\n")

    inventory = board.find()

    kinds = {file.container_path: file.kind for file in inventory.files}
    assert kinds == {
        "/etc/nv_tegra_release": "config",
        "/lib/firmware/tegra23x/desc_prod.bin": "firmware",
        f"{LIB}/libcuda.so.1.1": "library",
        f"{LIB}/libnvidia-ml.so.1": "library",
        f"{LIB}/weston/drm-backend.so": "module",
        "/usr/sbin/nvidia-smi": "binary",
        "/var/nvidia/nvcam/settings/imx219.nito": "config",
    }


def test_names_are_searched_in_the_search_paths_first(board: Board) -> None:
    board.listed("nvidia0").cuda()
    board.host.write("driver/opt/l4t/libx.so", elf_bytes("libx.so", "aarch64"))
    board.drivers += "lib, libx.so\n"

    assert "/opt/l4t/libx.so" in file_paths(board.find(search_paths=("/opt/l4t",)))
    assert "libx.so" in {entry.path for entry in board.find().left_out}
    with pytest.raises(UsageError, match="'opt' is not absolute"):
        board.find(search_paths=("opt",))


def test_a_path_with_dots_stays_in_the_driver_root(board: Board) -> None:
    board.host.write("secret", "x")
    board.listed("nvidia0").cuda().drivers += "lib, /../../secret\ndir, /../..\ndev, /../secret\n"

    inventory = board.find()

    assert all(file.host_path.startswith(str(board.host.driver)) for file in inventory.files)
    assert node_paths(inventory) == {"0": ["/dev/nvidia0"]}
