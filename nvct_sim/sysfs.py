# SPDX-License-Identifier: Apache-2.0
"""Write the simulated node's part of /sys: PCI devices with drivers, and kernel modules."""

from __future__ import annotations

import os
from pathlib import Path

from nvct_sim import kernelfs, pci
from nvct_sim.kernelfs import put
from nvct_sim.state import Record, State

SWITCH_SUBSYSTEM_DEVICE = 0x1796
FIRST_IOMMU_GROUP = 512  # above the groups of a host
MODULE_SIZE = 0x10000
# Module -> modules that use it, as `lsmod` shows them.
MODULES = {
    "nvidia": ("nvidia_uvm", "nvidia_modeset"),
    "nvidia_modeset": ("nvidia_drm",),
    "nvidia_drm": (),
    "nvidia_uvm": (),
}
SIZES = {
    "nvidia": 104071168,
    "nvidia_modeset": 1724416,
    "nvidia_drm": 131072,
    "nvidia_uvm": 2084864,
}
EXTRA_MODULES = {
    "nvidia_fs": ("nvidia_fs",),
    "gdrdrv": ("gdrdrv",),
    "uverbs": ("ib_uverbs", "rdma_ucm"),
}


def write(sys: Path, state: State) -> None:
    """Write everything below sys."""
    for bus, device in pci_devices(state).items():
        _write_device(sys, bus, device, _numa_nodes(state))
    drm = int(state.find("major")[0].fields["drm"])
    for number, gpu in enumerate(state.find("gpu")):
        folder = sys / "bus/pci/devices" / kernelfs.proc_bus(gpu.fields["bus"])
        for name, minor in kernelfs.drm_nodes(number).items():
            put(folder / "drm" / name / "dev", f"{drm}:{minor}\n")
    for name in modules(state):
        _write_module(sys / "module" / name, name, state)


def pci_devices(state: State) -> dict[str, pci.Device]:
    """Return the node's PCI devices by address: GPUs, then NVSwitches."""
    gpus = state.find("gpu")
    devices = {
        kernelfs.proc_bus(gpu.fields["bus"]): _gpu(gpu, number) for number, gpu in enumerate(gpus)
    }
    for number, switch in enumerate(switches(state)):
        bus, device = switch.fields["bus"], int(switch.fields["device"], 16)
        devices[kernelfs.proc_bus(bus)] = pci.Device(
            device=device >> 16, kind=0x068000, subsystem_vendor=pci.NVIDIA,
            subsystem_device=SWITCH_SUBSYSTEM_DEVICE, driver="nvidia-nvswitch",
            number=len(gpus) + number, irq=kernelfs.FIRST_IRQ + len(gpus) + number,
            numa=int(switch.fields.get("numa", 0)), bar1=0, generation=4,
        )  # fmt: skip
    return devices


def switches(state: State) -> list[Record]:
    """Return the records of the node's NVSwitches."""
    return state.find("switch")


def _gpu(gpu: Record, number: int) -> pci.Device:
    f = gpu.fields
    device, subsystem = int(f["device"], 16), int(f["subsystem"], 16)
    arch = int(f["arch"])
    return pci.Device(
        device=device >> 16, subsystem_vendor=subsystem & 0xFFFF, subsystem_device=subsystem >> 16,
        kind=int(f.get("class", "0x030200"), 16), driver="nvidia", number=number,
        irq=kernelfs.FIRST_IRQ + int(f["minor"]), numa=numa(gpu), bar1=int(f.get("bar1", 256)),
        generation=5 if arch >= 9 else 4 if arch >= 7 else 3,
        vgpu=(f["vgpuhost"], f["vgpubranch"]) if "vgpuhost" in f else None,
    )  # fmt: skip


def _numa_nodes(state: State) -> int:
    return 1 + max((numa(gpu) for gpu in state.find("gpu")), default=0)


def numa(gpu: Record) -> int:
    """Return the NUMA node of a GPU: the first part of its path."""
    return int(gpu.fields.get("path", "0").partition("/")[0])


def _write_device(sys: Path, bus: str, device: pci.Device, nodes: int) -> None:
    folder = sys / "bus/pci/devices" / bus
    processors = pci.cpu_list(pci.near(device.numa, nodes, os.cpu_count() or 1))
    for name, text in pci.attributes(device, bus, processors).items():
        put(folder / name, f"{text}\n", 0o644 if name in ("enable", "driver_override") else 0o444)
    put(folder / "resource", pci.resource(device))
    put(folder / "config", pci.config(device), 0o644)
    driver = sys / "bus/pci/drivers" / device.driver
    group = sys / f"kernel/iommu_groups/{FIRST_IOMMU_GROUP + device.number}"
    for name in ("bind", "unbind", "new_id", "remove_id"):
        put(driver / name, "", 0o200)
    put(group / "type", "DMA-FQ\n")
    _link(folder / "driver", f"../../drivers/{device.driver}")
    _link(folder / "iommu_group", f"../../../../kernel/iommu_groups/{group.name}")
    _link(folder / "subsystem", "../../../pci")
    _link(driver / bus, f"../../devices/{bus}")
    _link(driver / "module", f"../../../../module/{device.driver.partition('-')[0]}")
    _link(group / "devices" / bus, f"../../../../bus/pci/devices/{bus}")


def _link(path: Path, target: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.is_symlink():
        path.symlink_to(target)


def modules(state: State) -> dict[str, tuple[str, ...]]:
    """Return the node's modules: module -> modules that use it."""
    kinds = kernelfs.extras(state)
    extra = {n: () for kind, names in EXTRA_MODULES.items() if kinds.get(kind) for n in names}
    users = {"nvidia": MODULES["nvidia"] + tuple(n for n in extra if n.startswith("nvidia"))}
    return {**MODULES, **users, **extra}


def _references(name: str, state: State) -> int:
    """Return a module's reference count: its users, and the persistence daemon once per GPU."""
    return len(modules(state)[name]) + (len(state.find("gpu")) if name == "nvidia" else 0)


def _write_module(folder: Path, name: str, state: State) -> None:
    is_nvidia = name.startswith("nvidia")
    values = {
        "initstate": "live", "refcnt": str(_references(name, state)), "initsize": "0",
        "coresize": str(SIZES.get(name, MODULE_SIZE)), "taint": "OE" if is_nvidia else "",
    }  # fmt: skip
    if is_nvidia:
        values["version"] = state.driver
    for key, text in values.items():
        put(folder / key, f"{text}\n")
    (folder / "holders").mkdir(parents=True, exist_ok=True)
    for user in modules(state)[name]:
        _link(folder / "holders" / user, f"../../{user}")
    if name in ("nvidia", "nvidia_drm", "nvidia_uvm"):
        (folder / "parameters").mkdir(exist_ok=True)
    if name == "nvidia_drm":
        put(folder / "parameters/modeset", "Y\n")


def proc_modules(host: str, state: State) -> str:
    """Return /proc/modules: the node's lines, and the host's lines of other modules."""
    lines = []
    for name, users in modules(state).items():
        uses = f"{_references(name, state)} {''.join(f'{user},' for user in users) or '-'}"
        taint = " (OE)" if name.startswith("nvidia") else ""
        lines.append(
            f"{name} {SIZES.get(name, MODULE_SIZE)} {uses} Live 0x0000000000000000{taint}"
        )
    names = modules(state)
    host_lines = [line for line in host.splitlines() if line.split(" ", 1)[0] not in names]
    return "".join(f"{line}\n" for line in (*lines, *host_lines))
