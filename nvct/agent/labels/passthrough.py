# SPDX-License-Identifier: Apache-2.0
"""The facts of a node whose GPUs are passed through to virtual machines: from sysfs alone.

The labels are those of NVIDIA's program, with what that does: the memory is that of the 64-bit
windows of the PCI device in bytes, and the driver's version is unknown.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from nvct.agent.labels.facts import Facts, GpuFacts
from nvct.host import procfs
from nvct.host.gpu import pci
from nvct.host.roots import Roots

DRIVER = "vfio-pci"
CLASSES = ("0x030000", "0x030200")
UNKNOWN_NAME = "UNKNOWN_DEVICE"
UNKNOWN_VERSION, NO_CUDA = "unknown.unknown.unknown", "0.0"
NO_COMPUTE = (-1, -1)
BARS = 6
WINDOW_TYPE, WINDOW_64 = 0x06, 0x04
"""Of the flags of a window: PCI's base address register, bits 1 and 2."""


def facts(roots: Roots, names: Mapping[str, str], machine_type_file: str) -> Facts:
    """Return the facts of the GPUs that are bound to vfio-pci; none has a driver's version."""
    gpus = [path for path in pci.nvidia_devices(roots) if _is_passed_through(path)]
    if not gpus:
        return Facts(has_nvidia_device=bool(pci.nvidia_devices(roots)))
    return Facts(
        driver_version=UNKNOWN_VERSION,
        cuda_version=NO_CUDA,
        gpus=tuple(_gpu(path, names) for path in gpus),
        machine=procfs.read_text(machine_type_file) or "",
        has_nvidia_device=True,
    )


def memory_windows(resource: str) -> int:
    """Return the sum of a device's 64-bit windows in bytes, as a power of two; 0 for none.

    Args:
        resource: the text of the file of that name in sysfs.
    """
    total = 0
    for line in resource.splitlines()[:BARS]:
        words = line.split()
        try:
            start, end, flags = (int(word, 16) for word in words)
        except ValueError:
            continue
        if end > start and flags & WINDOW_TYPE == WINDOW_64:
            total += end - start + 1
    return 1 << (total - 1).bit_length() if total else 0


def _is_passed_through(path: str) -> bool:
    driver = os.path.basename(os.path.realpath(f"{path}/driver"))
    is_function = os.path.lexists(f"{path}/physfn")  # of SR-IOV
    return _text(f"{path}/class") in CLASSES and driver == DRIVER and not is_function


def _gpu(path: str, names: Mapping[str, str]) -> GpuFacts:
    number = _text(f"{path}/device").removeprefix("0x")
    return GpuFacts(
        model=names.get(number, UNKNOWN_NAME),
        memory_mib=memory_windows(procfs.read_text(f"{path}/resource") or "") or None,
        compute=NO_COMPUTE,
        pci_class=_text(f"{path}/class"),
    )


def _text(path: str) -> str:
    return (procfs.read_text(path) or "").strip().lower()
