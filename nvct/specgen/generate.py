# SPDX-License-Identifier: Apache-2.0
"""Write an inventory as a CDI spec.

Contract: the same inventory and options give the same document; everything that has no order of
its own is sorted. No I/O. The majors and minors of nodes are left to whoever injects them, because
most are given out anew at each boot; `node_numbers` writes them.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import NamedTuple, cast

from nvct import paths
from nvct.cdi.names import check_class, check_vendor
from nvct.cdi.versions import minimum_version
from nvct.errors import HostError, RequestError, UsageError
from nvct.host import libraries, procfs
from nvct.specgen import edits as cdi_edits
from nvct.specgen import hooks, modes, naming, transform

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any, TypeAlias

    from nvct.cdi.types import Spec
    from nvct.host.model import DeviceNode, Gpu, Inventory, NamedDevice
    from nvct.specgen.naming import Selected

    Json: TypeAlias = dict[str, Any]

VOID_ENV = "NVIDIA_VISIBLE_DEVICES=void"
COHERENT_KEY = "gpu.nvidia.com/coherent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a spec is to look.

    Attributes:
        vendor, cls: the spec's kind; the mode's own where they are empty.
        device_ids: what gets a device: indices, UUIDs, names, "all" or "none".
        all_device: whether there is a device "all" that holds the others.
        hook_path: of nvidia-cdi-hook on the host.
        disabled_hooks: names of the single hooks that `apply` is not to do, or "all".
        enabled_hooks: names that win over disabled_hooks; chmod is off unless named here.
        node_numbers: write type, major and minor of device nodes. For engines that cannot look
            at the host's nodes; such a spec is wrong after the next boot.
        gid_groups: give containers the groups of nodes that are not everybody's.
        host_roots: (from, to) pairs that replace roots of host paths, for a spec that is made
            inside a container and used on its host.
    """

    vendor: str = ""
    cls: str = ""
    device_name_strategies: Sequence[str] = ("index", "uuid")
    device_ids: Sequence[str] = ("all",)
    all_device: bool = True
    hook_path: str = paths.HOOK_PATH
    disabled_hooks: Sequence[str] = ()
    enabled_hooks: Sequence[str] = ()
    node_numbers: bool = False
    gid_groups: bool = True
    host_roots: Sequence[tuple[str, str]] = ()


class _Job(NamedTuple):
    """One generation: what was found, how the spec is to look, and which hooks it may have."""

    inventory: Inventory
    options: Options
    strategies: Sequence[str]
    hooks: frozenset[str]


class _Device(NamedTuple):
    """One device under all its names."""

    names: Sequence[str]
    edits: Json
    coherent: bool | None = None


def generate(inventory: Inventory, options: Options | None = None) -> Spec:
    """Return the CDI spec of a machine.

    A GPU whose address space is known has the annotation `COHERENT_KEY`, which `coherent.split`
    takes away again.

    Raises:
        UsageError: an option has a value that does not exist.
        UnknownDeviceError: a device id names nothing.
        HostError: there is no device to give to a container.
    """
    options = options or Options()
    kind = _kind(inventory, options)
    strategies = naming.check_strategies(options.device_name_strategies)
    enabled = hooks.enabled_names(options.disabled_hooks, options.enabled_hooks)
    job = _Job(inventory, options, strategies, enabled & modes.RULES[inventory.mode].hooks)
    common = _common_edits(job)
    entries = [
        _entry(name, edits, device)
        for device in _devices(job)
        for edits in (transform.tidy(device.edits, common),)
        for name in device.names
    ]
    spec: Json = {
        "cdiVersion": "",
        "kind": kind,
        "devices": sorted(entries, key=lambda entry: str(entry["name"])),
        "containerEdits": transform.tidy(common, {}),
    }
    for source, target in options.host_roots:
        spec = transform.move_host_root(spec, source, target)
    made = cast("Spec", spec)  # edits are plain dicts until here: they are moved and compared
    made["cdiVersion"] = minimum_version(made)
    return made


def _kind(inventory: Inventory, options: Options) -> str:
    vendor, cls = modes.kind(inventory.mode, options.vendor, options.cls)
    try:
        check_vendor(vendor)
        check_class(cls)
    except RequestError as error:
        raise UsageError(error.message, hint=error.hint) from error
    return f"{vendor}/{cls}"


def _entry(name: str, edits: Json, device: _Device) -> Json:
    entry: Json = {"name": name, "containerEdits": edits}
    if device.coherent is not None:
        entry["annotations"] = {COHERENT_KEY: str(device.coherent).lower()}
    return entry


def _devices(job: _Job) -> list[_Device]:
    """Return the devices; none of them has a name twice.

    Raises:
        UnknownDeviceError: a device id names nothing.
        HostError: there is no device to give to a container.
    """
    if "none" in job.options.device_ids:
        # A device needs an edit, and this one changes nothing: the common edits have it too.
        return [_Device(["none"], {"env": [VOID_ENV]})]
    found = _gpus(job) if job.inventory.mode == "nvml" else _named(job)
    if job.options.all_device and not any("all" in device.names for device in found):
        found.append(_Device(["all"], merge(device.edits for device in found)))
    return found


def _gpus(job: _Job) -> list[_Device]:
    selected = naming.select(job.inventory, job.options.device_ids)
    if not selected:
        raise _no_device(job.inventory)
    return [
        # As nvidia-container-toolkit: MIG devices are in neither part of the coherent split.
        _Device(naming.names(*pair, job.strategies), _gpu_edits(pair, job), _coherence(pair))
        for pair in selected
    ]


def _coherence(pair: Selected) -> bool | None:
    gpu, mig = pair
    return gpu.coherent if mig is None else None


def _gpu_edits(pair: Selected, job: _Job) -> Json:
    """Return the edits of one device.

    The links of /dev/dri/by-path are device nodes of the same number here: a link would take a
    hook process for each device (0.1 ms against 10).
    """
    gpu, mig = pair
    nodes = [gpu.node] if gpu.node else []
    if mig is not None:
        nodes += mig.nodes
    if mig is None or mig.has_graphics:
        nodes += gpu.drm_nodes
        nodes += _by_path_nodes(gpu)
    return _with_nodes(nodes, job)


def _with_nodes(nodes: Sequence[DeviceNode], job: _Job) -> Json:
    entry = None
    if "chmod" in job.hooks:
        directories = sorted({os.path.dirname(node.path) for node in nodes} - {"/dev"})
        entry = hooks.chmod_hook(job.options.hook_path, job.hooks, directories)
    return cdi_edits.make(
        nodes,
        hooks=[entry] if entry else [],
        node_numbers=job.options.node_numbers,
        gid_groups=job.options.gid_groups,
    )


def _by_path_nodes(gpu: Gpu) -> list[DeviceNode]:
    """Return the DRM nodes of a GPU again, under the names that its links have."""
    named = {os.path.basename(node.path): node for node in gpu.drm_nodes}
    pairs = [(link.path, named.get(os.path.basename(link.target))) for link in gpu.by_path]
    return [replace(node, path=path) for path, node in pairs if node]


def _named(job: _Job) -> list[_Device]:
    selected = naming.select_named(job.inventory, job.options.device_ids)
    if not selected:
        raise HostError(f"mode {job.inventory.mode} found no device to give to a container")
    counts = modes.RULES[job.inventory.mode].has_numbers
    return [
        _Device(naming.names_of(device, job.strategies, counts=counts), _named_edits(device, job))
        for device in selected
    ]


def _named_edits(device: NamedDevice, job: _Job) -> Json:
    edits = _with_nodes(device.nodes, job)
    entry = hooks.device_hook(
        job.options.hook_path,
        job.hooks,
        hooks.links_of(device.files, device.links),
        hooks.folders_of(device.files),
    )
    more = cdi_edits.make(files=device.files, hooks=[entry] if entry else [])
    # CDI refuses a device without any edit.
    return merge([edits, more]) or {"env": [VOID_ENV]}


def _common_edits(job: _Job) -> Json:
    inventory, options = job.inventory, job.options
    entry = hooks.apply_hook(
        options.hook_path,
        job.hooks,
        hooks.links_of(inventory.files, inventory.links),
        hooks.folders_of(inventory.files),
        hooks.compat_args(inventory),
    )
    env = [VOID_ENV]
    dirs = libraries.libcuda_directories(inventory.files)
    if dirs and modes.RULES[inventory.mode].has_libcuda_env:
        env.insert(0, f"NVIDIA_CTK_LIBCUDA_DIR={':'.join(dirs)}")
    return cdi_edits.make(
        inventory.control_nodes,
        inventory.files,
        env=env,
        hooks=[entry] if entry else [],
        node_numbers=options.node_numbers,
        gid_groups=options.gid_groups,
    )


def merge(several: Iterable[Json]) -> Json:
    """Return container edits that do what several do."""
    merged: Json = {}
    for edits in several:
        for key, entries in edits.items():
            merged.setdefault(key, []).extend(entries)
    return merged


def _no_device(inventory: Inventory) -> HostError:
    if not inventory.gpus:
        if any(text.startswith(procfs.NOT_LOADED) for text in inventory.warnings):
            return HostError(
                f"{procfs.NOT_LOADED}: no container can get a GPU",
                hint="modprobe nvidia; where that fails, dmesg tells why",
            )
        return HostError(
            f"driver {inventory.driver_version} shows no GPU that containers could get",
            hint="nvidia-smi -L on the host tells what is wrong",
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
