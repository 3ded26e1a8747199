# SPDX-License-Identifier: Apache-2.0
"""Device numbers: those that a container would get, and those that the names in a rule stand for.

Hot; loaded only where a rule of the policy refuses devices. One node may have a name in several
CDI kinds, a GPU in MIG mode has none at all, and a spec can mount a node instead of making one:
what a rule refuses by name is refused by number as well.
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
"""Of /dev/nvidia<minor>; nvidia-modeset and nvidiactl have the last two (nv-linux.h of 580)."""
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
"""What extras' nodes are called in /proc/devices, and the extras' names."""
MIG_EXTRAS = ("config", "monitor")


def nodes_of(edits: Iterable[Edits]) -> Nodes:
    """Return the device nodes that edits bring, made or mounted, with their paths on the host."""
    found: Nodes = {}
    for one in edits:
        for node in one["nodes"]:
            entry: Any = jsontext.parse(node["node"], "a plan")
            path = node.get("host") or node["path"]
            if entry["type"] != "p":
                kind = "b" if entry["type"] == "b" else "c"
                found[kind, entry["major"], entry["minor"]] = path
        for _, text in one["mounts"]:
            mount: Any = jsontext.parse(text, "a plan")
            _add_mounted(found, str(mount.get("source", "")), DEV_DEPTH)
    return {number: path for number, path in found.items() if not _is_control(number, path)}


def _add_mounted(found: Nodes, path: str, depth: int) -> None:
    """Add the node at a path, or those in a folder of nodes."""
    try:
        status = posix.stat(path)
        kind = status.st_mode & S_IFMT
        if kind in (S_IFCHR, S_IFBLK):
            letter = "c" if kind == S_IFCHR else "b"
            found[letter, posix.major(status.st_rdev), posix.minor(status.st_rdev)] = path
        elif kind == S_IFDIR and depth and DEV not in path.split("/"):
            _add_mounted(found, f"{path.rstrip('/')}/{DEV}", depth)  # a driver's root, say
        elif kind == S_IFDIR and depth:
            for name in posix.listdir(path):
                _add_mounted(found, f"{path.rstrip('/')}/{name}", depth - 1)
    except (OSError, ValueError):  # the create tells of a source that is gone
        return


def _is_control(number: Number, path: str) -> bool:
    """Tell whether a node is the driver's own, which every container with a GPU gets."""
    if number[:2] == ("c", NVIDIA_MAJOR):
        return number[2] >= FIRST_CONTROL_MINOR
    return path.rpartition("/")[2] in CONTROL


def is_gpu(number: Number) -> bool:
    """Tell whether a number is that of an NVIDIA GPU."""
    return number[:2] == ("c", NVIDIA_MAJOR) and number[2] < FIRST_CONTROL_MINOR


class Device:
    """A device of a plan.

    Attributes:
        names: its full CDI names.
        kind: of the names.
        plan: in which it is.
        is_all: it stands for all of its kind, and its kind has no other device.
    """

    __slots__ = ("_edits", "_nodes", "_spec", "is_all", "kind", "names", "plan")

    def __init__(self, plan: Plan, name: str) -> None:
        """Keep the device of a name; nothing is parsed yet."""
        self.names = [name]
        self.kind, _, device = name.partition("=")
        self.is_all = device == "all"
        self.plan = plan
        entry = plan["devices"][name]
        self._spec, self._edits = entry["spec"], entry["edits"]
        self._nodes: Nodes | None = None

    @property
    def nodes(self) -> Nodes:
        """Its own nodes; those of its spec where it has none."""
        if self._nodes is None:
            found: Nodes = {}
            own, common = self.plan["edits"][self._edits], self.plan["specs"][self._spec]["edits"]
            for edits in (own, common):
                found = found or nodes_of([edits, *edits.get("parts", {}).values()])
            self._nodes = found
        return self._nodes

    @property
    def gpus(self) -> set[Number]:
        """The numbers of its NVIDIA GPUs."""
        return set(filter(is_gpu, self.nodes))

    @property
    def capabilities(self) -> set[Number]:
        """The numbers by which a MIG device is told from others of its GPU."""
        return {number for number, path in self.nodes.items() if CAPABILITIES in path}

    @property
    def is_mig(self) -> bool:
        """Whether it is a part of a GPU."""
        return not self.is_all and len(self.gpus) == 1 and bool(self.capabilities)


def devices_of(plan: Plan) -> list[Device]:
    """Return the devices of a plan; an "all" is none where its kind has others."""
    found: dict[tuple[str, int, int], Device] = {}
    alls: list[Device] = []
    for name, entry in plan["devices"].items():
        kind, _, device = name.partition("=")
        if device == "all":
            alls.append(Device(plan, name))
            continue
        key = (kind, entry["spec"], entry["edits"])
        if key in found:
            found[key].names.append(name)
        else:
            found[key] = Device(plan, name)
    kinds = {key[0] for key in found}
    return [*found.values(), *(device for device in alls if device.kind not in kinds)]


class Meant:
    """What patterns of names stand for.

    Attributes:
        parts: numbers of which each alone is a device that is meant, or a part of one.
        wholes: sets of numbers, each of which is a device that is meant.
    """

    __slots__ = ("parts", "wholes")

    def __init__(self) -> None:
        """Begin with nothing."""
        self.parts: set[Number] = set()
        self.wholes: list[set[Number]] = []

    def among(self, nodes: Nodes) -> str:
        """Return the path of a node by which a device that is meant would be given, else ""."""
        for number, path in nodes.items():
            if number in self.parts:
                return path
        for whole in self.wholes:
            if whole <= set(nodes):
                return nodes[min(whole)]
        return ""


def meant(plans: Sequence[Plan], own_kind: str, fits: Callable[[Sequence[str]], bool]) -> Meant:
    """Return what stands behind the names that fit, in any of some plans.

    Args:
        plans: to look in.
        own_kind: the kind of NVIDIA GPUs.
        fits: tells whether a device with these names is meant.
    """
    found = Meant()
    devices = [device for plan in plans for device in devices_of(plan)]
    for device in devices:
        if fits(device.names):
            _add(found, device, devices, own_kind)
        if fits(_parents(device)):
            found.parts |= device.gpus
    kinds = {own_kind, *(d.kind for d in devices if d.kind.endswith(GPU_CLASS))}
    for plan in plans:
        named: dict[tuple[int, int], list[str]] = {}
        for word, (major, minor) in plan.get("parents", {}).items():
            names = [f"{kind}={word}" for kind in kinds]
            known = named.setdefault((major, minor), [])
            known += [name for name in names if name not in plan["devices"]]
        found.parts |= {("c", *pair) for pair, names in named.items() if fits(names)}
    return found


def _parents(device: Device) -> list[str]:
    """Return the names that the GPU of a MIG device would have, as indices are written."""
    found = []
    for name in device.names:
        kind, _, word = name.partition("=")
        if is_mig_index(word.removeprefix("mig")):
            found.append(f"{kind}={word.removeprefix('mig').partition(':')[0]}")
            found.append(f"{kind}=gpu{word.removeprefix('mig').partition(':')[0]}")
    return [name for name in found if name not in device.plan["devices"]]


def _add(found: Meant, device: Device, devices: Sequence[Device], own_kind: str) -> None:
    nodes = set(device.nodes)
    kin = [one for one in devices if one.plan is device.plan and one.kind == device.kind]
    kin.remove(device)
    if device.is_mig:
        shared = {n for other in kin if other.is_mig for n in other.capabilities}
        found.parts |= (device.capabilities - shared) or device.capabilities
    elif device.is_all or len(device.gpus) > 1:
        # Others may have the GPUs that this one is made of; what it alone brings nobody may.
        ordinary = {n for other in devices if other.kind == own_kind for n in other.nodes}
        if nodes - ordinary:
            found.parts |= nodes - ordinary
        elif nodes:
            found.wholes.append(nodes)
    else:
        shared = set.intersection(nodes, *(set(other.nodes) for other in kin)) if kin else set()
        found.parts |= (nodes - (shared - device.gpus)) or nodes


def extras_of(nodes: Nodes, devices: str, minors: str) -> set[str]:
    """Return the names of extras whose nodes are among some.

    Args:
        nodes: those.
        devices: the text of /proc/devices.
        minors: the text of /proc/driver/nvidia-caps/mig-minors.
    """
    drivers = {str(major): name for name, major in parse_proc_devices(devices).items()}
    words = [line.split() for line in minors.splitlines()]
    capabilities = {pair[1]: pair[0] for pair in words if len(pair) == 2 and pair[0] in MIG_EXTRAS}
    found: set[str] = set()
    for kind, major, minor in nodes:
        driver = drivers.get(str(major), "") if kind == "c" else ""
        if driver in OF_EXTRAS:
            found.add(OF_EXTRAS[driver].format(minor))
        elif driver == "nvidia-caps" and str(minor) in capabilities:
            found.add(f"nvidia.com/mig={capabilities[str(minor)]}")
    return found
