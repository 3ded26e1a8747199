# SPDX-License-Identifier: Apache-2.0
"""A host with nodes of features, and without: modes gdrcopy, gds, mofed, nvswitch and imex."""

from tests.hosts.variants import Lab, features, on


def _nodes(lab: Lab, mode: str, *names: str) -> None:
    lab.mode = mode
    for name in names:
        lab.host.write(f"dev/{name}", mode=0o666)


def _modules(lab: Lab, mode: str, *names: str) -> None:
    lab.mode = mode
    for name in names:
        lab.host.write(f"sys/module/{name}/initstate", "live\n")


@on(features)
def gdrcopy(lab: Lab) -> None:
    _nodes(lab, "gdrcopy", "gdrdrv")


@on(features)
def gds_with_udev_and_configuration_of_the_driver_root(lab: Lab) -> None:
    _nodes(lab, "gds", "nvidia-fs0", "nvidia-fs15", "nvidia-fsx")
    for path in ("driver/run/udev/control", "driver/etc/cufile.json", "etc/cufile.json"):
        lab.host.write(path, "{}")


@on(features)
def gds_with_udev_of_the_host(lab: Lab) -> None:
    _nodes(lab, "gds", "nvidia-fs0")
    lab.host.write("run/udev/control")


@on(features)
def mofed(lab: Lab) -> None:
    folder = "infiniband"
    names = ("uverbs0", "uverbs11", "rdma_cm", "umad0")
    _nodes(lab, "mofed", *(f"{folder}/{name}" for name in names))


@on(features)
def mofed_without_rdma_cm(lab: Lab) -> None:
    _nodes(lab, "mofed", "infiniband/uverbs5")


@on(features)
def nvswitch(lab: Lab) -> None:
    names = ("nvidia-nvswitchctl", "nvidia-nvswitch0", "nvidia-nvswitch3", "nvidia-nvlink")
    _nodes(lab, "nvswitch", *names)
    lab.host.link("dev/nvidia-nvswitch7", "nvidia-nvswitchctl")


@on(features)
def imex(lab: Lab) -> None:
    names = (*(f"channel{number}" for number in (10, 2, 0)), "other")
    _nodes(lab, "imex", *(f"nvidia-caps-imex-channels/{name}" for name in names))


@on(features)
def imex_without_channels(lab: Lab) -> None:
    lab.mode = "imex"


@on(features)
def driver_without_imex(lab: Lab) -> None:
    lab.mode = "imex"
    lab.host.write("proc/devices", "Character devices:\n195 nvidia\n")


@on(features)
def gdrcopy_with_its_module_alone(lab: Lab) -> None:
    _modules(lab, "gdrcopy", "gdrdrv")


@on(features)
def gds_without_its_module(lab: Lab) -> None:
    lab.mode = "gds"


@on(features)
def mofed_without_its_modules(lab: Lab) -> None:
    lab.mode = "mofed"


@on(features)
def mofed_with_one_module(lab: Lab) -> None:
    _modules(lab, "mofed", "rdma_ucm")


@on(features)
def nvswitch_with_its_module_alone(lab: Lab) -> None:
    _modules(lab, "nvswitch", "nvidia")
