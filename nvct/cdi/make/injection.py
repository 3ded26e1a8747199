# SPDX-License-Identifier: Apache-2.0
"""The nodes and files that containers get from a machine, by device name.

Contract: no I/O; nodes, files and links are those of the inventory. `generate` writes them as a
CDI spec, `nvct.compile.plans` as nvct's own plan. Each mode without GPUs has a kind of its own, so
that specs of several modes can be in one folder: engines refuse two files that define one device
name. nvidia-container-toolkit v1.20 has these kinds in its library, but its command line overrides
them with nvidia.com/gpu.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from nvct.cdi.make import naming
from nvct.cdi.make.naming import Selected
from nvct.errors import HostError
from nvct.host import procfs
from nvct.host.model import DeviceNode, DriverFile, Gpu, Inventory, Link, Mode


class Injection(NamedTuple):
    """Nodes, files, and links beside those of the files."""

    nodes: tuple[DeviceNode, ...] = ()
    files: tuple[DriverFile, ...] = ()
    links: tuple[Link, ...] = ()


class Device(NamedTuple):
    """A device with all its names; the device "all" has the injections of every device."""

    names: Sequence[str]
    injections: tuple[Injection, ...]
    coherent: bool | None = None


def for_every_container(inventory: Inventory) -> Injection:
    """Return what every container gets."""
    return Injection(inventory.control_nodes, inventory.files, inventory.links)


def devices(
    inventory: Inventory, ids: Sequence[str], strategies: Sequence[str], *, all_device: bool
) -> list[Device]:
    """Return the devices for ids, which can be "all" or "none"; no two have a name in common.

    With `all_device`, a device "all" contains the others. Raises UnknownDeviceError if an id names
    nothing, and HostError if no device can be given to a container.
    """
    if "none" in ids:
        return [Device(["none"], (Injection(),))]
    selector = _gpus if inventory.mode == "nvml" else _named
    selected = selector(inventory, ids, strategies)
    if all_device and not any("all" in device.names for device in selected):
        selected.append(Device(["all"], tuple(part for d in selected for part in d.injections)))
    return selected


def _gpus(inventory: Inventory, ids: Sequence[str], strategies: Sequence[str]) -> list[Device]:
    selected = naming.select(inventory, ids)
    if not selected:
        raise _no_device(inventory)
    return [
        # As nvidia-container-toolkit: MIG devices are in neither part of the coherent split.
        Device(
            naming.names(gpu, mig, strategies),
            (Injection(nodes=tuple(_nodes((gpu, mig)))),),
            gpu.coherent if mig is None else None,
        )
        for gpu, mig in selected
    ]


def _nodes(pair: Selected) -> list[DeviceNode]:
    """Return the nodes of one device.

    The links in /dev/dri/by-path become device nodes of the same number: a link would need a hook
    process for each device (10 ms instead of 0.1).
    """
    gpu, mig = pair
    nodes = [gpu.node] if gpu.node else []
    if mig is not None:
        nodes += mig.nodes
    if mig is None or mig.has_graphics:
        nodes += gpu.drm_nodes
        nodes += _by_path_nodes(gpu)
    return nodes


def _by_path_nodes(gpu: Gpu) -> list[DeviceNode]:
    """Return the DRM nodes of a GPU with the paths of its by-path links."""
    named = {os.path.basename(node.path): node for node in gpu.drm_nodes}
    pairs = [(link.path, named.get(os.path.basename(link.target))) for link in gpu.by_path]
    return [replace(node, path=path) for path, node in pairs if node]


def _named(inventory: Inventory, ids: Sequence[str], strategies: Sequence[str]) -> list[Device]:
    selected = naming.select_named(inventory, ids)
    if not selected:
        raise HostError(f"mode {inventory.mode} found no device to give to a container")
    counts = RULES[inventory.mode].has_numbers
    return [
        Device(
            naming.names_of(device, strategies, counts=counts),
            (Injection(device.nodes, device.files, device.links),),
        )
        for device in selected
    ]


def _no_device(inventory: Inventory) -> HostError:
    if not inventory.gpus:
        if any(text.startswith(procfs.NOT_LOADED) for text in inventory.warnings):
            return HostError(
                f"{procfs.NOT_LOADED}: no container can get a GPU",
                hint="modprobe nvidia; if that fails, dmesg says why",
            )
        return HostError(
            f"driver {inventory.driver_version} shows no GPU that containers could get",
            hint="nvidia-smi -L on the host says what is wrong",
        )
    if all(gpu.mig_enabled for gpu in inventory.gpus):
        return HostError(
            "every GPU is in MIG mode and no MIG device can be given to a container",
            hint="make them with nvidia-smi mig -cgi, or switch MIG mode off",
        )
    return HostError(
        f"none of {len(inventory.gpus)} GPUs has its device node, /dev/nvidia0 and so on",
        hint="nvidia-modprobe -c 0 makes them",
    )


VENDOR = "nvidia.com"
LINKS_AND_CACHE = frozenset({"create-symlinks", "update-ldcache"})
DRIVER_HOOKS = LINKS_AND_CACHE | {"enable-cuda-compat", "chmod"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The properties of a mode's specs."""

    # vendor, cls: the default kind
    vendor: str = VENDOR
    cls: str = "gpu"
    # the hooks that its containers may have; enabling another one has no effect
    hooks: frozenset[str] = frozenset()
    # whether NVIDIA_CTK_LIBCUDA_DIR names the directories of libcuda; only for drivers with
    # libraries in the usual directories
    has_libcuda_env: bool = False
    # whether a device name that is a number is a GPU's index (type-index: gpu0)
    has_numbers: bool = False


# As pkg/nvcdi of nvidia-container-toolkit v1.20: lib.go, options.go, driver-nvml.go, lib-csv.go,
# driver-wsl.go, gated.go. A management container makes device nodes itself, so it needs the
# driver's params unmasked.
RULES: dict[Mode, Rules] = {
    "nvml": Rules(
        hooks=DRIVER_HOOKS | {"disable-device-node-modification", "update-application-profile"},
        has_libcuda_env=True,
        has_numbers=True,
    ),
    "csv": Rules(hooks=DRIVER_HOOKS, has_numbers=True),
    "wsl": Rules(hooks=LINKS_AND_CACHE),
    "management": Rules(vendor="management.nvidia.com", hooks=DRIVER_HOOKS, has_libcuda_env=True),
    "gdrcopy": Rules(cls="gdrcopy"),
    "gds": Rules(cls="gds"),
    "mofed": Rules(cls="mofed"),
    "nvswitch": Rules(cls="nvswitch"),
    "imex": Rules(cls="imex-channel"),
}
