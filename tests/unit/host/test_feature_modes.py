# SPDX-License-Identifier: Apache-2.0
"""Modes gdrcopy, gds, mofed, nvswitch and imex."""

from pathlib import Path

import pytest

from nvct import errors
from nvct.errors import HostError
from nvct.host import modes
from nvct.host.discovery_options import DiscoveryOptions
from nvct.host.gpu.nodes import named_nodes
from nvct.host.model import Inventory
from tests.support.host_tree import HostTree

MAJORS = (
    ("195", "nvidia"), ("234", "nvidia-caps-imex-channels"), ("510", "nvidia-nvswitch"),
    ("507", "nvidia-fs"), ("506", "gdrdrv"), ("231", "infiniband_verbs"), ("10", "misc"),
)  # fmt: skip


@pytest.fixture
def host(tmp_path: Path) -> HostTree:
    host = HostTree(tmp_path)
    lines = "".join(f"{major} {name}\n" for major, name in MAJORS)
    host.write("proc/devices", f"Character devices:\n{lines}\nBlock devices:\n  8 sd\n")
    return host


def look(host: HostTree, mode: str) -> Inventory:
    return modes.discover(mode, host.roots, DiscoveryOptions(stat_node=named_nodes(host.roots)))


def nodes(host: HostTree, *names: str) -> HostTree:
    for name in names:
        host.write(f"dev/{name}", mode=0o666)
    return host


def node_numbers(inventory: Inventory) -> dict[str, tuple[int, int]]:
    (device,) = inventory.devices
    assert device.name == "all"
    return {node.path: (node.major, node.minor) for node in device.nodes}


@pytest.mark.parametrize(
    ("mode", "present", "expected"),
    [
        ("gdrcopy", ["gdrdrv"], {"/dev/gdrdrv": (506, 0)}),
        (
            "gds",
            ["nvidia-fs0", "nvidia-fs15", "nvidia-fsx"],
            {"/dev/nvidia-fs0": (507, 0), "/dev/nvidia-fs15": (507, 15)},
        ),
        (
            "mofed",
            [
                "infiniband/uverbs0",
                "infiniband/uverbs11",
                "infiniband/rdma_cm",
                "infiniband/umad0",
            ],
            {
                "/dev/infiniband/uverbs0": (231, 192),
                "/dev/infiniband/uverbs11": (231, 203),
                "/dev/infiniband/rdma_cm": (10, 0),
            },
        ),
        (
            "nvswitch",
            ["nvidia-nvswitchctl", "nvidia-nvswitch0", "nvidia-nvswitch3", "nvidia-nvlink"],
            {
                "/dev/nvidia-nvswitchctl": (510, 255),
                "/dev/nvidia-nvswitch0": (510, 0),
                "/dev/nvidia-nvswitch3": (510, 3),
            },
        ),
    ],
)
def test_a_mode_has_only_its_own_nodes(
    host: HostTree, mode: str, present: list[str], expected: dict[str, tuple[int, int]]
) -> None:
    inventory = look(nodes(host, "nvidia0", *present), mode)

    assert node_numbers(inventory) == expected
    assert inventory.mode == mode
    assert inventory.driver_version == ""
    assert inventory.warnings == ()


@pytest.mark.parametrize(
    ("mode", "modules", "text"),
    [
        (
            "gdrcopy",
            [],
            (
                "mode gdrcopy finds no DEV/gdrdrv: module gdrdrv is not loaded; "
                "install gdrdrv-dkms and load it: modprobe gdrdrv"
            ),
        ),
        (
            "gdrcopy",
            ["gdrdrv"],
            (
                "mode gdrcopy finds no DEV/gdrdrv, though module gdrdrv is loaded; "
                "is there such hardware, and does udev run?"
            ),
        ),
        (
            "gds",
            [],
            (
                "mode gds finds no DEV/nvidia-fs0: module nvidia_fs is not loaded; "
                "install nvidia-fs-dkms and load it: modprobe nvidia-fs"
            ),
        ),
        (
            "mofed",
            [],
            (
                "mode mofed finds no DEV/infiniband/uverbs0: modules ib_uverbs and rdma_ucm are not "
                "loaded; load them: modprobe -a ib_uverbs rdma_ucm, and the card's own driver"
            ),
        ),
        (
            "mofed",
            ["rdma_ucm"],
            (
                "mode mofed finds no DEV/infiniband/uverbs0: module ib_uverbs is not loaded; "
                "load them: modprobe -a ib_uverbs rdma_ucm, and the card's own driver"
            ),
        ),
        (
            "nvswitch",
            ["nvidia"],
            (
                "mode nvswitch finds no DEV/nvidia-nvswitchctl, though module nvidia is loaded; "
                "is this an HGX board, and does nvidia-fabricmanager run?"
            ),
        ),
    ],
)
def test_mode_without_nodes_says_which_module_is_missing(
    host: HostTree, mode: str, modules: list[str], text: str
) -> None:
    for module in modules:
        host.write(f"sys/module/{module}/initstate", "live\n")

    with pytest.raises(HostError) as caught:
        look(host, mode)

    error = caught.value
    shown = f"{error.message}; {error.hint}".replace(f"{host.base}/dev", "DEV")
    assert shown == text
    assert len(errors.line("nvidia-ctk", error)) <= errors.LINE_LIMIT


def test_gds_brings_udev_and_its_configuration_from_the_driver_root(host: HostTree) -> None:
    nodes(host, "nvidia-fs0")
    host.write("driver/run/udev/control")
    host.write("driver/etc/cufile.json", "{}")
    host.write("etc/cufile.json", "{}")

    (device,) = look(host, "gds").devices

    assert [(file.container_path, file.host_path, file.kind) for file in device.files] == [
        ("/run/udev", f"{host.driver}/run/udev", "directory"),
        ("/etc/cufile.json", f"{host.driver}/etc/cufile.json", "config"),
    ]


def test_gds_uses_the_hosts_udev_otherwise_and_notes_a_missing_file(host: HostTree) -> None:
    nodes(host, "nvidia-fs0")
    host.write("run/udev/control")

    inventory = look(host, "gds")

    (device,) = inventory.devices
    assert [file.host_path for file in device.files] == [f"{host.base}/run/udev"]
    assert inventory.notes == (
        f"there is no {host.driver}/etc/cufile.json: configuration of cuFile",
    )


def test_a_missing_node_of_mofed_is_a_warning(host: HostTree) -> None:
    inventory = look(nodes(host, "infiniband/uverbs5"), "mofed")

    assert inventory.warnings == (
        (
            f"{host.base}/dev/infiniband/rdma_cm is no device node: "
            "connections by IP address cannot be made"
        ),
    )


def test_a_file_with_the_name_of_a_node_is_left_out_with_a_reason(host: HostTree) -> None:
    nodes(host, "nvidia-nvswitchctl")
    host.link("dev/nvidia-nvswitch0", "nvidia-nvswitchctl")

    inventory = look(host, "nvswitch")

    assert list(node_numbers(inventory)) == ["/dev/nvidia-nvswitchctl"]
    (omitted,) = inventory.left_out
    assert (omitted.path, omitted.reason) == (
        f"{host.base}/dev/nvidia-nvswitch0",
        "it is no character device",
    )


def test_each_imex_channel_is_a_device_in_the_order_of_its_number(host: HostTree) -> None:
    folder = "nvidia-caps-imex-channels"
    nodes(host, *(f"{folder}/channel{n}" for n in (10, 2, 0)), f"{folder}/other")

    inventory = look(host, "imex")

    assert [device.name for device in inventory.devices] == ["0", "2", "10"]
    assert [(n.path, n.major, n.minor) for d in inventory.devices for n in d.nodes] == [
        (f"/dev/{folder}/channel{n}", 234, n) for n in (0, 2, 10)
    ]


def test_a_machine_without_imex_channels_and_a_driver_without_imex_are_named(
    host: HostTree,
) -> None:
    with pytest.raises(HostError, match=r"no IMEX channel in .*/dev/nvidia-caps-imex-channels$"):
        look(host, "imex")
    host.write("proc/devices", "Character devices:\n195 nvidia\n")
    with pytest.raises(HostError, match=r"no IMEX channel: .*/devices has no nvidia-caps-imex"):
        look(host, "imex")
