# SPDX-License-Identifier: Apache-2.0
"""Unit tests for nodes with switches, IMEX channels, storage, or many GPUs."""

import json
import os
import stat
import sys
from pathlib import Path

import pytest

from nvct_sim import kernelfs, node_changes, package, rootfs, tree
from tests.support.on_node import run_in


@pytest.fixture
def hgx(tmp_path: Path) -> tree.Node:
    return tree.create("hgx", "hgx-h100", tmp_path / "nodes", native=False, nodes="plain")


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_node_with_switches_has_the_nodes_of_all_its_drivers(hgx: tree.Node) -> None:
    nodes = names(hgx.dev)

    assert {f"nvidia-nvswitch{number}" for number in range(4)} <= nodes
    assert {f"nvidia-fs{number}" for number in range(16)} <= nodes
    assert {"nvidia-nvswitchctl", "nvidia-nvlink", "gdrdrv", "nvidia7"} <= nodes
    assert names(hgx.dev / "infiniband") == {"rdma_cm", *(f"uverbs{n}" for n in range(8))}
    assert names(hgx.dev / "nvidia-caps-imex-channels") == {f"channel{n}" for n in range(3)}


def test_other_nodes_have_no_switches(tmp_path: Path) -> None:
    node = tree.create("few", "t4", tmp_path, native=False, nodes="plain")

    assert not [name for name in names(node.dev) if name.startswith(("nvidia-fs", "nvidia-nv"))]
    assert not names(node.dev) & {"gdrdrv", "infiniband", "nvidia-caps-imex-channels"}
    assert "nvswitch" not in (node.proc / "devices").read_text()
    assert not (node.driver_root / "usr/bin/nv-fabricmanager").exists()


def test_the_majors_of_the_nodes_are_those_that_proc_shows(hgx: tree.Node) -> None:
    shown = kernelfs.host_majors((hgx.proc / "devices").read_text())
    files = list(kernelfs.device_files(hgx.state(), {}))
    major = {file.name: file.major for file in files}

    assert shown[major["nvidia-nvswitch0"]] == "nvidia-nvswitch"
    assert shown[major["nvidia-fs3"]] == "nvidia-fs"
    assert shown[major["gdrdrv"]] == "gdrdrv"
    assert shown[major["infiniband/uverbs0"]] == "infiniband_verbs"
    assert shown[major["nvidia-caps-imex-channels/channel1"]] == "nvidia-caps-imex-channels"
    assert len({(file.major, file.minor) for file in files}) == len(files)


def test_the_fabric_manager_and_its_libraries_are_installed(hgx: tree.Node) -> None:
    root = hgx.driver_root

    assert stat.S_ISSOCK((root / "run/nvidia-fabricmanager/socket").lstat().st_mode)
    assert os.access(root / "usr/bin/nv-fabricmanager", os.X_OK)
    assert (hgx.library_dir / "libnvidia-nscq.so.2").resolve().name == (
        f"libnvidia-nscq.so.{hgx.installed}"
    )
    json.loads((root / "etc/cufile.json").read_text())
    assert "libnvidia-nscq.so.2" in dict(package.cache_entries(root, hgx.machine))


def test_switches_are_pci_devices_and_an_upgrade_replaces_their_libraries(hgx: tree.Node) -> None:
    devices = hgx.sys / "bus/pci/devices"
    classes = [path.read_text() for path in devices.glob("*/class")]
    assert sorted(classes) == ["0x030200\n"] * 8 + ["0x068000\n"] * 4  # no displays

    upgraded = node_changes.upgrade(hgx, "590.10.01")

    libraries = {path.name for path in upgraded.library_dir.glob("libnvidia-nscq.so.*")}
    assert libraries == {"libnvidia-nscq.so.2", "libnvidia-nscq.so.590.10.01"}


@pytest.mark.parametrize(("name", "mig"), [("h100-64", 0), ("h100-64-mig", 448)])
def test_a_node_may_have_64_gpus(tmp_path: Path, name: str, mig: int) -> None:
    node = tree.create("many", name, tmp_path, native=False, nodes="plain")
    now = node.state()

    assert len(now.find("gpu")) == 64
    assert len(now.find("ci")) == mig
    assert len({gpu.fields["bus"] for gpu in now.find("gpu")}) == 64
    assert {f"nvidia{number}" for number in range(64)} <= names(node.dev)


def test_mig_minors_has_every_gpu_of_a_large_node(tmp_path: Path) -> None:
    node = tree.create("many", "h100-64-mig", tmp_path, native=False, nodes="plain")
    text = (node.proc / "driver/nvidia-caps/mig-minors").read_text()
    table = dict(line.split() for line in text.splitlines())

    now = node.state()
    for cap in now.find("cap"):
        minor = now.gpu(int(cap.fields["gpu"])).fields["minor"]
        ci = f"/ci{cap.fields['ci']}" if "ci" in cap.fields else ""
        assert table[f"gpu{minor}/gi{cap.fields['gi']}{ci}/access"] == cap.fields["minor"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_devices_other_than_gpus_are_visible_on_the_node(tmp_path: Path) -> None:
    if reason := rootfs.can_run_containers():
        pytest.skip(reason)
    node = tree.create("hgx", "hgx-h100", tmp_path, native=False)
    script = (
        "ls /dev/nvidia-nvswitch3 /dev/nvidia-fs15 /dev/infiniband/uverbs7 /dev/gdrdrv"
        " /dev/nvidia-caps-imex-channels/channel2 /run/nvidia-fabricmanager/socket"
        " /sys/module/nvidia_fs/initstate"
    )

    done = run_in(node, ["/bin/sh", "-c", script], dict(os.environ), driver_root="/")

    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_the_fabric_manager_of_a_node_with_switches_is_missed_and_found(tmp_path: Path) -> None:
    if reason := rootfs.can_run_containers():
        pytest.skip(reason)
    node = tree.create("hgx", "hgx-h100", tmp_path, native=False)
    check = (
        "from nvct.config.model import Config; from nvct.doctor.hardware import fabric as check;"
        "from nvct.doctor.node import Node; node = Node(Config(), {}); node.readiness = ();"
        "print(*check(node).lines)"
    )
    look = f"'{sys.executable}' -I -c '{check}'"
    script = (
        f"{look}; nv-fabricmanager & until grep -qs nv-fabric /proc/$!/comm; do sleep 0.05; done;"
        f"{look}; kill $!"
    )

    done = run_in(node, ["/bin/sh", "-c", script], dict(os.environ), driver_root="/")

    assert done.stdout.splitlines() == [
        "4 NVSwitches, but no process nv-fabricmanager",
        "4 NVSwitches, and the fabric manager runs",
    ], done.stderr
