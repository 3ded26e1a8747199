# SPDX-License-Identifier: Apache-2.0
"""The devices that config.json lets a container use, and the removal of some of them.

Hot; loaded only where config.toml has rules and says engine-devices = "checked". A device is known
by its number, because a node can have any name and place. If the engine is root, a container can
use each device that a rule of its control group allows, because Docker's containers can make
nodes; else each device whose node it sees. Contract: an entry that nvct does not understand counts
as a device.
"""

from __future__ import annotations

import posix

from nvct.container.host_view import UNIFIED, seen_nodes, way_out
from nvct.container.request import device_numbers
from nvct.container.request.device_numbers import FIRST_CONTROL_MINOR, NVIDIA_MAJOR, is_gpu
from nvct.errors import NotPermittedError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from nvct.container.request.device_numbers import Nodes, Number
    from nvct.container.request.origin import Origin
    from nvct.oci.bundle import Bundle

ANY, ANY_BITS = -1, (1 << 32) - 1
DEVICES, RULES = ("linux", "devices"), ("linux", "resources", "devices")
FILE_NODE = {"c": "c", "u": "c", "b": "b"}
"""Types of device nodes: runtime-spec, config-linux.md."""
LISTENER = ("linux", "seccomp", "listenerPath")
ANNOTATIONS = (
    "org.systemd.property.Device", "org.systemd.property.BPFProgram", "run.oci.seccomp.",
    "org.criu.config",
)  # fmt: skip
"""Prefixes of annotations that have systemd allow devices, crun hand its seccomp descriptor to a
program, or CRIU start a program: docs/systemd.md and docs/checkpoint-restore.md of runc 1.3,
crun(1)."""
GPU_MINORS = range(FIRST_CONTROL_MINOR)
CONTROL_MINORS = (FIRST_CONTROL_MINOR, FIRST_CONTROL_MINOR + 1)
REFUSAL = '{"allow":false,"access":"rwm"}'
NUMBERS = '{"allow":%s,"type":"%s","major":%d%s,"access":"rwm"}'


class Access:
    """The NVIDIA devices that a container can use before anything is injected.

    Attributes:
        nodes: GPUs and extras, with a path for messages; control nodes are left out.
        ways: what gives each of the nodes, in words.
        wide: what gives more than GPUs, in words, such as a rule for every device of the host.
        control: the major of nvidia-uvm, whose nodes are all control nodes.
        capabilities: the numbers that distinguish this host's MIG devices.
        majors: of NVIDIA's drivers.
        is_open: whether there is no rule for all devices.
        shared: what gives NVIDIA devices and others together, in words: mounted folders whose
            nodes no control group refuses, annotations, and ways into other control groups.
    """

    __slots__ = (
        "_exact", "_rules", "capabilities", "control", "is_open", "majors", "nodes", "shared",
        "ways", "wide",
    )  # fmt: skip

    def __init__(self, bundle: Bundle, origin: Origin, drivers: dict[str, int]) -> None:
        ours = {name: m for name, m in drivers.items() if name.startswith(("nvidia", "gdrdrv"))}
        self.majors = {NVIDIA_MAJOR, *ours.values()}
        self.control = {ours["nvidia-uvm"]} if "nvidia-uvm" in ours else set()
        self.nodes: Nodes = {}
        self.ways: Nodes = {}
        self.capabilities: set[Number] = set()
        self.shared = [
            f"the annotation {key}" for key, value in bundle.annotations.items()
            if key.startswith(ANNOTATIONS) or (key.startswith("run.oci.") and ".." in value)
        ]  # fmt: skip
        if bundle.document.value(LISTENER):  # the listener can give descriptors to the container
            self.shared.append(".".join(LISTENER))
        is_rootless = origin.is_rootless()
        if not is_rootless:
            self.shared += _other_groups(bundle, origin.cgroup)
        self.wide = list(self.shared)
        self._rules = [read_rule(rule) for rule in bundle.objects(RULES)]
        self.is_open = not is_rootless and not self._is_closed()
        for node in bundle.objects(("linux", "devices")):
            self._add(number_of(node), str(node.get("path")), f"the node {node.get('path')}")
        if not origin.cgroup or is_rootless or self.is_open:
            self._add_mounts(bundle)
        self._exact = set(self.nodes)
        has_driver = NVIDIA_MAJOR in ours.values()
        way = way_out(bundle, is_rootless=is_rootless) if has_driver else ""
        self.wide += [way] if way else []
        self._add_rules(has_driver=has_driver)

    def _add_rules(self, *, has_driver: bool) -> None:
        majors = self.majors - self.control
        has_gpus = any(allow and rule_major in (ANY, NVIDIA_MAJOR) and {"r", "w"} & set(access)
                       for allow, rule_major, _, access in self._rules)  # fmt: skip
        candidates = [(NVIDIA_MAJOR, minor) for minor in GPU_MINORS] if has_gpus else []
        for _, major, minor, _ in self._rules:
            candidates += [(m, minor) for m in (majors if major == ANY else {major})]
        for major, minor in candidates:
            rule_major, rule_minor = self._granted(major, minor)
            is_whole = rule_minor == ANY and rule_major in majors - {NVIDIA_MAJOR}
            way = f"the device rule for {_shown(rule_major)}:{_shown(rule_minor)}"
            if is_whole or (rule_major == ANY and has_driver):
                self.wide.append(way)
            if rule_major in self.majors:
                number = ("c", major, max(minor, 0))
                path = f"/dev/nvidia{minor}" if is_gpu(number) else f"{major}:{minor}"
                self._add(number, path, way)
                if rule_minor != ANY:
                    self._exact.add(number)

    def _add(self, number: Number | None, path: str, way: str) -> None:
        if number and number[0] == "c" and number[1] in self.majors - self.control:
            for kept in device_numbers.without_control({number: path}):
                self.nodes.setdefault(kept, path)
                self.ways.setdefault(kept, way)

    def _add_mounts(self, bundle: Bundle) -> None:
        seen: dict[str, Nodes] = {}
        for mount in bundle.mounts:
            source = mount.get("source")
            if isinstance(source, str) and source[:1] == "/":
                device_numbers.add_mounted(
                    seen.setdefault(source, {}), source, device_numbers.DEV_DEPTH
                )
        for source, path in seen_nodes(bundle):  # /dev under another name
            device_numbers.add_mounted(seen.setdefault(source or "/", {}), path, 0)
        for source, nodes in seen.items():
            known = set(self.nodes)
            for number, path in nodes.items():
                self._add(number, path, f"the mount of {source}")
            if set(self.nodes) - known and source not in nodes.values():
                self.shared.append(f"the mount of {source}")

    def _is_closed(self) -> bool:
        """Report whether there is a rule for all devices: without one, crun refuses nothing."""
        return any(
            major == minor == ANY and "r" in access and "w" in access
            for _, major, minor, access in self._rules
        )

    def _granted(self, major: int, minor: int) -> tuple[int, int]:
        """Return the numbers of the rule that grants a device; (0, 0) if none does.

        A rule that refuses limits a rule for every device, and otherwise only a rule of the same
        numbers: runc and control groups of version 1 have no other exceptions.
        """
        refused: set[tuple[int, int]] = set()
        for allow, rule_major, rule_minor, access in reversed(self._rules):
            numbers = rule_major, rule_minor
            if rule_major in (ANY, major) and rule_minor in (ANY, minor):
                if allow and ("r" in access or "w" in access) and numbers not in refused:
                    return (0, 0) if refused and numbers == (ANY, ANY) else numbers
                if not allow and "r" in access and "w" in access:
                    refused.add(numbers)
                    if numbers == (ANY, ANY):
                        break
        return 0, 0

    def keep_known(self, known: set[Number]) -> None:
        """Drop the GPUs that are neither known nor named by a rule or a node."""
        kept = {
            number: path
            for number, path in self.nodes.items()
            if not is_gpu(number) or number in known or number in self._exact
        }
        self.nodes = kept or self.nodes


def _other_groups(bundle: Bundle, cgroup: str) -> list[str]:
    """Return, in words, what takes a container out of its control group, even without root.

    In version 2, the owner of a control group above it can. crun writes the process into `tasks`
    of the folder that closID names below /sys/fs/resctrl, and into files of any folder to which
    `..` leads from its control groups.
    """
    ways, folder = [], UNIFIED
    rdt = bundle.document.value(("linux", "intelRdt"))
    if isinstance(rdt, dict) and "/" in str(rdt.get("closID")):
        ways.append(f"the class of service {rdt['closID']}")
    if ".." in cgroup.replace(":", "/").split("/"):
        return [*ways, f"the control group {cgroup}"]
    for name in filter(None, cgroup.split("/")):
        folder = f"{folder}/{name}"
        try:
            owner = posix.stat(folder).st_uid
        except (OSError, ValueError):
            break  # the runtime makes the missing ones
        if owner:
            ways.append(f"the control group {folder} of user {owner}")
    return ways


class Removal:
    """Takes devices that an engine gave out of config.json."""

    __slots__ = ("_access", "_kept")

    def __init__(self, access: Access, kept: set[Number]) -> None:
        self._access = access
        self._kept = kept

    def apply(self, bundle: Bundle) -> None:
        """Remove nodes, mounts of nodes and rules, and refuse the devices that wider rules allow.

        Raises:
            NotPermittedError: the devices cannot be removed without others.
        """
        if self._access.shared:
            raise _inseparable(self._access.shared[0])
        for path, goes in (
            (DEVICES, self._is_device),
            (("mounts",), self._is_node),
            (RULES, self.is_rule),
        ):
            gone = [value for value in bundle.objects(path) if goes(value)]
            bundle.document.replace(path, gone.__contains__, [])
        if self._access.is_open:
            close(bundle, self._access, self)
        held = {number[1] for number in self._kept} | self._access.control
        refused = []
        if self._access.wide:  # runc makes no exception from a refused major
            refused = [NUMBERS % ("false", "c", n, "") for n in sorted(self._access.majors - held)]
            known = {*self._access.nodes, *self._access.capabilities}
            others = [n for n in known - self._kept if n[1] in held]
            refused += [_rule("false", n) for n in sorted(others)]
        kept = [_rule("true", n) for n in sorted(self._kept)]
        bundle.document.append(RULES, refused + kept)

    def _is_device(self, node: Mapping[str, object]) -> bool:
        return self.goes(number_of(node))

    def is_rule(self, rule: Mapping[str, object]) -> bool:
        """Report whether a rule goes, because it allows devices that are to be removed.

        Raises:
            NotPermittedError: the rule allows all character devices, from which a control group
                cannot except those of one driver.
        """
        allow, major, minor, access = read_rule(rule)
        if not allow or str(rule.get("type") or "a")[:1] in ("a", "b"):
            return False
        if major == ANY and ("r" in access or "w" in access):
            raise _inseparable("a device rule for every major")
        return self.goes(("c", major, max(minor, 0)))

    def goes(self, number: Number | None) -> bool:
        """Report whether the device of this number is to be removed."""
        if number is None or number[0] != "c" or number[1] not in self._access.majors:
            return False
        if number in self._kept:
            return False
        return not self._kept or number in device_numbers.without_control({number: ""})

    def _is_node(self, mount: Mapping[str, object]) -> bool:
        nodes: Nodes = {}
        device_numbers.add_mounted(nodes, str(mount.get("source")), 0)
        return any(map(self.goes, nodes))


def close(bundle: Bundle, access: Access, removal: Removal | None = None) -> None:
    """Start the device rules with one that refuses all devices, and add the container's own nodes.

    Most engines write such rules; without the first, crun refuses nothing.
    """
    goes = removal.goes if removal else lambda _: False
    is_rule = removal.is_rule if removal else lambda _: False
    nodes = {number_of(node) for node in bundle.objects(DEVICES)} | set(access.nodes)
    nodes |= {("c", NVIDIA_MAJOR, minor) for minor in CONTROL_MINORS}
    rules = [_rule("true", n) for n in sorted(filter(None, nodes)) if not goes(n)]
    rules += [NUMBERS % ("true", "c", major, "") for major in access.control]
    rules += [bundle.document.fragment(e) for e in bundle.document.elements(RULES)
              if not (isinstance(e.value, dict) and is_rule(e.value))]  # fmt: skip
    bundle.document.rewrite(RULES, [REFUSAL, *rules])


def _rule(allow: str, number: Number) -> str:
    letter, major, minor = number
    return NUMBERS % (allow, letter, major, f',"minor":{minor}')


def _inseparable(source: str) -> NotPermittedError:
    return NotPermittedError(
        f"{source} gives GPUs that cannot be taken out alone",
        hint="give the container only the devices that it needs, by name",
    )


def number_of(node: Mapping[str, object]) -> Number | None:
    """Return the device number of a member of linux.devices; None if it is not a device."""
    major, minor = _cut(node.get("major")), _cut(node.get("minor"))
    letter = FILE_NODE.get(str(node.get("type"))[:1])
    if letter is None or major == ANY:
        return None
    return letter, major, max(minor, 0)


def _cut(number: object) -> int:
    """Return a device number cut to 32 bits, as crun does; ANY for a missing or negative one.

    A negative number means any device to runc and crun.
    """
    cut = number & ANY_BITS if isinstance(number, int) else ANY_BITS
    return ANY if cut > ANY_BITS >> 1 else cut


def read_rule(rule: Mapping[str, object]) -> tuple[bool, int, int, str]:
    """Return whether a device rule allows, its major, minor and access.

    runc ignores the numbers and the access of a rule for all types (libcontainer/cgroups/devices).
    crun reads only the first letter of a type, and takes an unknown one for character devices.
    """
    kind, access = str(rule.get("type") or "a")[:1], str(rule.get("access") or "rwm")
    allow = rule.get("allow") is True
    if kind == "b":
        return allow, ANY, ANY, ""
    if kind in FILE_NODE:
        return allow, _cut(rule.get("major")), _cut(rule.get("minor")), access
    if allow:
        return allow, ANY, ANY, "rwm"
    return allow, ANY, ANY, access if kind == "a" else ""


def _shown(number: int) -> str:
    return "*" if number == ANY else str(number)
