# SPDX-License-Identifier: Apache-2.0
"""The specification for management containers: made here, of the host's paths."""

from pathlib import Path

import pytest
import yaml

from nvct.errors import HostError
from nvct.host import feature_modes as finder
from nvct.host.discovery_options import DiscoveryOptions
from nvct.installer import steps
from nvct.linux.kernel import KERNEL
from tests.support.host_tree import HostTree
from tests.unit.installer.conftest import Ask


@pytest.fixture
def host(tmp_path: Path) -> HostTree:
    return HostTree(tmp_path / "host").module().user_space().gpu(0)


def test_host_paths_are_the_hosts(host: HostTree, ask: Ask, tmp_path: Path) -> None:
    request = ask(
        driver_root_mount=str(host.driver), dev_root="/", dev_root_mount=str(host.base),
        cdi_spec=f"{tmp_path}/cdi/management.nvidia.com-gpu.yaml",
        cdi_kind="management.nvidia.com/gpu",
    )  # fmt: skip
    path = steps.make_spec(request, host.roots, DiscoveryOptions(stat_node=host.stat_node))
    spec = yaml.safe_load((tmp_path / "cdi/management.nvidia.com-gpu.yaml").read_bytes())
    assert path == request.cdi_spec
    assert spec["kind"] == "management.nvidia.com/gpu"
    assert [device["name"] for device in spec["devices"]] == ["all"]
    nodes = spec["devices"][0]["containerEdits"]["deviceNodes"]
    assert {node.get("hostPath", node["path"]) for node in nodes} == {
        f"/dev/{name}"
        for name in ("nvidia0", "nvidiactl", "nvidia-modeset", "nvidia-uvm", "nvidia-uvm-tools")
    }
    edits = spec["containerEdits"]
    assert {mount["hostPath"].startswith("/run/nvidia/driver/") for mount in edits["mounts"]} == {
        True
    }
    assert not any(mount["containerPath"].startswith("/run/nvidia") for mount in edits["mounts"])
    hooks = {hook["path"] for hook in edits["hooks"]}
    assert hooks == {f"{request.toolkit}/nvidia-cdi-hook"}
    assert str(tmp_path / "host") not in yaml.safe_dump(spec)


def test_roots_that_are_the_same_here_and_there_move_nothing(host: HostTree, ask: Ask) -> None:
    request = ask(
        driver_root=str(host.driver), driver_root_mount=str(host.driver), dev_root=str(host.base),
        dev_root_mount=str(host.base), cdi_kind="vendor.com/card",
    )  # fmt: skip
    inventory = finder.discover_management(host.roots, DiscoveryOptions(stat_node=host.stat_node))
    spec = steps.spec_of(request, host.roots, inventory)
    mounts = spec["containerEdits"]["mounts"]
    assert all(mount["hostPath"].startswith(str(host.driver)) for mount in mounts)


def test_without_a_driver_there_is_nothing_to_make(ask: Ask, tmp_path: Path) -> None:
    empty = HostTree(tmp_path / "empty")
    empty.write("proc/devices", "Character devices:\n  1 mem\n")
    with pytest.raises(HostError, match="has no nvidia"):
        steps.make_control_nodes(empty.roots, KERNEL)
    with pytest.raises(HostError):
        steps.make_spec(
            ask(cdi_kind="vendor.com/card", cdi_spec=f"{tmp_path}/s.yaml"), empty.roots
        )
    assert not (tmp_path / "s.yaml").exists()
