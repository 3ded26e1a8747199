# SPDX-License-Identifier: Apache-2.0
"""Specs of modes whose devices are no GPUs of procfs or NVML."""

from dataclasses import replace
from typing import Any, cast

import pytest

from nvct.cdi.make.generate import Options, generate
from nvct.cdi.make.injection import RULES
from nvct.cdi.read import schema
from nvct.cdi.read.validate import validate
from nvct.cdi.types import Spec
from nvct.errors import HostError, UnknownDeviceError
from nvct.host import feature_modes, modes
from nvct.host.model import DeviceNode, DriverFile, Inventory, Link, Mode, NamedDevice


def node(path: str, *, gid: int = 0) -> DeviceNode:
    return DeviceNode(
        path=path, host_path=path, major=1, minor=2, mode=0o660, uid=0, gid=gid, reason="a test"
    )


def library(path: str, *links: Link) -> DriverFile:
    return DriverFile(
        host_path=path, container_path=path, reason="a test", kind="library", links=links
    )


def inventory(mode: Mode, *devices: NamedDevice, **more: Any) -> Inventory:
    return Inventory(driver_version=more.pop("version", ""), mode=mode, devices=devices, **more)


def named(name: str, uuid: str = "") -> NamedDevice:
    return NamedDevice(name=name, uuid=uuid, nodes=(node(f"/dev/{name}"),))


def names(spec: Spec) -> list[str]:
    return [device["name"] for device in spec["devices"]]


def device(spec: Spec, name: str) -> dict[str, Any]:
    (edits,) = [d["containerEdits"] for d in spec["devices"] if d["name"] == name]
    return cast("dict[str, Any]", edits)


def args(edits: Any) -> list[str]:
    (hook,) = edits["hooks"]
    return cast("list[str]", hook["args"])


def test_every_mode_has_rules_and_a_finder() -> None:
    special = {"nvml", "csv", "wsl", "management", "imex"}
    assert set(RULES) == set(modes.MODES) == special | set(feature_modes.FEATURE_MODES)


def test_modes_that_give_no_gpus_have_kinds_of_their_own() -> None:
    kinds = {mode: f"{rules.vendor}/{rules.cls}" for mode, rules in RULES.items()}

    assert kinds == {
        "nvml": "nvidia.com/gpu",
        "csv": "nvidia.com/gpu",
        "wsl": "nvidia.com/gpu",
        "management": "management.nvidia.com/gpu",
        "gdrcopy": "nvidia.com/gdrcopy",
        "gds": "nvidia.com/gds",
        "mofed": "nvidia.com/mofed",
        "nvswitch": "nvidia.com/nvswitch",
        "imex": "nvidia.com/imex-channel",
    }


def test_kind_that_is_asked_for_wins() -> None:
    spec = generate(inventory("gds", named("all")), Options(cls="gpu"))

    assert spec["kind"] == "nvidia.com/gpu"


@pytest.mark.parametrize("mode", ["gdrcopy", "gds", "mofed", "nvswitch"])
def test_gated_mode_has_one_device_and_no_hook(mode: Mode) -> None:
    spec = generate(inventory(mode, named("all")))

    assert names(spec) == ["all"]
    assert spec["containerEdits"] == {"env": ["NVIDIA_VISIBLE_DEVICES=void"]}
    validate(spec, source="test")
    schema.check(spec, source="test")


def test_each_channel_is_a_device_and_all_are_one_more() -> None:
    spec = generate(inventory("imex", named("0"), named("2")))

    assert names(spec) == ["0", "2", "all"]
    assert [n["path"] for n in device(spec, "all")["deviceNodes"]] == ["/dev/0", "/dev/2"]


INTEGRATED = named("0", "bare-uuid")
NAMES: dict[str, tuple[Inventory, dict[str, tuple[str, ...]], list[str]]] = {
    "integrated GPU": (
        inventory("csv", INTEGRATED),
        {"device_name_strategies": ("index", "uuid")},
        ["0", "all", "bare-uuid"],
    ),
    "its uuid": (
        inventory("csv", INTEGRATED), {"device_name_strategies": ("uuid",)}, ["all", "bare-uuid"],
    ),
    "its type": (
        inventory("csv", INTEGRATED), {"device_name_strategies": ("type-index",)}, ["all", "gpu0"],
    ),
    "without a uuid": (
        inventory("csv", named("0")), {"device_name_strategies": ("uuid",)}, ["0", "all"],
    ),
    "no GPUs to count": (
        inventory("imex", named("0")), {"device_name_strategies": ("type-index",)}, ["0", "all"],
    ),
    "a channel by number": (
        inventory("imex", named("0"), named("2")), {"device_ids": ("2",)}, ["2", "all"],
    ),
    "a channel by its node's name": (
        inventory("imex", named("0"), named("2")), {"device_ids": ("channel2",)}, ["2", "all"],
    ),
    "none": (inventory("gds", named("all")), {"device_ids": ("none",)}, ["none"]),
}  # fmt: skip


@pytest.mark.parametrize(("discovered", "options", "expected"), NAMES.values(), ids=NAMES.keys())
def test_devices_have_the_names_that_are_asked_for(
    discovered: Inventory, options: dict[str, Any], expected: list[str]
) -> None:
    assert names(generate(discovered, Options(**options))) == expected


@pytest.mark.parametrize("word", ["1", "channel", "", "GPU-1"])
def test_device_that_is_not_there_is_named_with_those_that_are(word: str) -> None:
    with pytest.raises(UnknownDeviceError, match=f"no device '{word}' in mode imex") as caught:
        generate(inventory("imex", named("0"), named("2")), Options(device_ids=(word,)))
    assert caught.value.hint == "there are: 0, 2"


def test_the_files_of_one_device_are_in_no_other() -> None:
    link = Link(target="libx.so.1.2", path="/usr/lib/x/libx.so.1")
    mine = NamedDevice(
        name="0",
        nodes=(node("/dev/a", gid=44),),
        files=(library("/usr/lib/x/libx.so.1.2", link),),
        links=(Link(target="b", path="/usr/lib/a"),),
    )

    edits = device(generate(inventory("csv", mine, named("1"))), "0")

    assert [mount["containerPath"] for mount in edits["mounts"]] == ["/usr/lib/x/libx.so.1.2"]
    assert args(edits)[1:] == [
        "apply",
        "--link", "b::/usr/lib/a",
        "--link", "libx.so.1.2::/usr/lib/x/libx.so.1",
        "--folder", "/usr/lib/x",
    ]  # fmt: skip
    assert edits["additionalGids"] == [44]


def test_links_of_every_container_are_in_the_common_hook() -> None:
    link = Link(target="b", path="/usr/lib/a")

    spec = generate(inventory("csv", named("0"), links=(link,)))

    assert args(spec["containerEdits"]) == ["nvidia-cdi-hook", "apply", "--link", "b::/usr/lib/a"]


def test_device_that_adds_nothing_to_the_others_is_a_device_all_the_same() -> None:
    spec = generate(inventory("csv", NamedDevice(name="0"), named("1")))

    assert device(spec, "0") == {"env": ["NVIDIA_VISIBLE_DEVICES=void"]}
    validate(spec, source="test")


def test_tegra_compares_cuda_versions_and_may_look_elsewhere() -> None:
    discovered = inventory("csv", named("0"), cuda_version="12.6", version="540.4.0")

    assert args(generate(discovered)["containerEdits"])[2:] == ["--host-cuda-version=12.6"]
    orin = replace(discovered, compat_container_root="/usr/local/cuda/compat_orin")
    assert args(generate(orin)["containerEdits"])[2:] == [
        "--host-cuda-version=12.6",
        "--cuda-compat-container-root=/usr/local/cuda/compat_orin",
    ]
    assert "hooks" not in generate(replace(discovered, cuda_version=""))["containerEdits"]


CUDA = library("/usr/lib/libcuda.so.580.1")


@pytest.mark.parametrize(
    ("mode", "words", "env"),
    [
        ("management", ["--host-driver-version=580.1", "--folder", "/usr/lib"], True),
        ("csv", ["--folder", "/usr/lib"], False),
        ("wsl", ["--folder", "/usr/lib"], False),
    ],
)
def test_hooks_and_environment_are_those_of_the_mode(
    mode: Mode, words: list[str], env: object
) -> None:
    discovered = inventory(mode, named("all"), version="580.1", files=(CUDA,))

    common = generate(discovered)["containerEdits"]

    assert args(common)[2:] == words
    assert ("NVIDIA_CTK_LIBCUDA_DIR=/usr/lib" in common["env"]) is env


def test_management_container_makes_nodes_whatever_is_enabled() -> None:
    discovered = inventory("management", named("all"), version="580.1")
    options = Options(enabled_hooks=("disable-device-node-modification",))

    assert args(generate(discovered, options)["containerEdits"])[2:] == [
        "--host-driver-version=580.1"
    ]


def test_mode_without_devices_has_no_spec() -> None:
    with pytest.raises(HostError, match="mode csv found no device"):
        generate(inventory("csv"))
