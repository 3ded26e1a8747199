# SPDX-License-Identifier: Apache-2.0
"""The plugin's specifications give the driver's files as the published one of their node does."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nvct.agent.device_plugin import specs
from nvct.agent.device_plugin.settings import VENDOR, Settings
from nvct.agent.device_plugin.spec_files import request_of
from nvct.agent.machine import place
from nvct.agent.machine.discovery import Discovery
from nvct.agent.machine.place import Place
from nvct.agent.nvml.host_verbs import Written
from nvct.container.rootfs.view_links import OF_SPEC
from nvct.host.nvml.model import NvmlReport
from nvct_sim import tree
from tests.support.memory import in_memory
from tests.support.nvml_node import CACHE
from tests.unit.agent import machines

VIEW = {"hostPath": "/var/lib/nvct/farm/580.95.05-abc", "containerPath": OF_SPEC}
SOCKET = {"hostPath": "/run/nvidia-persistenced/socket", "containerPath": "/run/p/socket"}
HOOK = {"hookName": "createContainer", "path": "/usr/bin/nvidia-cdi-hook", "args": ["apply"]}


def publish(folder: Path, driver: str, name: str = "nvidia.json", **common: Any) -> Path:
    """Write a specification as `nvct publish` does in layout farm."""
    edits = {"env": ["A=b"], "mounts": [SOCKET, VIEW], "hooks": [HOOK], **common}
    spec = {
        "cdiVersion": "0.6.0",
        "kind": "nvidia.com/gpu",
        "annotations": {"nvct/driver": driver},
        "devices": [{"name": "0", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}]}}],
        "containerEdits": edits,
    }
    path = folder / name
    path.write_text(json.dumps(spec), encoding="utf-8")
    return path


def test_the_edits_of_a_view_of_the_loaded_driver_are_taken(tmp_path: Path) -> None:
    path = publish(tmp_path, "580.95.05", deviceNodes=[{"path": "/dev/nvidiactl"}])
    found = specs.published(str(tmp_path), "580.95.05")
    assert found.path == str(path)
    assert found.edits == {"env": ["A=b"], "mounts": [SOCKET, VIEW], "hooks": [HOOK]}


def test_a_specification_that_does_not_fit_is_left_out_with_a_reason(tmp_path: Path) -> None:
    def reason() -> str:
        found = specs.published(str(tmp_path), "580.95.05")
        assert (found.path, found.edits) == ("", {})
        return found.reason

    assert reason() == f"{tmp_path} has no file of nvct publish"
    path = publish(tmp_path, "570.1.1")
    assert reason() == f"{path} was made for driver 570.1.1, but 580.95.05 is loaded"
    publish(tmp_path, "580.95.05", mounts=[SOCKET])
    assert reason() == f"{path} gives a mount for each file"
    text = publish(tmp_path, "580.95.05").read_text().replace('"nvct/driver"', '"other/driver"')
    path.write_text(text)
    assert reason() == f"{path} does not say which driver it was made for"
    path.write_text("{")
    assert str(path) in reason()
    path.write_text(publish(tmp_path, "580.95.05").read_text().replace("com/gpu", "com/gds"))
    assert reason() == f"{tmp_path} has no file of nvct publish"


def test_the_signature_changes_with_the_files_of_others_alone(tmp_path: Path) -> None:
    assert place.signature(str(tmp_path / "missing")) == ()
    empty = place.signature(str(tmp_path))
    publish(tmp_path, "580.95.05", f"{VENDOR}-gpu.json")
    assert place.signature(str(tmp_path)) == empty
    publish(tmp_path, "580.95.05")
    first = place.signature(str(tmp_path))
    assert first != empty
    publish(tmp_path, "580.95.050")
    assert place.signature(str(tmp_path)) != first


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Discovery, NvmlReport]]:
    with in_memory(tmp_path_factory.mktemp("nodes")) as nodes:
        node = tree.create("h100", "h100-mig", nodes, native_cache=CACHE)
        with machines.discovery(node) as discovery:
            yield discovery, asyncio.run(_report(discovery))
        tree.destroy(node)


async def _report(discovery: Discovery) -> NvmlReport:
    await discovery.inventory()
    return await discovery.nvml.report()


def written(
    machine: tuple[Discovery, NvmlReport], folder: Path, settings: Settings
) -> tuple[Written, dict[str, Any]]:
    """Return the result of a write, and the specification of GPUs."""
    discovery, report = machine
    place = Place(
        roots=discovery.roots, settings=settings, folder=str(folder), stat_node=discovery.stat_node
    )
    result = specs.write(place, request_of(settings, ()), report)
    return result, json.loads((folder / f"{VENDOR}-gpu.json").read_text(encoding="utf-8"))


def test_the_plugins_specification_mounts_the_nodes_view_and_keeps_its_device_nodes(
    machine: tuple[Discovery, NvmlReport], tmp_path: Path
) -> None:
    settings = Settings(device_list_strategy=("cdi-cri",))
    result, classic = written(machine, tmp_path, settings)
    assert result.reason == f"{tmp_path} has no file of nvct publish"
    assert len(classic["containerEdits"]["mounts"]) > 5

    publish(tmp_path, machine[1].driver_version)
    result, farm = written(machine, tmp_path, settings)
    assert result.view == str(tmp_path / "nvidia.json")
    edits = farm["containerEdits"]
    assert [mount["containerPath"] for mount in edits["mounts"]] == ["/run/p/socket", OF_SPEC]
    assert edits["deviceNodes"] == classic["containerEdits"]["deviceNodes"]
    assert edits["env"] == ["A=b"]
    assert [hook["args"] for hook in edits["hooks"]] == [["apply"]]
    assert farm["devices"] == classic["devices"]


def test_a_view_without_hooks_of_its_own_leaves_none_of_the_generated_ones(
    machine: tuple[Discovery, NvmlReport], tmp_path: Path
) -> None:
    path = publish(tmp_path, machine[1].driver_version)
    spec = json.loads(path.read_text())
    del spec["containerEdits"]["hooks"]
    path.write_text(json.dumps(spec))
    assert "hooks" not in written(machine, tmp_path, Settings())[1]["containerEdits"]


def test_settings_that_disable_hooks_leave_the_view_aside(
    machine: tuple[Discovery, NvmlReport], tmp_path: Path
) -> None:
    publish(tmp_path, machine[1].driver_version)
    result, spec = written(machine, tmp_path, Settings(cdi_disable_hooks=("update-ldcache",)))
    assert result.reason == "hooks are disabled in the settings"
    assert len(spec["containerEdits"]["mounts"]) > 5
