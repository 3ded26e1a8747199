# SPDX-License-Identifier: Apache-2.0
"""Device nodes."""

from pathlib import Path

import pytest

from nvct.host.gpu import nodes
from nvct.host.model import Findings, Link
from nvct.host.roots import Roots
from nvct.linux import device_nodes
from tests.support.host_tree import HostTree


def search(host: HostTree) -> nodes.NodeSearch:
    return nodes.NodeSearch(host.roots, host.stat_node, Findings())


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("nvidiactl", (195, 255)),
        ("nvidia-modeset", (195, 254)),
        ("nvidia-uvm", (508, 0)),
        ("nvidia-uvm-tools", (508, 1)),
        ("nvidia12", (195, 12)),
        ("nvidia-caps/nvidia-cap21", (236, 21)),
        ("dri/card3", (226, 3)),
        ("dri/renderD130", (226, 130)),
    ],
)
def test_plain_files_get_the_numbers_of_their_names(
    tmp_path: Path, name: str, numbers: tuple[int, int]
) -> None:
    host = HostTree(tmp_path).module()
    path = host.write(f"dev/{name}", mode=0o640)

    status = host.stat_node(str(path))

    assert status is not None
    assert status[:3] == (*numbers, 0o640)


def test_plain_file_of_an_unknown_name_is_no_node(tmp_path: Path) -> None:
    host = HostTree(tmp_path).module()

    assert host.stat_node(str(host.write("dev/nvidia-nvswitchctl"))) is None
    assert host.stat_node(str(tmp_path / "dev")) is None
    assert host.stat_node(str(tmp_path / "absent")) is None


def test_plain_files_are_no_nodes_for_the_real_stat(tmp_path: Path) -> None:
    host = HostTree(tmp_path).module()
    findings = Findings()

    assert nodes.control_nodes(nodes.NodeSearch(host.roots, device_nodes.node, findings)) == ()
    assert any("nvidiactl is not a device node" in warning for warning in findings.warnings)


def test_a_real_node_of_the_host_is_used_unchanged() -> None:
    status = nodes.named_nodes(Roots())("/dev/null")

    assert status is not None
    assert status[:2] == (1, 3)


def test_missing_modeset_node_is_normal_on_a_server(tmp_path: Path) -> None:
    host = HostTree(tmp_path).module()
    (tmp_path / "dev/nvidia-modeset").unlink()
    findings = Findings()

    assert len(nodes.control_nodes(nodes.NodeSearch(host.roots, host.stat_node, findings))) == 3
    assert findings.warnings == []


def test_node_is_at_dev_in_the_container_whatever_the_dev_root(tmp_path: Path) -> None:
    host = HostTree(tmp_path).module().gpu(0)

    node = nodes.gpu_node(search(host), 0, 0)

    assert node is not None
    assert (node.path, node.host_path) == ("/dev/nvidia0", f"{tmp_path}/dev/nvidia0")


def test_a_by_path_link_is_included_only_with_its_target(tmp_path: Path) -> None:
    host = HostTree(tmp_path).module().gpu(0)
    (tmp_path / "dev/dri/renderD128").unlink()

    drm, links = nodes.drm_nodes(search(host), "0000:18:00.0", 0)

    assert [node.path for node in drm] == ["/dev/dri/card1"]
    assert links == (Link(target="../card1", path="/dev/dri/by-path/pci-0000:18:00.0-card"),)


def test_a_mig_device_without_one_of_its_nodes_has_no_nodes(tmp_path: Path) -> None:
    host = HostTree(tmp_path).module().gpu(0).instance(0, 7, 0, (30, 31))
    (tmp_path / "dev/nvidia-caps/nvidia-cap31").unlink()

    assert nodes.cap_nodes(search(host), (30, 31), "0:0") is None
