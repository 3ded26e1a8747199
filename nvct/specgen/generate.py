# SPDX-License-Identifier: Apache-2.0
"""Write an inventory as a CDI spec.

Contract: the same inventory and options give the same document; everything that has no order of
its own is sorted. No I/O. The majors and minors of nodes are left to whoever injects them, because
most are given out anew at each boot; `node_numbers` writes them.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import cast

from nvct import paths
from nvct.cdi.names import check_class, check_vendor
from nvct.cdi.versions import minimum_version
from nvct.errors import HostError, RequestError, UsageError
from nvct.host import libraries
from nvct.specgen import hooks, naming, transform

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any, TypeAlias

    from nvct.cdi.types import Spec
    from nvct.host.model import DeviceNode, DriverFile, Gpu, Inventory
    from nvct.specgen.naming import Selected

    Json: TypeAlias = dict[str, Any]

FILE_OPTIONS = ("ro", "nosuid", "nodev", "rbind", "rprivate")
SOCKET_OPTIONS = ("nosuid", "nodev", "rbind", "rprivate", "noexec")
VOID_ENV = "NVIDIA_VISIBLE_DEVICES=void"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a spec is to look.

    Attributes:
        device_ids: what gets a device: indices, UUIDs, "all" or "none".
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

    vendor: str = "nvidia.com"
    cls: str = "gpu"
    device_name_strategies: Sequence[str] = ("index", "uuid")
    device_ids: Sequence[str] = ("all",)
    all_device: bool = True
    hook_path: str = paths.HOOK_PATH
    disabled_hooks: Sequence[str] = ()
    enabled_hooks: Sequence[str] = ()
    node_numbers: bool = False
    gid_groups: bool = True
    host_roots: Sequence[tuple[str, str]] = ()


def generate(inventory: Inventory, options: Options | None = None) -> Spec:
    """Return the CDI spec of a machine.

    Raises:
        UsageError: an option has a value that does not exist.
        UnknownDeviceError: a device id names nothing.
        HostError: there is no device to give to a container.
    """
    options = options or Options()
    _check_kind(options)
    strategies = naming.check_strategies(options.device_name_strategies)
    wanted = hooks.enabled_names(options.disabled_hooks, options.enabled_hooks)
    common = _common_edits(inventory, options, wanted)
    devices = _devices(inventory, options, strategies, wanted)
    spec: Json = {
        "cdiVersion": "",
        "kind": f"{options.vendor}/{options.cls}",
        "devices": [
            {"name": name, "containerEdits": transform.tidy(edits, common)}
            for name, edits in sorted(devices.items())
        ],
        "containerEdits": transform.tidy(common, {}),
    }
    for source, target in options.host_roots:
        spec = transform.move_host_root(spec, source, target)
    made = cast("Spec", spec)  # edits are plain dicts until here: they are moved and compared
    made["cdiVersion"] = minimum_version(made)
    return made


def _check_kind(options: Options) -> None:
    try:
        check_vendor(options.vendor)
        check_class(options.cls)
    except RequestError as error:
        raise UsageError(error.message, hint=error.hint) from error


def _devices(
    inventory: Inventory, options: Options, strategies: Sequence[str], wanted: frozenset[str]
) -> dict[str, Json]:
    if "none" in options.device_ids:
        # A device needs an edit, and this one changes nothing: the common edits have it too.
        return {"none": {"env": [VOID_ENV]}}
    selected = naming.select(inventory, options.device_ids)
    if not selected:
        raise _no_device(inventory)
    devices = {
        name: _device_edits([pair], options, wanted)
        for pair in selected
        for name in naming.names(*pair, strategies)
    }
    if options.all_device:
        devices["all"] = _device_edits(selected, options, wanted)
    return devices


def _device_edits(pairs: Sequence[Selected], options: Options, wanted: frozenset[str]) -> Json:
    """Return the edits of some devices.

    The links of /dev/dri/by-path are device nodes of the same number here: a link would take a
    hook process for each device (0.1 ms against 10).
    """
    nodes: list[DeviceNode] = []
    for gpu, mig in pairs:
        nodes += [gpu.node] if gpu.node else []
        if mig is not None:
            nodes += mig.nodes
        if mig is None or mig.has_graphics:
            nodes += gpu.drm_nodes
            nodes += _by_path_nodes(gpu)
    directories = sorted({os.path.dirname(node.path) for node in nodes} - {"/dev"})
    entry = hooks.chmod_hook(options.hook_path, wanted, directories)
    return _edits(options, nodes, hook_entries=[entry] if entry else [])


def _by_path_nodes(gpu: Gpu) -> list[DeviceNode]:
    """Return the DRM nodes of a GPU again, under the names that its links have."""
    named = {os.path.basename(node.path): node for node in gpu.drm_nodes}
    pairs = [(link.path, named.get(os.path.basename(link.target))) for link in gpu.by_path]
    return [replace(node, path=path) for path, node in pairs if node]


def _common_edits(inventory: Inventory, options: Options, wanted: frozenset[str]) -> Json:
    files = inventory.files
    links = sorted(
        {link for file in files for link in file.links}, key=lambda link: (link.path, link.target)
    )
    folders = sorted({os.path.dirname(f.container_path) for f in files if f.kind == "library"})
    entry = hooks.apply_hook(options.hook_path, wanted, links, folders, inventory.driver_version)
    env = [VOID_ENV]
    if dirs := libraries.libcuda_directories(files):
        env.insert(0, f"NVIDIA_CTK_LIBCUDA_DIR={':'.join(dirs)}")
    return _edits(
        options,
        inventory.control_nodes,
        env=env,
        mounts=[_mount(file) for file in files],
        hook_entries=[entry] if entry else [],
    )


def _edits(
    options: Options,
    nodes: Iterable[DeviceNode],
    *,
    env: Sequence[str] = (),
    mounts: Sequence[Json] = (),
    hook_entries: Sequence[Json] = (),
) -> Json:
    nodes = list(nodes)
    groups = {n.gid for n in nodes if n.gid and n.mode & 0o006 != 0o006}
    edits = {
        "env": list(env),
        "deviceNodes": [_node(node, options) for node in nodes],
        "mounts": list(mounts),
        "hooks": list(hook_entries),
        "additionalGids": sorted(groups) if options.gid_groups else [],
    }
    return {key: value for key, value in edits.items() if value}


def _node(node: DeviceNode, options: Options) -> Json:
    entry: Json = {"path": node.path}
    if node.host_path != node.path:
        entry["hostPath"] = node.host_path
    if options.node_numbers:
        entry.update({"type": "c", "major": node.major, "minor": node.minor})
    if node.mode & 0o777:
        entry["fileMode"] = node.mode & 0o777
    entry["permissions"] = "rwm"
    if node.gid:
        entry["gid"] = node.gid
    return entry


def _mount(file: DriverFile) -> Json:
    options = SOCKET_OPTIONS if file.kind == "socket" else FILE_OPTIONS
    return {
        "hostPath": file.host_path,
        "containerPath": file.container_path,
        "options": list(options),
    }


def _no_device(inventory: Inventory) -> HostError:
    if not inventory.gpus:
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
