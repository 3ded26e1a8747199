# SPDX-License-Identifier: Apache-2.0
"""Writes the simulated node's part of /sys: PCI devices with drivers, and kernel modules.

The configuration space of a PCI device has the parts that programs parse: identity, base
addresses, the list of capabilities (PCI Local Bus 3.0, 6.7) and that of extended capabilities (PCI
Express Base, 7.6.3). The vendor-specific capability of a vGPU has the signature "VF", then records
of number, length and data. Record 0 has version and branch of the host's driver, 10 bytes each.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from nvct_sim import kernelfs
from nvct_sim.kernelfs import put
from nvct_sim.state import Record, State

NVIDIA = 0x10DE
MiB = 1 << 20
CONFIG_SIZE = 4096
RESOURCES = 13  # six base addresses, the ROM, six of virtual functions
# Command: memory, I/O, bus master, SERR. Status: the device has a list of capabilities.
COMMAND, STATUS = 0x0406 | 0x0001, 0x0010
POWER, MSI, EXPRESS, VENDOR, MSI_X = 0x60, 0x68, 0x78, 0xB4, 0xC8
VGPU_VENDOR = 0xD4  # after the others, because it is longer than VENDOR
VENDOR_LENGTH = 20
VGPU_SIGNATURE = b"VF"
VGPU_TEXT = 10  # bytes of each text in a record
ERRORS, SERIAL = 0x100, 0x148
MEMORY_32, MEMORY_64_PREFETCHABLE, IO, ROM = 0x40200, 0x14220C, 0x40101, 0x46200
SPEEDS = {1: "2.5", 2: "5.0", 3: "8.0", 4: "16.0", 5: "32.0", 6: "64.0"}
FIRST_REGISTERS, FIRST_ROM, FIRST_PORT = 0x8000_0000, 0xF800_0000, 0x2000
FIRST_MEMORY = 0x200_0000_0000


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A PCI device of the simulation."""

    # vendor, device, subsystem_vendor, subsystem_device, kind: PCI ids; kind is the class
    vendor: int = NVIDIA
    device: int
    subsystem_vendor: int
    subsystem_device: int
    kind: int
    driver: str
    number: int
    irq: int  # interrupt, also shown in /proc/driver/nvidia
    numa: int
    bar1: int  # size of the second base address in MiB, 0 for none
    generation: int
    vgpu: tuple[str, str] | None = None  # of a vGPU: version and branch of the host's driver

    def regions(self) -> dict[int, tuple[int, int, int]]:
        """Return the address ranges: index -> (first address, size in bytes, kernel's flags)."""
        n = self.number
        ranges = {0: (FIRST_REGISTERS + n * 16 * MiB, 16 * MiB, MEMORY_32)}
        if self.bar1:
            # Addresses of two devices differ by twice the size; the second half is for range 3.
            first = FIRST_MEMORY + n * 2 * self.bar1 * MiB
            ranges[1] = (first, self.bar1 * MiB, MEMORY_64_PREFETCHABLE)
            ranges[3] = (first + self.bar1 * MiB, 32 * MiB, MEMORY_64_PREFETCHABLE)
        if self.is_vga:
            ranges[5] = (FIRST_PORT + n * 0x100, 128, IO)
            ranges[6] = (FIRST_ROM + n * 0x8_0000, 0x8_0000, ROM)
        return ranges

    @property
    def is_vga(self) -> bool:
        """Whether the device can be the console, as a board with outputs can."""
        return self.kind >> 8 == 0x0300


def config(device: Device) -> bytes:
    """Return the configuration space."""
    space = bytearray(CONFIG_SIZE)
    struct.pack_into(
        "<HHHHBBBBBBBB", space, 0, device.vendor, device.device, COMMAND, STATUS, 0xA1,
        device.kind & 0xFF, device.kind >> 8 & 0xFF, device.kind >> 16, 0, 0, 0, 0,
    )  # fmt: skip
    for index, (first, _, flags) in device.regions().items():
        _base_address(space, index, first, flags)
    struct.pack_into("<HH", space, 0x2C, device.subsystem_vendor, device.subsystem_device)
    space[0x34], space[0x3C], space[0x3D] = POWER, 0xFF, 1  # capabilities; line, pin INTA
    _capabilities(space, device)
    return bytes(space)


def _base_address(space: bytearray, index: int, first: int, flags: int) -> None:
    if flags == ROM:
        struct.pack_into("<I", space, 0x30, first)  # bit 0 is clear: decoding is off
    elif flags == MEMORY_64_PREFETCHABLE:
        struct.pack_into("<Q", space, 0x10 + 4 * index, first | 0xC)
    else:
        struct.pack_into("<I", space, 0x10 + 4 * index, first | (flags == IO))


def _capabilities(space: bytearray, device: Device) -> None:
    """Write both lists; each entry starts with its kind and the offset of the next entry."""
    link = device.generation | 16 << 4  # the width is 16
    vendor_specific = VGPU_VENDOR if device.vgpu else VENDOR
    struct.pack_into("<BBHHH", space, POWER, 0x01, MSI, 0x0003, 0x0008, 0)  # D0 kept at a reset
    struct.pack_into("<BBHQHH", space, MSI, 0x05, EXPRESS, 0x0080, 0, 0, 0)
    struct.pack_into("<BBH", space, EXPRESS, 0x10, vendor_specific, 0x0002)  # version 2, endpoint
    struct.pack_into("<IHH", space, EXPRESS + 4, 0x112C8DE1, 0x2930, 0)
    struct.pack_into("<IHH", space, EXPRESS + 12, link | 0x400, 0, link)
    struct.pack_into("<IHH", space, EXPRESS + 36, 0, 0, 0)
    struct.pack_into("<IH", space, EXPRESS + 44, (1 << device.generation + 1) - 2, link & 0xF)
    vendor = _vgpu(*device.vgpu) if device.vgpu else bytes(VENDOR_LENGTH - 3)
    struct.pack_into(
        f"<BBB{len(vendor)}s", space, vendor_specific, 0x09, MSI_X, 3 + len(vendor), vendor
    )  # fmt: skip
    struct.pack_into("<BBHII", space, MSI_X, 0x11, 0, 0x8005, 0x00B90000, 0x00BA0000)
    struct.pack_into("<I", space, ERRORS, 0x0001 | 2 << 16 | SERIAL << 20)
    struct.pack_into("<IQ", space, SERIAL, 0x0003 | 1 << 16, 0x48B02D0000000000 | device.number)


def _vgpu(version: str, branch: str) -> bytes:
    """Return the data of a vGPU's vendor-specific capability, after the length byte."""
    record = struct.pack(f"{VGPU_TEXT}s{VGPU_TEXT}s", version.encode(), branch.encode())
    return VGPU_SIGNATURE + bytes([0, 2 + len(record)]) + record


def resource(device: Device) -> str:
    """Return the file `resource`: first and last address and flags of each range."""
    regions = device.regions()
    lines = []
    for index in range(RESOURCES):
        first, size, flags = regions.get(index, (0, 1, 0))
        lines.append(f"0x{first:016x} 0x{first + size - 1:016x} 0x{flags:016x}\n")
    return "".join(lines)


def attributes(device: Device, bus: str, processors: str) -> Mapping[str, str]:
    """Return the text of a device's files by name, without line end; processors are like `0-7`."""
    speed = f"{SPEEDS[device.generation]} GT/s PCIe"
    ids = (device.vendor, device.device, device.subsystem_vendor, device.subsystem_device)
    vendor, number, sub_vendor, sub_device = ids
    base, sub, interface = device.kind >> 16, device.kind >> 8 & 0xFF, device.kind & 0xFF
    modalias = (
        f"pci:v{vendor:08X}d{number:08X}sv{sub_vendor:08X}sd{sub_device:08X}"
        f"bc{base:02X}sc{sub:02X}i{interface:02X}"
    )
    uevent = (
        f"DRIVER={device.driver}\nPCI_CLASS={device.kind:X}\nPCI_ID={vendor:04X}:{number:04X}\n"
        f"PCI_SUBSYS_ID={sub_vendor:04X}:{sub_device:04X}\nPCI_SLOT_NAME={bus}\nMODALIAS={modalias}"
    )
    vga = {"boot_vga": "0"} if device.is_vga else {}
    return {
        "vendor": f"0x{vendor:04x}", "device": f"0x{number:04x}", "class": f"0x{device.kind:06x}",
        "subsystem_vendor": f"0x{sub_vendor:04x}", "subsystem_device": f"0x{sub_device:04x}",
        "revision": "0xa1", "irq": str(device.irq), "numa_node": str(device.numa),
        "local_cpulist": processors, "local_cpus": cpu_mask(processors), "enable": "1",
        "max_link_speed": speed, "current_link_speed": speed, "max_link_width": "16",
        "current_link_width": "16", "power_state": "D0", "driver_override": "(null)",
        "dma_mask_bits": "52", "consistent_dma_mask_bits": "52", "msi_bus": "1",
        "modalias": modalias, "uevent": uevent, **vga,
    }  # fmt: skip


def near(numa: int, nodes: int, processors: int) -> range:
    """Return the processors of this machine that belong to a NUMA node of the simulated node.

    This machine may have another number of NUMA nodes, so its processors are divided evenly.
    The NVML library has the same rule (topology.c).
    """
    share = max(1, processors // nodes)
    first = min(numa * share, processors - share)
    return range(first, first + share)


def cpu_list(processors: range) -> str:
    """Return processors in the kernel's list format, such as `0-7`."""
    first, last = processors[0], processors[-1]
    return f"{first}-{last}" if last > first else str(first)


def cpu_mask(processors: str) -> str:
    """Convert a list of processors to the kernel's mask: 32-bit words, the highest first."""
    first, _, last = processors.partition("-")
    bits = sum(1 << n for n in range(int(first), int(last or first) + 1))
    words = f"{bits:x}"
    words = words.zfill(-(-len(words) // 8) * 8)
    return ",".join(words[n : n + 8] for n in range(0, len(words), 8))


SWITCH_SUBSYSTEM_DEVICE = 0x1796
FIRST_IOMMU_GROUP = 512  # above the groups of a host
MODULE_SIZE = 0x10000
# The modules that use each module, as `lsmod` shows them.
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
    numa_nodes = 1 + max((numa(gpu) for gpu in state.find("gpu")), default=0)
    for bus, device in pci_devices(state).items():
        _write_device(sys, bus, device, numa_nodes)
    drm = int(state.find("major")[0].fields["drm"])
    for number, gpu in enumerate(state.find("gpu")):
        folder = sys / "bus/pci/devices" / kernelfs.proc_bus(gpu.fields["bus"])
        for name, minor in kernelfs.drm_nodes(number).items():
            put(folder / "drm" / name / "dev", f"{drm}:{minor}\n")
    for name in modules(state):
        _write_module(sys / "module" / name, name, state)


def pci_devices(state: State) -> dict[str, Device]:
    """Return the node's PCI devices by address: GPUs, then NVSwitches."""
    gpus = state.find("gpu")
    devices = {
        kernelfs.proc_bus(gpu.fields["bus"]): _gpu(gpu, number) for number, gpu in enumerate(gpus)
    }
    for number, switch in enumerate(state.find("switch")):
        bus, device = switch.fields["bus"], int(switch.fields["device"], 16)
        devices[kernelfs.proc_bus(bus)] = Device(
            device=device >> 16, kind=0x068000, subsystem_vendor=NVIDIA,
            subsystem_device=SWITCH_SUBSYSTEM_DEVICE, driver="nvidia-nvswitch",
            number=len(gpus) + number, irq=kernelfs.FIRST_IRQ + len(gpus) + number,
            numa=int(switch.fields.get("numa", 0)), bar1=0, generation=4,
        )  # fmt: skip
    return devices


def _gpu(gpu: Record, number: int) -> Device:
    f = gpu.fields
    device, subsystem = int(f["device"], 16), int(f["subsystem"], 16)
    arch = int(f["arch"])
    return Device(
        device=device >> 16, subsystem_vendor=subsystem & 0xFFFF, subsystem_device=subsystem >> 16,
        kind=int(f.get("class", "0x030200"), 16), driver="nvidia", number=number,
        irq=kernelfs.FIRST_IRQ + int(f["minor"]), numa=numa(gpu), bar1=int(f.get("bar1", 256)),
        generation=5 if arch >= 9 else 4 if arch >= 7 else 3,
        vgpu=(f["vgpuhost"], f["vgpubranch"]) if "vgpuhost" in f else None,
    )  # fmt: skip


def numa(gpu: Record) -> int:
    """Return the NUMA node of a GPU: the first part of its path."""
    return int(gpu.fields.get("path", "0").partition("/")[0])


def _write_device(sys: Path, bus: str, device: Device, nodes: int) -> None:
    folder = sys / "bus/pci/devices" / bus
    processors = cpu_list(near(device.numa, nodes, os.cpu_count() or 1))
    for name, text in attributes(device, bus, processors).items():
        put(folder / name, f"{text}\n", 0o644 if name in ("enable", "driver_override") else 0o444)
    put(folder / "resource", resource(device))
    put(folder / "config", config(device), 0o644)
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
    """Return the node's modules, each with the modules that use it."""
    kinds = kernelfs.extras(state)
    extra = {n: () for kind, names in EXTRA_MODULES.items() if kinds.get(kind) for n in names}
    users = {"nvidia": MODULES["nvidia"] + tuple(n for n in extra if n.startswith("nvidia"))}
    return {**MODULES, **users, **extra}


def _references(name: str, state: State) -> int:
    """Return a module's reference count: its users, for nvidia also the daemon once per GPU."""
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
