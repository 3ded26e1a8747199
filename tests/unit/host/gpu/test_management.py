# SPDX-License-Identifier: Apache-2.0
"""Mode management: every node of the driver, and no NVML."""

from pathlib import Path

import pytest

from nvct.errors import DriverNotFoundError, HostError
from nvct.host import discovery_options, modes
from nvct.host.discovery_options import DiscoveryOptions
from nvct.host.gpu.nodes import named_nodes
from nvct.host.model import Inventory
from tests.support.host_tree import LIB, MAJORS, VERSION, FakeNvml, HostTree


@pytest.fixture
def host(tmp_path: Path) -> HostTree:
    host = HostTree(tmp_path).module().user_space().gpu(0).gpu(1)
    more = {**MAJORS, "nvidia-caps-imex-channels": 234, "nvidia-nvswitch": 510, "nvidia-fs": 507}
    lines = "".join(f"{major} {name}\n" for name, major in more.items())
    host.write("proc/devices", f"Character devices:\n{lines}\nBlock devices:\n")
    return host


def look(host: HostTree, **options: object) -> Inventory:
    discovery = DiscoveryOptions(stat_node=named_nodes(host.roots), machine="x86_64", **options)  # type: ignore[arg-type]
    return modes.discover("management", host.roots, discovery)


def test_every_node_of_the_driver_is_included_without_those_of_other_modes(host: HostTree) -> None:
    for name in (
        "nvidia-fs0", "nvidia-nvswitchctl", "nvidia-nvswitch0", "nvidia-caps/nvidia-cap1",
        "nvidia-caps-imex-channels/channel0", "gdrdrv",
    ):  # fmt: skip
        host.write(f"dev/{name}", mode=0o400)

    inventory = look(host)

    (device,) = inventory.devices
    assert device.name == "all"
    assert sorted(node.path for node in device.nodes) == [
        "/dev/nvidia-caps-imex-channels/channel0",
        "/dev/nvidia-caps/nvidia-cap1",
        "/dev/nvidia-modeset",
        "/dev/nvidia-uvm",
        "/dev/nvidia-uvm-tools",
        "/dev/nvidia0",
        "/dev/nvidia1",
        "/dev/nvidiactl",
    ]
    reasons = {entry.path: entry.reason for entry in inventory.left_out}
    assert reasons[f"{host.base}/dev/nvidia-fs0"] == "mode gds gives it"
    assert reasons[f"{host.base}/dev/nvidia-nvswitch0"] == "mode nvswitch gives it"


def test_files_are_the_drivers_without_graphics_and_nvml_is_not_asked(host: HostTree) -> None:
    host.write("driver/usr/share/glvnd/egl_vendor.d/10_nvidia.json", "{}")
    host.write("driver/usr/bin/nvidia-xconfig", mode=0o755)
    nvml = FakeNvml()

    inventory = look(host, nvml=nvml)

    paths = {file.container_path for file in inventory.files}
    assert f"/{LIB}/libcuda.so.{VERSION}" in paths
    assert "/usr/bin/nvidia-smi" in paths
    assert not [path for path in paths if path.endswith((".json", "nvidia-xconfig"))]
    assert f"{host.driver}/usr/bin/nvidia-xconfig" in {e.path for e in inventory.left_out}
    assert (inventory.driver_version, inventory.cuda_version) == (VERSION, "13.0")
    assert nvml.calls == 0


def test_a_driver_without_nodes_is_an_error(host: HostTree) -> None:
    for path in host.base.glob("dev/nvidia*"):
        path.unlink()

    with pytest.raises(HostError, match="the driver has no node in"):
        look(host)


def test_a_machine_without_a_driver_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "driver").mkdir()

    with pytest.raises(DriverNotFoundError):
        look(HostTree(tmp_path))


def test_sockets_can_be_left_out(host: HostTree) -> None:
    (host.driver / "tmp/nvidia-mps").mkdir(parents=True)
    if (host.driver / "tmp/nvidia-mps").stat().st_uid:
        pytest.skip("needs root: the MPS directory has to be root's")

    assert "/tmp/nvidia-mps" in {file.container_path for file in look(host).files}
    without = look(host, flags=frozenset({discovery_options.NO_IPC}))
    assert "/tmp/nvidia-mps" not in {file.container_path for file in without.files}
