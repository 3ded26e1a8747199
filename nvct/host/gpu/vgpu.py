# SPDX-License-Identifier: Apache-2.0
"""The driver of a vGPU's host, from the PCI configuration space; names of NVIDIA's PCI devices.

A vGPU has a vendor-specific capability with the signature "VF", followed by records of id, length
and data. Record 0 has version and branch of the host's driver, 10 bytes each. The layout of a
capability is that of PCI Local Bus 3.0, 6.7; records are as NVIDIA's GPU feature discovery reads
them. The names are those of the
machine's pci.ids, the list of the PCI ID Project.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from nvct.errors import HostError
from nvct.host.gpu import pci
from nvct.host.roots import Roots

SIZE = 256
"""Bytes of the space that has capabilities; without CAP_SYS_ADMIN only 64 are readable."""
FIRST = 0x34
"""Has the position of the first capability."""
VENDOR_SPECIFIC = 0x09
SIGNATURE = b"VF"
RECORDS = 5
"""Where the records begin in the capability."""
HOST_DRIVER = 0
TEXT = 10


class HostDriver(NamedTuple):
    """The driver of a vGPU's host."""

    version: str
    branch: str


def host_drivers(roots: Roots) -> list[HostDriver]:
    """Return the host's driver of each vGPU of this machine; empty if there is no vGPU.

    Raises:
        HostError: the configuration space of a device is not readable.
    """
    drivers = []
    for path in pci.nvidia_devices(roots):
        try:
            with open(f"{path}/config", "rb") as file:
                space = file.read(SIZE)
        except OSError as error:
            raise HostError(f"{path}/config: {error.strerror}") from error
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
    """Return what a device's configuration space says; None if it is no vGPU's."""
    capability = _vgpu_capability(space)
    position = RECORDS
    while capability and position + 1 < len(capability):
        number, length = capability[position], capability[position + 1]
        texts = capability[position + 2 : position + 2 + 2 * TEXT]
        if number == HOST_DRIVER:
            return HostDriver(_text(texts[:TEXT]), _text(texts[TEXT:]))
        if not length:
            break
        position += length
    return HostDriver("", "") if capability else None


def _vgpu_capability(space: bytes) -> bytes:
    position, seen = space[FIRST], set[int]()
    while position and position + 3 <= len(space) and position not in seen:
        seen.add(position)
        number, following, length = space[position : position + 3]
        capability = space[position : position + length]
        if number == VENDOR_SPECIFIC and capability[3:5] == SIGNATURE:
            return capability
        position = following
    return b""


def _text(data: bytes) -> str:
    return data.partition(b"\0")[0].decode("ascii", "replace").strip()


FILES = ("usr/share/misc/pci.ids", "usr/share/hwdata/pci.ids", "usr/share/pci.ids")
VENDOR = "10de  "
DEVICE = re.compile(r"\t([0-9a-f]{4})  (.*)")


def names(roots: Roots) -> dict[str, str]:
    """Return the names by device number, e.g. 2330; empty if the machine has no such list."""
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
        device = DEVICE.fullmatch(line)
        if device:
            found[device[1]] = device[2].strip()
    return found
