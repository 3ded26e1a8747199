# SPDX-License-Identifier: Apache-2.0
"""NVIDIA GPUs on the PCI bus: their names, their kernel drivers, the host's driver of a vGPU.

Contract: `bound_elsewhere` reads only the sysfs folders of the few kernel drivers that compete
with NVIDIA's, so the number of PCI devices on a node does not matter.

A vGPU has a vendor-specific capability with the signature "VF", followed by records of id, length
and data. Record 0 has version and branch of the host's driver, 10 bytes each. Sources: PCI Local
Bus 3.0, 6.7 for capabilities; NVIDIA's GPU feature discovery for records; the machine's pci.ids,
the list of the PCI ID Project, for names.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from nvct.errors import HostError, OSErrorsAs
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
        for name in procfs.list_directory(f"{roots.sys}/bus/pci/drivers/{driver}"):
            path = f"{roots.sys}/bus/pci/devices/{name}"
            if (bus_id := procfs.canonical_bus_id(name)) and _is_gpu(path):
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
    return [path for path in paths if text_of(f"{path}/vendor") == NVIDIA]


def device_class(roots: Roots, bus_id: str) -> str:
    """Return the class of a PCI device, e.g. 0x030200; "" if it is unknown."""
    return text_of(f"{roots.sys}/bus/pci/devices/{bus_id}/class") if bus_id else ""


def numa_node(roots: Roots, bus_id: str) -> int | None:
    """Return the NUMA node of a PCI device; None if the machine has none, or sysfs lacks it."""
    text = text_of(f"{roots.sys}/bus/pci/devices/{bus_id}/numa_node") if bus_id else ""
    return int(text) if text.isascii() and text.isdigit() else None


def pcie_root(roots: Roots, bus_id: str) -> str:
    """Return the PCIe root of a device, e.g. pci0000:16; "" if sysfs lacks it."""
    link = f"{roots.sys}/bus/pci/devices/{bus_id}"
    parts = os.path.realpath(link).split("/") if bus_id and os.path.islink(link) else []
    return next((part for part in parts if PCIE_ROOT.fullmatch(part)), "")


def _is_gpu(path: str) -> bool:
    is_nvidia = text_of(f"{path}/vendor") == NVIDIA
    return is_nvidia and text_of(f"{path}/class").startswith(DISPLAY)


def text_of(path: str) -> str:
    """Return a file of sysfs in lower case, "" if it is missing or unreadable."""
    return (procfs.read_text(path) or "").strip().lower()


SIZE = 256  # bytes of the configuration space; without CAP_SYS_ADMIN only 64 are readable
FIRST_CAPABILITY = 0x34  # the byte with the position of the first capability
VENDOR_SPECIFIC = 0x09
SIGNATURE = b"VF"
FIRST_RECORD = 5  # where the records begin in the capability
HOST_DRIVER = 0
TEXT_SIZE = 10


class HostDriver(NamedTuple):
    """The driver of the host of a vGPU."""

    version: str
    branch: str


def host_drivers(roots: Roots) -> list[HostDriver]:
    """Return the host's driver of each vGPU of this machine; empty if there is no vGPU.

    HostError if the configuration space of a device is not readable.
    """
    drivers = []
    for path in nvidia_devices(roots):
        with OSErrorsAs(HostError, f"{path}/config"), open(f"{path}/config", "rb") as file:
            space = file.read(SIZE)
        if len(space) < SIZE:
            raise HostError(
                f"{path}/config: only {len(space)} bytes are readable, vGPUs are not recognized",
                hint="this needs CAP_SYS_ADMIN",
            )
        driver = host_driver(space)
        if driver is not None:
            drivers.append(driver)
    return drivers


def host_driver(space: bytes) -> HostDriver | None:
    """Return the host's driver from a configuration space; None if the device is not a vGPU."""
    capability = _vgpu_capability(space)
    position = FIRST_RECORD
    while capability and position + 1 < len(capability):
        number, length = capability[position], capability[position + 1]
        texts = capability[position + 2 : position + 2 + 2 * TEXT_SIZE]
        if number == HOST_DRIVER:
            return HostDriver(_shown(texts[:TEXT_SIZE]), _shown(texts[TEXT_SIZE:]))
        if not length:
            break
        position += length
    return HostDriver("", "") if capability else None


def _vgpu_capability(space: bytes) -> bytes:
    position, seen = space[FIRST_CAPABILITY], set[int]()
    while position and position + 3 <= len(space) and position not in seen:
        seen.add(position)
        number, following, length = space[position : position + 3]
        capability = space[position : position + length]
        if number == VENDOR_SPECIFIC and capability[3:5] == SIGNATURE:
            return capability
        position = following
    return b""


def _shown(data: bytes) -> str:
    return data.partition(b"\0")[0].decode("ascii", "replace").strip()


FILES = ("usr/share/misc/pci.ids", "usr/share/hwdata/pci.ids", "usr/share/pci.ids")
VENDOR = "10de  "
DEVICE = re.compile(r"\t([0-9a-f]{4})  (.*)")


def names(roots: Roots) -> dict[str, str]:
    """Return the names of NVIDIA's devices by number, e.g. 2330; empty if there is no pci.ids."""
    for root in dict.fromkeys((roots.driver_root.rstrip("/"), "")):
        for path in FILES:
            try:
                with open(f"{root}/{path}", encoding="utf-8", errors="replace") as file:
                    return _of_vendor(file.read())
            except OSError:
                continue
    return {}


def _of_vendor(text: str) -> dict[str, str]:
    _, _, rest = text.partition(f"\n{VENDOR}")
    found: dict[str, str] = {}
    for line in rest.splitlines()[1:]:
        if line and not line.startswith(("\t", "#")):
            break  # the next vendor
        if device := DEVICE.fullmatch(line):
            found[device[1]] = device[2].strip()
    return found
