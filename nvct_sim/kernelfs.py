# SPDX-License-Identifier: Apache-2.0
"""Writes a simulated node's parts of /proc and /dev, like those of the kernel and udev.

The content comes from the node's state and goes to the folders ``proc`` and ``dev`` of the tree;
nvct_sim.sysfs writes ``sys``. Device nodes are real if that is possible and requested, else empty
files.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from nvct_sim.state import Record, State

# The real driver's limits; a node with more GPUs has a longer table of capabilities.
MAX_GPUS, MAX_GPU_INSTANCES, MAX_COMPUTE_INSTANCES = 32, 15, 8
CAPS_PER_GPU = MAX_GPU_INSTANCES * (MAX_COMPUTE_INSTANCES + 1)
FIRST_GPU_CAP = 3  # 1 and 2 are the MIG configuration and monitor capabilities
MAJORS = {
    "nvidia": 195,
    "nvidia-modeset": 195,
    "nvidiactl": 195,
    "nvidia-caps": 236,
    "nvidia-caps-imex-channels": 234,
    "nvidia-uvm": 508,
    "drm": 226,
}
# Only on nodes with these extras. On a real host rdma_cm is a misc device: major 10, and a minor
# that may belong to another driver here.
EXTRA_MAJORS = {
    "nvswitch": {"nvidia-nvswitch": 510, "nvidia-nvlink": 509},
    "nvidia_fs": {"nvidia-fs": 507},
    "gdrdrv": {"gdrdrv": 506},
    "uverbs": {"infiniband_verbs": 231, "rdma_cm": 505},
}
# Name, driver, minor and mode.
CONTROL_NODES = (
    ("nvidiactl", "nvidiactl", 255, 0o666),
    ("nvidia-modeset", "nvidia-modeset", 254, 0o666),
    ("nvidia-uvm", "nvidia-uvm", 0, 0o666),
    ("nvidia-uvm-tools", "nvidia-uvm", 1, 0o666),
    ("nvidia-caps/nvidia-cap1", "nvidia-caps", 1, 0o400),
    ("nvidia-caps/nvidia-cap2", "nvidia-caps", 2, 0o444),
)
# Kind of extra, name, driver, and minor of the first node. A name without {} has only one node.
EXTRA_NODES = (
    ("nvswitch", "nvidia-nvswitchctl", "nvidia-nvswitch", 255),
    ("nvswitch", "nvidia-nvlink", "nvidia-nvlink", 0),
    ("nvswitch", "nvidia-nvswitch{}", "nvidia-nvswitch", 0),
    ("imex", "nvidia-caps-imex-channels/channel{}", "nvidia-caps-imex-channels", 0),
    ("nvidia_fs", "nvidia-fs{}", "nvidia-fs", 0),
    ("gdrdrv", "gdrdrv", "gdrdrv", 0),
    ("uverbs", "infiniband/rdma_cm", "rdma_cm", 0),
    ("uverbs", "infiniband/uverbs{}", "infiniband_verbs", 192),  # IB_UVERBS_BASE_MINOR
)
DYNAMIC_MAJORS = (*range(254, 233, -1), *range(511, 383, -1))  # Documentation/devices.txt
FIRST_IRQ = 200
FIRST_CARD, FIRST_RENDER = 1, 128  # card0 is the board's own display controller


def capability_minor(gpu_minor: int, gi: int, ci: int | None = None) -> int:
    """Return the minor of a MIG capability, as /proc/driver/nvidia-caps/mig-minors lists it."""
    minor = FIRST_GPU_CAP + gpu_minor * CAPS_PER_GPU + gi * (MAX_COMPUTE_INSTANCES + 1)
    return minor if ci is None else minor + 1 + ci


def proc_bus(bus: str) -> str:
    """Convert a PCI bus id from NVML's form to the form of procfs and sysfs."""
    domain, _, slot = bus.lower().partition(":")
    return f"{int(domain, 16):04x}:{slot}"


def host_majors(devices: str) -> dict[int, str]:
    """Return the driver names in /proc/devices by major, for character and block devices."""
    fields = (line.split() for line in devices.splitlines())
    return {int(f[0]): f[1] for f in fields if len(f) == 2 and f[0].isdigit()}


def modules_majors(aliases: str) -> dict[int, str]:
    """Return the module names of the char-major aliases in modules.alias, by major.

    Opening a device node with such a major loads that module, an installed real driver.
    """
    modules = {}
    for line in aliases.splitlines():
        fields = line.split()
        if len(fields) == 3 and fields[1].startswith("char-major-"):
            major = fields[1].split("-")[2]
            if major.isdigit():
                modules[int(major)] = fields[2]
    return modules


def usual_majors(extras: Mapping[str, int]) -> dict[str, int]:
    """Return the majors by driver, as on a real node with these extras."""
    kinds = [kind for kind, count in extras.items() if count and kind in EXTRA_MAJORS]
    return {**MAJORS, **{n: major for kind in kinds for n, major in EXTRA_MAJORS[kind].items()}}


def choose_majors(in_use: dict[int, str], usual: Mapping[str, int] = MAJORS) -> dict[str, int]:
    """Return the simulation's majors by driver; no driver of this host has these majors.

    A simulated device node must never reach a real device. So another number is chosen if the real
    module is loaded, or a dynamic major is in use.
    """
    numbers: dict[int, int] = {}
    reserved = set(in_use) | set(usual.values())
    for major in usual.values():
        if major not in numbers:
            number = major
            if major in in_use:
                number = next(m for m in DYNAMIC_MAJORS if m not in reserved)
            numbers[major] = number
            reserved.add(number)
    return {name: numbers[major] for name, major in usual.items()}


@dataclass(frozen=True, slots=True)
class DeviceFile:
    """A device node below dev: its name, numbers, permission bits and group."""

    name: str
    major: int
    minor: int
    mode: int = 0o666
    gid: int = 0


def _majors(state: State) -> dict[str, int]:
    (record,) = state.find("major")
    return {name: int(value) for name, value in record.fields.items()}


def drm_nodes(number: int) -> dict[str, int]:
    """Return the minors of the DRM nodes of the GPU with this NVML index, by name."""
    card, render = FIRST_CARD + number, FIRST_RENDER + number
    return {f"card{card}": card, f"renderD{render}": render}


def device_files(state: State, groups: dict[str, int]) -> Iterator[DeviceFile]:
    """Yield the device nodes that the driver and udev create on this node."""
    major = _majors(state)
    for name, driver, minor, mode in CONTROL_NODES:
        yield DeviceFile(name, major[driver], minor, mode)
    for gpu in state.find("gpu"):
        yield DeviceFile(f"nvidia{gpu.fields['minor']}", major["nvidia"], int(gpu.fields["minor"]))
    for cap in state.find("cap"):
        minor = int(cap.fields["minor"])
        yield DeviceFile(f"nvidia-caps/nvidia-cap{minor}", major["nvidia-caps"], minor, 0o444)
    video, render = groups.get("video", 44), groups.get("render", 105)
    for number in range(len(state.find("gpu"))):
        for (name, minor), group in zip(drm_nodes(number).items(), (video, render), strict=True):
            yield DeviceFile(f"dri/{name}", major["drm"], minor, 0o660, group)
    counts = extras(state)
    for kind, name, driver, first in EXTRA_NODES:
        count = counts.get(kind, 0)
        for number in range(count if "{}" in name else min(count, 1)):
            yield DeviceFile(name.format(number), major[driver], first + number)


def extras(state: State) -> dict[str, int]:
    """Return the counts of this node's devices other than GPUs, by kind."""
    records = state.find("extras")
    return {kind: int(count) for kind, count in records[0].fields.items()} if records else {}


def make_node(path: Path, device: DeviceFile, *, real: bool) -> None:
    """Create a device node, or an empty file instead, unless the path exists."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        return
    if not real:
        path.touch()
        path.chmod(device.mode)
        return
    os.mknod(path, stat.S_IFCHR | device.mode, os.makedev(device.major, device.minor))
    path.chmod(device.mode)  # the umask limits mknod's mode
    os.chown(path, 0, device.gid)


def remedy() -> str:
    """Return the hint for a user if the kernel refuses a node, a mount or a namespace."""
    return "see `nvct sim check`" if os.geteuid() == 0 else "run as root"


def node_refusal(folder: Path) -> OSError | None:
    """Return why no device node of the driver can be made in a folder, None if one can.

    Containers allow device nodes of a few drivers only, e.g. /dev/null's.
    """
    probe = folder / ".probe"
    try:
        os.mknod(probe, stat.S_IFCHR | 0o600, os.makedev(MAJORS["nvidia"], 0))
    except OSError as error:
        return error
    probe.unlink()
    return None


def write_dev(dev: Path, state: State, groups: dict[str, int], *, real: bool) -> None:
    """Write the device nodes and links to them; remove nodes of removed MIG devices."""
    names = {device.name for device in device_files(state, groups)}
    caps = dev / "nvidia-caps"
    for path in [*caps.iterdir()] if caps.is_dir() else []:
        if f"nvidia-caps/{path.name}" not in names:
            path.unlink()
    for device in device_files(state, groups):
        make_node(dev / device.name, device, real=real)
    by_path = dev / "dri/by-path"
    by_path.mkdir(parents=True, exist_ok=True)
    for number, gpu in enumerate(state.find("gpu")):
        name = f"pci-{proc_bus(gpu.fields['bus'])}"
        for kind, target in zip(("card", "render"), drm_nodes(number), strict=True):
            link = by_path / f"{name}-{kind}"
            if not link.is_symlink():
                link.symlink_to(f"../{target}")


def put(path: Path, content: str | bytes, mode: int = 0o444) -> None:
    """Write a file of the simulated kernel, as a new file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    path.chmod(mode)


def write_proc(proc: Path, state: State, *, machine: str, host_devices: str) -> None:
    """Write proc/devices and proc/driver of the loaded module."""
    nvidia = proc / "driver/nvidia"
    put(
        nvidia / "version",
        f"NVRM version: NVIDIA UNIX Open Kernel Module for {machine}  {state.driver}  "
        "Release Build  (simulated)\nGCC version:  gcc version 12.2.0\n",
    )
    put(nvidia / "params", _params())
    put(nvidia / "registry", 'Binary: ""\n')
    for gpu in state.find("gpu"):
        bus = proc_bus(gpu.fields["bus"])
        put(nvidia / "gpus" / bus / "information", _information(gpu, bus, state.driver))
        put(nvidia / "gpus" / bus / "registry", 'Binary: ""\n')
    put(proc / "devices", devices(host_devices, _majors(state)))
    minors = [int(gpu.fields["minor"]) for gpu in state.find("gpu")]
    put(proc / "driver/nvidia-caps/mig-minors", mig_minors(max([MAX_GPUS - 1, *minors]) + 1))
    put(proc / "driver/nvidia-caps/sys-minors", "fabric-imex-mgmt 0\n")
    for switch in state.find("switch"):
        folder = proc / "driver/nvidia-nvswitch/devices" / proc_bus(switch.fields["bus"])
        put(folder / "information", "BIOS Version: 96.10.6d.00.01\n")
    if state.find("switch"):
        put(proc / "driver/nvidia-nvswitch/permissions", "DeviceFileMode: 438\n")
    write_capabilities(proc, state)


def write_capabilities(proc: Path, state: State) -> None:
    """Write the capability files of the existing MIG instances, and remove all others."""
    root = proc / "driver/nvidia/capabilities"
    for name, minor, mode in (("config", 1, 0o400), ("monitor", 2, 0o444)):
        put(root / "mig" / name, _access(minor, mode))
    for gpu in state.find("gpu", migcapable=1):
        (root / f"gpu{gpu.fields['minor']}/mig").mkdir(parents=True, exist_ok=True)
    minors = {}
    for cap in state.find("cap"):
        gpu_minor = state.gpu(int(cap.fields["gpu"])).fields["minor"]
        folder = root / f"gpu{gpu_minor}/mig/gi{cap.fields['gi']}"
        if "ci" in cap.fields:
            folder /= f"ci{cap.fields['ci']}"
        minors[folder / "access"] = int(cap.fields["minor"])
    for folder in [*root.glob("gpu*/mig/gi*"), *root.glob("gpu*/mig/gi*/ci*")]:
        if folder / "access" not in minors:
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(folder)
    for path, minor in minors.items():
        put(path, _access(minor, 0o444))


def _access(minor: int, mode: int) -> str:
    return f"DeviceFileMinor: {minor}\nDeviceFileMode: {mode}\nDeviceFileModify: 1\n"


def mig_minors(gpus: int = MAX_GPUS) -> str:
    """Return /proc/driver/nvidia-caps/mig-minors: every possible capability of each GPU."""
    lines = ["config 1", "monitor 2"]
    for gpu in range(gpus):
        for gi in range(MAX_GPU_INSTANCES):
            lines.append(f"gpu{gpu}/gi{gi}/access {capability_minor(gpu, gi)}")
            lines += [
                f"gpu{gpu}/gi{gi}/ci{ci}/access {capability_minor(gpu, gi, ci)}"
                for ci in range(MAX_COMPUTE_INSTANCES)
            ]
    return "\n".join(lines) + "\n"


def _params() -> str:
    # The driver's default for ModifyDeviceFiles is 1. With 1, hooks of other toolkits mount a copy
    # over this file in a container's own /proc, which fails, because /proc does not have the file.
    values = {
        "ResmanDebugLevel": 4294967295, "RmLogonRC": 1, "ModifyDeviceFiles": 0,
        "DeviceFileUID": 0, "DeviceFileGID": 0, "DeviceFileMode": 438,
        "InitializeSystemMemoryAllocations": 1, "UsePageAttributeTable": 4294967295,
        "EnableMSI": 1, "EnablePCIeGen3": 0, "EnableStreamMemOPs": 0, "NvLinkDisable": 0,
        "RmProfilingAdminOnly": 1, "PreserveVideoMemoryAllocations": 0,
        "OpenRmEnableUnsupportedGpus": 1,
    }  # fmt: skip
    return "".join(f"{key}: {value}\n" for key, value in values.items()) + 'RegistryDwords: ""\n'


def _information(gpu: Record, bus: str, driver: str) -> str:
    f = gpu.fields
    return (
        f"Model: \t\t {f['name']}\nIRQ:   \t\t {FIRST_IRQ + int(f['minor'])}\n"
        f"GPU UUID: \t {f['uuid']}\nVideo BIOS: \t {f.get('vbios', '??.??.??.??.??')}\n"
        "Bus Type: \t PCIe\nDMA Size: \t 52 bits\nDMA Mask: \t 0xfffffffffffff\n"
        f"Bus Location: \t {bus}\nDevice Minor: \t {f['minor']}\n"
        f"GPU Firmware: \t {driver}\nGPU Excluded:\t No\n"
    )


def devices(host: str, majors: dict[str, int]) -> str:
    """Return /proc/devices: the host's lines without NVIDIA's, and the simulation's lines."""
    characters, _, blocks = host.partition("\nBlock devices:\n")
    lines = [
        line for line in characters.splitlines() if line[:1] in " 0123456789" and line.strip()
    ]
    simulated = {f"{major:3d} {name}" for name, major in majors.items()}
    # A real module's own lines would show majors that the simulation must not use.
    lines = [line for line in lines if not line.split()[1].startswith("nvidia")]
    if any(line.split()[1] == "drm" for line in lines):
        simulated = {line for line in simulated if not line.endswith(" drm")}
    lines = sorted({*lines, *simulated}, key=lambda line: (int(line.split()[0]), line))
    return "\n".join(["Character devices:", *lines, "", "Block devices:", blocks.rstrip("\n"), ""])
