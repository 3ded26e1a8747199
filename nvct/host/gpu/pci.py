# SPDX-License-Identifier: Apache-2.0
"""NVIDIA GPUs on the PCI bus, and those that are bound to another kernel driver.

Contract: `bound_elsewhere` reads only the sysfs folders of the few kernel drivers that compete
with NVIDIA's, so the number of PCI devices on a node does not matter.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from nvct.host import procfs
from nvct.host.roots import Roots

NVIDIA = "0x10de"  # pci.ids
DISPLAY = "0x03"  # PCI base class 03h, display controller: VGA and 3D
NATIVE = ("nouveau", "nova_core", "nvidiafb")
HANDED_ON = ("vfio-pci", "pci-stub")  # for virtual machines
PCIE_ROOT = re.compile(r"pci[0-9a-f]{4,}:[0-9a-f]{2}")


class BoundGpu(NamedTuple):
    """A GPU and the kernel driver that it is bound to."""

    bus_id: str
    driver: str
    path: str


def bound_elsewhere(roots: Roots) -> list[BoundGpu]:
    """Return the NVIDIA GPUs that are bound to a driver other than NVIDIA's, by bus id."""
    gpus = []
    for driver in (*NATIVE, *HANDED_ON):
        directory = f"{roots.sys}/bus/pci/drivers/{driver}"
        for name in procfs.list_directory(directory):
            bus_id = procfs.canonical_bus_id(name)
            path = f"{roots.sys}/bus/pci/devices/{name}"
            if bus_id and _is_gpu(path):
                gpus.append(BoundGpu(bus_id, driver, path))
    return sorted(gpus, key=lambda gpu: procfs.bus_key(gpu.bus_id))


def count(roots: Roots) -> int:
    """Return the number of NVIDIA GPUs on the PCI bus, whatever their driver."""
    devices = f"{roots.sys}/bus/pci/devices"
    return sum(_is_gpu(f"{devices}/{name}") for name in procfs.list_directory(devices))


def nvidia_devices(roots: Roots) -> list[str]:
    """Return the sysfs folders of NVIDIA's PCI devices, by bus id."""
    devices = f"{roots.sys}/bus/pci/devices"
    paths = [f"{devices}/{name}" for name in sorted(procfs.list_directory(devices))]
    return [path for path in paths if _text(f"{path}/vendor") == NVIDIA]


def device_class(roots: Roots, bus_id: str) -> str:
    """Return the class of a PCI device, e.g. 0x030200; "" if it is unknown."""
    return _text(f"{roots.sys}/bus/pci/devices/{bus_id}/class") if bus_id else ""


def numa_node(roots: Roots, bus_id: str) -> int | None:
    """Return the NUMA node of a PCI device; None if the machine has none, or it is unknown."""
    text = _text(f"{roots.sys}/bus/pci/devices/{bus_id}/numa_node") if bus_id else ""
    return int(text) if text.isascii() and text.isdigit() else None


def pcie_root(roots: Roots, bus_id: str) -> str:
    """Return the PCIe root of a device, e.g. pci0000:16; "" if sysfs does not tell."""
    link = f"{roots.sys}/bus/pci/devices/{bus_id}"
    parts = os.path.realpath(link).split("/") if bus_id and os.path.islink(link) else []
    return next((part for part in parts if PCIE_ROOT.fullmatch(part)), "")


def _is_gpu(path: str) -> bool:
    is_nvidia = _text(f"{path}/vendor") == NVIDIA
    return is_nvidia and _text(f"{path}/class").startswith(DISPLAY)


def _text(path: str) -> str:
    return (procfs.read_text(path) or "").strip().lower()
