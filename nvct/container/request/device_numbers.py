# SPDX-License-Identifier: Apache-2.0
"""Device numbers that a container would get, and those of the devices that a rule names.

Hot; loaded only if a policy rule refuses devices. A node can have names in several CDI kinds, a
GPU in MIG mode has no name, and a spec can mount a node instead of creating it. For these reasons
a rule that refuses a name also refuses the device numbers behind the name.
"""

from __future__ import annotations

import posix

from nvct.container.request.visible_devices import is_mig_index
from nvct.linux.device_nodes import parse_proc_devices
from nvct.oci import jsontext

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any, TypeAlias

    from nvct.container.plan.model import Edits, Plan

    Number: TypeAlias = tuple[str, int, int]
    Nodes: TypeAlias = dict[Number, str]

S_IFMT, S_IFCHR, S_IFBLK, S_IFDIR = 0o170000, 0o020000, 0o060000, 0o040000
NVIDIA_MAJOR, FIRST_CONTROL_MINOR = 195, 254
"""/dev/nvidia<minor>; nvidia-modeset and nvidiactl have the last two (nv-linux.h of 580)."""
CONTROL = ("nvidia-uvm", "nvidia-uvm-tools")
CAPABILITIES = "/nvidia-caps/"
GPU_CLASS = ".nvidia.com/gpu"
DEV, DEV_DEPTH = "dev", 3
OF_EXTRAS = {
    "nvidia-caps-imex-channels": "nvidia.com/imex-channel={}",
    "nvidia-nvswitch": "nvidia.com/nvswitch=all",
    "nvidia-fs": "nvidia.com/gds=all",
    "gdrdrv": "nvidia.com/gdrcopy=all",
    "infiniband_verbs": "nvidia.com/mofed=all",
    "infiniband_mad": "nvidia.com/mofed=all",
}
"""Driver names of extras in /proc/devices, and the CDI names of the extras."""
MIG_EXTRAS = ("config", "monitor")


def nodes_of(edits: Iterable[Edits]) -> Nodes:
    """Return the device nodes that edits create or mount, with their paths on the host."""
    nodes: Nodes = {}
    for edit in edits:
        for node in edit["nodes"]:
            entry: Any = jsontext.parse(node["node"], "a plan")
            path = node.get("host") or node["path"]
            if entry["type"] != "p":
                kind = "b" if entry["type"] == "b" else "c"
                nodes[kind, entry["major"], entry["minor"]] = path
        for _, text in edit["mounts"]:
            mount: Any = jsontext.parse(text, "a plan")
            add_mounted(nodes, str(mount.get("source", "")), DEV_DEPTH)
    return without_control(nodes)


def without_control(nodes: Nodes) -> Nodes:
    """Return the nodes without the control nodes."""
    return {number: path for number, path in nodes.items() if not _is_control(number, path)}


def add_mounted(nodes: Nodes, path: str, depth: int) -> None:
    """Add the node at a path, or the nodes of a folder."""
    try:
        status = posix.stat(path)
        kind = status.st_mode & S_IFMT
        if kind in (S_IFCHR, S_IFBLK):
            letter = "c" if kind == S_IFCHR else "b"
            nodes[letter, posix.major(status.st_rdev), posix.minor(status.st_rdev)] = path
        elif kind == S_IFDIR and depth and DEV not in path.split("/"):
            add_mounted(nodes, f"{path.rstrip('/')}/{DEV}", depth)  # for example a driver root
        elif kind == S_IFDIR and depth:
            for name in posix.listdir(path):
                add_mounted(nodes, f"{path.rstrip('/')}/{name}", depth - 1)
    except (OSError, ValueError):  # the create reports a missing source
        return


def _is_control(number: Number, path: str) -> bool:
    """Report whether a node is a control node, which every container with a GPU gets."""
    if number[:2] == ("c", NVIDIA_MAJOR):
        return number[2] >= FIRST_CONTROL_MINOR
    return path.rpartition("/")[2] in CONTROL


def is_gpu(number: Number) -> bool:
    """Report whether a device number belongs to an NVIDIA GPU."""
    return number[:2] == ("c", NVIDIA_MAJOR) and number[2] < FIRST_CONTROL_MINOR


class Device:
    """A device of a plan."""

    __slots__ = ("_edits", "_nodes", "_spec", "is_all", "kind", "names", "plan")

    def __init__(self, plan: Plan, name: str) -> None:
        self.names = [name]
        self.kind, _, device = name.partition("=")
        self.is_all = device == "all"  # it is named "all", and its kind has no other device
        self.plan = plan
        entry = plan["devices"][name]
        self._spec, self._edits = entry["spec"], entry["edits"]
        self._nodes: Nodes | None = None

    @property
    def nodes(self) -> Nodes:
        """The nodes of the device; those of the spec if the device has none."""
        if self._nodes is None:
            nodes: Nodes = {}
            common = self.plan["specs"][self._spec]["edits"]
            for edits in (self.plan["edits"][self._edits], common):
                nodes = nodes or nodes_of([edits, *edits.get("parts", {}).values()])
            self._nodes = nodes
        return self._nodes

    @property
    def gpus(self) -> set[Number]:
        """The device numbers of its NVIDIA GPUs."""
        return set(filter(is_gpu, self.nodes))

    @property
    def capabilities(self) -> set[Number]:
        """The device numbers that distinguish a MIG device from others of its GPU."""
        return {number for number, path in self.nodes.items() if CAPABILITIES in path}

    @property
    def is_mig(self) -> bool:
        """Whether it is a MIG device."""
        return not self.is_all and len(self.gpus) == 1 and bool(self.capabilities)


def devices_of(plan: Plan) -> list[Device]:
    """Return the devices of a plan; "all" counts only if its kind has no other device."""
    devices: dict[tuple[str, int, int], Device] = {}
    alls: list[Device] = []
    for name, entry in plan["devices"].items():
        kind, _, device = name.partition("=")
        if device == "all":
            alls.append(Device(plan, name))
            continue
        key = (kind, entry["spec"], entry["edits"])
        if key in devices:
            devices[key].names.append(name)
        else:
            devices[key] = Device(plan, name)
    kinds = {key[0] for key in devices}
    return [*devices.values(), *(device for device in alls if device.kind not in kinds)]


class Selection:
    """The device numbers behind the names that a rule matches."""

    __slots__ = ("numbers", "sets")

    def __init__(self) -> None:
        # device numbers; each alone is a selected device, or a part of one
        self.numbers: set[Number] = set()
        self.sets: list[set[Number]] = []  # sets of device numbers; each set is a selected device

    def among(self, nodes: Nodes) -> str:
        """Return the path of a node that belongs to a selected device, "" if there is none."""
        for number, path in nodes.items():
            if number in self.numbers:
                return path
        for numbers in self.sets:
            if numbers <= set(nodes):
                return nodes[min(numbers)]
        return ""


def select(
    plans: Sequence[Plan], own_kind: str, fits: Callable[[Sequence[str]], bool]
) -> Selection:
    """Return the numbers of all devices whose names match; `own_kind` is nvidia.com/gpu."""
    selection = Selection()
    devices = [device for plan in plans for device in devices_of(plan)]
    for device in devices:
        if fits(device.names):
            _add(selection, device, devices, own_kind)
        if fits(_parents(device)):
            selection.numbers |= device.gpus
    kinds = {own_kind, *(d.kind for d in devices if d.kind.endswith(GPU_CLASS))}
    for plan in plans:
        parent_names: dict[tuple[int, int], list[str]] = {}
        for word, (major, minor) in plan.get("parents", {}).items():
            names = [f"{kind}={word}" for kind in kinds]
            unnamed = parent_names.setdefault((major, minor), [])
            unnamed += [name for name in names if name not in plan["devices"]]
        selection.numbers |= {("c", *pair) for pair, names in parent_names.items() if fits(names)}
    return selection


def _parents(device: Device) -> list[str]:
    """Return the names by index that the GPU of a MIG device would have."""
    parents = []
    for name in device.names:
        kind, _, word = name.partition("=")
        if is_mig_index(word.removeprefix("mig")):
            parents.append(f"{kind}={word.removeprefix('mig').partition(':')[0]}")
            parents.append(f"{kind}=gpu{word.removeprefix('mig').partition(':')[0]}")
    return [name for name in parents if name not in device.plan["devices"]]


def _add(selection: Selection, device: Device, devices: Sequence[Device], own_kind: str) -> None:
    nodes = set(device.nodes)
    siblings = [d for d in devices if d.plan is device.plan and d.kind == device.kind]
    siblings.remove(device)
    if device.is_mig:
        shared = {n for sibling in siblings if sibling.is_mig for n in sibling.capabilities}
        selection.numbers |= (device.capabilities - shared) or device.capabilities
    elif device.is_all or len(device.gpus) > 1:
        # Containers may get the GPUs of this device one by one; its other nodes are refused.
        ordinary = {n for d in devices if d.kind == own_kind for n in d.nodes}
        if nodes - ordinary:
            selection.numbers |= nodes - ordinary
        elif nodes:
            selection.sets.append(nodes)
    else:
        shared = (
            set.intersection(nodes, *(set(sibling.nodes) for sibling in siblings))
            if siblings
            else set()
        )
        selection.numbers |= (nodes - (shared - device.gpus)) or nodes


def extras_of(nodes: Nodes, devices: str, minors: str) -> set[str]:
    """Return the CDI names of extras that own one of the nodes.

    `devices` and `minors` are the texts of /proc/devices and /proc/driver/nvidia-caps/mig-minors.
    """
    drivers = {str(major): name for name, major in parse_proc_devices(devices).items()}
    words = [line.split() for line in minors.splitlines()]
    capabilities = {pair[1]: pair[0] for pair in words if len(pair) == 2 and pair[0] in MIG_EXTRAS}
    extras: set[str] = set()
    for kind, major, minor in nodes:
        driver = drivers.get(str(major), "") if kind == "c" else ""
        if driver in OF_EXTRAS:
            extras.add(OF_EXTRAS[driver].format(minor))
        elif driver == "nvidia-caps" and str(minor) in capabilities:
            extras.add(f"nvidia.com/mig={capabilities[str(minor)]}")
    return extras
