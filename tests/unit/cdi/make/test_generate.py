# SPDX-License-Identifier: Apache-2.0
"""CDI specs made of inventories."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from nvct.cdi.make.generate import Options, generate
from nvct.cdi.read import schema
from nvct.cdi.read.validate import validate
from nvct.cdi.types import Spec
from nvct.errors import UsageError
from nvct.host.discover import discover
from nvct.host.model import Inventory
from tests.support.host_tree import VERSION, FakeNvml, HostTree, nvml_gpu


@pytest.fixture
def host(tmp_path: Path) -> HostTree:
    return HostTree(tmp_path).module().user_space()


def look(host: HostTree, nvml: FakeNvml | None = None) -> Inventory:
    return discover(host.roots, host.options(nvml))


def device(spec: Spec, name: str) -> dict[str, Any]:
    (edits,) = [d["containerEdits"] for d in spec["devices"] if d["name"] == name]
    return cast("dict[str, Any]", edits)


def names(spec: Spec) -> list[str]:
    return [d["name"] for d in spec["devices"]]


def node_paths(edits: dict[str, Any]) -> list[str]:
    return [node["path"] for node in edits["deviceNodes"]]


def test_host_path_of_a_node_is_named_only_where_it_differs(host: HostTree) -> None:
    inventory = look(host.gpu(0))
    moved = tuple(replace(node, host_path=node.path) for node in inventory.control_nodes)

    assert "hostPath" in generate(inventory)["containerEdits"]["deviceNodes"][0]
    spec = generate(replace(inventory, control_nodes=moved))
    assert not [node for node in spec["containerEdits"]["deviceNodes"] if "hostPath" in node]


def test_numbers_of_nodes_are_written_on_demand_alone(host: HostTree) -> None:
    inventory = look(host.gpu(0))

    (plain,) = [
        n for n in device(generate(inventory), "0")["deviceNodes"] if "nvidia0" in n["path"]
    ]
    spec = generate(inventory, Options(node_numbers=True))
    (exact,) = [n for n in device(spec, "0")["deviceNodes"] if "nvidia0" in n["path"]]

    assert "major" not in plain
    assert (exact["type"], exact["major"], exact["minor"]) == ("c", 195, 0)


def with_group(inventory: Inventory, mode: int, gid: int) -> Inventory:
    gpu = inventory.gpus[0]
    drm = tuple(replace(node, mode=mode, gid=gid) for node in gpu.drm_nodes)
    return replace(inventory, gpus=(replace(gpu, drm_nodes=drm), *inventory.gpus[1:]))


@pytest.mark.parametrize(
    ("mode", "gid", "gids"),
    [(0o660, 44, [44]), (0o666, 44, None), (0o664, 44, [44]), (0o660, 0, None)],
)
def test_group_of_a_node_that_is_not_everybodys_is_added(
    host: HostTree, mode: int, gid: int, gids: list[int] | None
) -> None:
    inventory = with_group(look(host.gpu(0)), mode, gid)

    spec = generate(inventory)

    assert device(spec, "0").get("additionalGids") == gids
    assert spec["cdiVersion"] == ("0.7.0" if gids else "0.5.0")
    without = generate(inventory, Options(gid_groups=False))
    assert "additionalGids" not in device(without, "0")


def test_mig_devices_take_the_place_of_their_parent(host: HostTree) -> None:
    host.gpu(0).gpu(1).instance(1, 7, 0, (66, 67)).instance(1, 9, 0, (84, 85))
    nvml = FakeNvml(gpus=(nvml_gpu(0), nvml_gpu(1, instances=((7, 0), (9, 0)))))

    spec = generate(look(host, nvml), Options(device_name_strategies=("index",)))

    assert names(spec) == ["0", "1:0", "1:1", "all"]
    assert node_paths(device(spec, "1:0")) == [
        "/dev/nvidia1",
        "/dev/nvidia-caps/nvidia-cap66",
        "/dev/nvidia-caps/nvidia-cap67",
    ]
    assert "hooks" not in device(spec, "1:0")


def test_mig_device_with_graphics_has_the_parents_drm_nodes(host: HostTree) -> None:
    host.gpu(0).instance(0, 7, 0, (66, 67))
    nvml = FakeNvml(gpus=(nvml_gpu(0, instances=((7, 0),), profile="1g.24gb+gfx"),))

    spec = generate(look(host, nvml))

    assert "/dev/dri/renderD128" in node_paths(device(spec, "0:0"))
    assert "/dev/dri/by-path/pci-0000:18:00.0-render" in node_paths(device(spec, "0:0"))


def test_by_path_names_are_nodes_of_the_same_device_and_take_no_hook(host: HostTree) -> None:
    host.gpu(0).gpu(1)
    for kind in ("card", "render"):
        (host.base / f"dev/dri/by-path/pci-0000:2a:00.0-{kind}").unlink()

    spec = generate(look(host))

    nodes = {node["path"]: node for node in device(spec, "0")["deviceNodes"]}
    for kind, name in (("card", "card1"), ("render", "renderD128")):
        named = nodes[f"/dev/dri/by-path/pci-0000:18:00.0-{kind}"]
        assert named["hostPath"].endswith(f"/dev/dri/{name}")
    assert not [path for path in node_paths(device(spec, "1")) if "by-path" in path]
    assert len([path for path in node_paths(device(spec, "all")) if "by-path" in path]) == 2
    assert not [entry for entry in spec["devices"] if "hooks" in entry["containerEdits"]]


def test_device_ids_limit_the_devices_and_the_device_all(host: HostTree) -> None:
    inventory = look(host.gpu(0).gpu(1))

    spec = generate(inventory, Options(device_ids=("1", "1")))

    assert names(spec) == ["1", host.uuid(1), "all"]
    assert "/dev/nvidia0" not in node_paths(device(spec, "all"))
    without_all = generate(inventory, Options(device_ids=("0",), all_device=False))
    assert names(without_all) == ["0", host.uuid(0)]


def test_none_is_a_device_that_adds_nothing(host: HostTree) -> None:
    spec = generate(look(host), Options(device_ids=("none",)))

    assert spec["devices"] == [
        {"name": "none", "containerEdits": {"env": ["NVIDIA_VISIBLE_DEVICES=void"]}}
    ]
    assert spec["containerEdits"]["mounts"]


@pytest.mark.parametrize(
    ("disabled", "gone"),
    [
        ("create-symlinks", "--link"),
        ("update-ldcache", "--folder"),
        ("enable-cuda-compat", f"--host-driver-version={VERSION}"),
        ("disable-device-node-modification", "--mask-params"),
        ("update-application-profile", "--application-profile"),
    ],
)
def test_apply_does_not_execute_a_disabled_hook(host: HostTree, disabled: str, gone: str) -> None:
    inventory = look(host.gpu(0))

    before = generate(inventory)["containerEdits"]["hooks"][0]["args"]
    after = generate(inventory, Options(disabled_hooks=(disabled,)))["containerEdits"]["hooks"]

    assert gone in before
    assert gone not in after[0]["args"]


def test_all_hooks_can_be_off_and_one_of_them_on(host: HostTree) -> None:
    inventory = look(host.gpu(0))

    assert '"hooks"' not in json.dumps(generate(inventory, Options(disabled_hooks=("all",))))
    spec = generate(
        inventory,
        Options(disabled_hooks=("all",), enabled_hooks=("disable-device-node-modification",)),
    )
    assert spec["containerEdits"]["hooks"][0]["args"] == [
        "nvidia-cdi-hook",
        "apply",
        "--mask-params",
    ]


def test_chmod_hook_is_made_only_when_it_is_asked_for(host: HostTree) -> None:
    spec = generate(look(host.gpu(0)), Options(enabled_hooks=("chmod",)))

    assert device(spec, "0")["hooks"][-1]["args"] == [
        "nvidia-cdi-hook", "chmod", "--mode", "755",
        "--path", "/dev/dri", "--path", "/dev/dri/by-path",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (Options(disabled_hooks=("x",)), "is unknown"),
        (Options(enabled_hooks=("all",)), "is unknown"),
        (Options(vendor="x"), "."),
        (Options(cls="9x"), "."),
        (Options(vendor="a b"), "."),
    ],
)
def test_unknown_hooks_and_kinds_that_cdi_refuses_are_usage_errors(
    host: HostTree, options: Options, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        generate(look(host.gpu(0)), options)


def test_kind_is_vendor_and_class_and_hook_of_nvidia_ctk_is_a_subcommand(host: HostTree) -> None:
    options = Options(vendor="example.com", cls="test.gpu", hook_path="/opt/bin/nvidia-ctk")

    spec = generate(look(host.gpu(0)), options)

    assert spec["kind"] == "example.com/test.gpu"
    assert spec["cdiVersion"] == "0.6.0"
    assert spec["containerEdits"]["hooks"][0]["args"][:3] == ["nvidia-ctk", "hook", "apply"]


@pytest.mark.parametrize(
    "options",
    [
        Options(),
        Options(node_numbers=True, enabled_hooks=("chmod",)),
        Options(device_ids=("none",)),
        Options(disabled_hooks=("all",), vendor="example.com", cls="test.gpu"),
    ],
)
def test_engines_and_the_schema_accept_the_spec(host: HostTree, options: Options) -> None:
    host.gpu(0).gpu(1).instance(1, 7, 0, (66, 67))
    nvml = FakeNvml(gpus=(nvml_gpu(0), nvml_gpu(1, instances=((7, 0),))))

    spec = generate(with_group(look(host, nvml), 0o660, 44), options)

    schema.check(spec, source="generated")
    assert validate(spec, source="generated") == spec


def test_host_root_of_the_spec_can_be_moved(host: HostTree) -> None:
    spec = generate(
        look(host.gpu(0)), Options(host_roots=((str(host.driver), "/run/nvidia/driver"),))
    )

    mounts = {m["containerPath"]: m["hostPath"] for m in spec["containerEdits"]["mounts"]}
    assert mounts["/usr/bin/nvidia-smi"] == "/run/nvidia/driver/usr/bin/nvidia-smi"
