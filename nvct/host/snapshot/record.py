# SPDX-License-Identifier: Apache-2.0
"""Records the parts of a host that discovery can see: `nvct snapshot`.

Contract: this module only reads, opens no device and follows no link out of the driver root. It
records the paths in the lists below, and paths that discovery finds. The lists do not depend on
discovery, because a host on which discovery fails is the most important to record.
"""

from __future__ import annotations

import glob
import os
import posix
import stat
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

from nvct.errors import NvctError
from nvct.host import modes, procfs
from nvct.host.discovery_options import DiscoveryOptions
from nvct.host.model import Inventory
from nvct.host.roots import Roots, below, join
from nvct.host.snapshot import record_driver
from nvct.host.snapshot.document import FORMAT, TEXT_LIMIT, Snapshot
from nvct.version import __version__

# Text files below proc, unchanged; folders with all their contents.
PROC = (
    "devices", "driver/nvidia", "driver/nvidia-caps", "driver/nvidia-caps-imex-channels",
    "driver/nvidia-nvswitch", "driver/nvidia-nvlink", "driver/nvidia-fs",
    "device-tree/compatible", "device-tree/model", "sys/kernel/osrelease",
    "sys/kernel/random/boot_id",
)  # fmt: skip
# These files are for writing, and some block a reader.
NOT_READ = ("suspend", "suspend_depth", "registry.bin")
MODULES = (
    "nvidia", "nvidia_uvm", "nvidia_modeset", "nvidia_drm", "nvidia_fs", "nvidia_peermem",
    "gdrdrv", "nouveau", "nova_core", "nvgpu", "mlx5_core",
)  # fmt: skip
MODULE_TEXTS = ("version", "srcversion", "initstate", "refcnt")
SYS = (
    "module/firmware_class/parameters/path", "devices/soc0/family", "devices/soc0/machine",
    "devices/soc0/soc_id", "firmware/devicetree/base/compatible",
)  # fmt: skip
ETC = (
    "nv_tegra_release", "os-release", "nvidia-container-runtime/host-files-for-container.d",
)  # fmt: skip
PCI_TEXTS = (
    "vendor", "device", "class", "subsystem_vendor", "subsystem_device", "numa_node", "uevent",
    "enable", "revision",
)  # fmt: skip
PCI_VENDORS = ("0x10de",)
# Below dev: prefixes of the names that any mode uses. A name with a final / is a folder of nodes.
DEV = (
    "nvidia", "nvidia-caps/", "nvidia-caps-imex-channels/", "dri/", "gdrdrv", "dxg", "nvmap",
    "nvhost", "nvgpu/", "nvsciipc", "infiniband/", "tegra", "fb0",
)  # fmt: skip


def record(roots: Roots, options: DiscoveryOptions, *, ask_nvml: bool = True) -> Snapshot:
    """Return a host's snapshot, not redacted yet; HostError if the driver root does not exist."""
    snapshot = Snapshot()
    machine = options.machine or posix.uname().machine
    snapshot.about = {
        "format": FORMAT, "generator": f"nvct {__version__}", "machine": machine,
        "driver": procfs.driver_version(roots), "os": _os_name(roots),
        "roots": {name: getattr(roots, name) for name in _ROOTS}, "dev": roots.dev,
        "search": [*options.search_paths], "config_search": [*options.config_search_paths],
    }  # fmt: skip
    inventory = _discover(snapshot, roots, options)
    _kernel(snapshot, roots)
    _nodes(snapshot, roots, options, inventory)
    library_dirs = [below(roots.driver_root, path) for path in options.search_paths]
    config_dirs = [below(roots.driver_root, path) for path in options.config_search_paths]
    library = record_driver.record(
        snapshot, roots, inventory, library_dirs=library_dirs, shares=config_dirs
    )
    record_driver.sockets(snapshot, "run", roots.run)
    if ask_nvml:
        snapshot.nvml = _nvml(options, library)
    return snapshot


_ROOTS = ("driver_root", "dev_root", "proc", "sys", "etc", "run")


def _discover(snapshot: Snapshot, roots: Roots, options: DiscoveryOptions) -> Inventory | None:
    """Return discovery's inventory, None if it fails; record the mode or the error."""
    try:
        inventory = modes.discover("auto", roots, replace(options, nvml=None))
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        if isinstance(error, NvctError):
            why = f"{error.message} [{error.code}]"
        snapshot.about["discovery"] = why
        return None
    snapshot.about["discovery"] = f"mode {inventory.mode}"
    return inventory


def _os_name(roots: Roots) -> str:
    text = procfs.read_text(f"{roots.etc}/os-release") or ""
    variables = dict(line.partition("=")[::2] for line in text.splitlines())
    return " ".join(variables.get(key, "").strip('"') for key in ("ID", "VERSION_ID")).strip()


def _kernel(snapshot: Snapshot, roots: Roots) -> None:
    for part, folder, names in (
        ("proc", roots.proc, PROC), ("sys", roots.sys, SYS), ("etc", roots.etc, ETC)
    ):  # fmt: skip
        for name in names:
            _texts(snapshot, f"{part}/{name}", f"{folder}/{name}")
    for module in MODULES:
        if os.path.isdir(f"{roots.sys}/module/{module}"):
            snapshot.folders[f"sys/module/{module}"] = [0o755, 0, 0]
        for name in MODULE_TEXTS:
            inside = f"module/{module}/{name}"
            _texts(snapshot, f"sys/{inside}", f"{roots.sys}/{inside}")
    devices = f"{roots.sys}/bus/pci/devices"
    driven = procfs.list_directory(f"{roots.proc}/driver/nvidia/gpus")
    for bus in procfs.list_directory(devices):
        vendor = (procfs.read_text(f"{devices}/{bus}/vendor") or "").strip()
        if vendor in PCI_VENDORS or bus in driven:
            _pci_device(snapshot, f"sys/bus/pci/devices/{bus}", f"{devices}/{bus}")


def _pci_device(snapshot: Snapshot, key: str, path: str) -> None:
    for name in PCI_TEXTS:
        _texts(snapshot, f"{key}/{name}", f"{path}/{name}")
    for name in ("driver", "iommu_group"):
        if os.path.islink(f"{path}/{name}"):
            target = os.path.basename(os.readlink(f"{path}/{name}"))
            parent = "bus/pci/drivers" if name == "driver" else "kernel/iommu_groups"
            up = "../" * key.count("/")
            snapshot.links[f"{key}/{name}"] = f"{up}{parent}/{target}"
            group_key = f"sys/{parent}/{target}/{os.path.basename(path)}"
            snapshot.folders[group_key] = [0o755, 0, 0]
    for name in procfs.list_directory(f"{path}/drm"):
        if os.path.isdir(f"{path}/drm/{name}"):
            snapshot.folders[f"{key}/drm/{name}"] = [0o755, 0, 0]
            _texts(snapshot, f"{key}/drm/{name}/dev", f"{path}/drm/{name}/dev")


def _texts(snapshot: Snapshot, key: str, path: str) -> None:
    """Record the text of a file, or of all files in a folder; links are not followed."""
    try:
        status = os.lstat(path)
    except OSError:
        return
    if stat.S_ISDIR(status.st_mode):
        snapshot.folders[key] = [0o755, 0, 0]
        for name in procfs.list_directory(path):
            _texts(snapshot, f"{key}/{name}", f"{path}/{name}")
        return
    if not stat.S_ISREG(status.st_mode) or key.endswith(NOT_READ):
        return
    text = procfs.read_text(path)
    if text is not None and len(text) < TEXT_LIMIT:
        snapshot.texts[key] = text


def _nodes(
    snapshot: Snapshot, roots: Roots, options: DiscoveryOptions, inventory: Inventory | None
) -> None:
    paths = [*_listed(roots.dev), *_of_csv(snapshot, roots)]
    paths += [node.host_path for node in inventory.every_node()] if inventory else ()
    for path in dict.fromkeys(paths):
        key = below(roots.dev_root or "/", path).lstrip("/")
        if not key.startswith("dev/"):
            continue
        if os.path.islink(path):
            _link(snapshot, key, path, roots.dev)
            continue
        try:
            numbers = options.stat_node(path)
        except OSError as error:
            snapshot.about.setdefault("unreadable", {})[key] = error.strerror
            continue
        if numbers is not None:
            snapshot.nodes[key] = list(numbers)
        elif os.path.isfile(path):
            snapshot.files[key] = [stat.S_IMODE(os.lstat(path).st_mode), 0]


def _link(snapshot: Snapshot, key: str, path: str, dev: str) -> None:
    """Record a link that stays in /dev, such as in dri/by-path; other links can reveal secrets."""
    target = os.path.normpath(os.path.join(os.path.dirname(path), os.readlink(path)))
    if target.startswith(f"{dev}/"):
        key_folder = os.path.dirname(key)
        snapshot.links[key] = os.path.relpath(below(os.path.dirname(dev), target)[1:], key_folder)


def _listed(dev: str) -> Iterator[str]:
    for name in DEV:
        folder = f"{dev}/{os.path.dirname(name)}".rstrip("/")
        prefix = os.path.basename(name)
        for entry in procfs.list_directory(folder):
            path = f"{folder}/{entry}"
            if not entry.startswith(prefix):
                continue
            if os.path.isdir(path) and not os.path.islink(path):
                if not prefix:  # dri/by-path and nvgpu/igpu0; deeper there is nothing
                    yield from (f"{path}/{inner}" for inner in procfs.list_directory(path))
            else:
                yield path


def _of_csv(snapshot: Snapshot, roots: Roots) -> Iterator[str]:
    """Yield the device nodes in a Tegra's CSV lists, with patterns expanded."""
    for key, text in snapshot.texts.items():
        if key.endswith(".csv"):
            for kind, path in record_driver.CSV_LINE.findall(text):
                if kind == "dev" and path.startswith("/dev/"):
                    yield from sorted(glob.glob(join(roots.dev_root or "/", path)))


def _nvml(options: DiscoveryOptions, library: str | None) -> dict[str, Any]:
    source = options.nvml_of(library)
    if source is None:
        return {}
    try:
        return {"report": asdict(source.report())}
    except NvctError as error:
        return {"error": [error.message, error.hint]}
