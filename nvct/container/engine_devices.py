# SPDX-License-Identifier: Apache-2.0
"""The devices that an engine put into config.json, as a request of origin `engine`.

Hot; loaded only where config.toml has rules and says engine-devices = "checked". Numbers decide:
a node can have any name and place. Where an engine is root, a container can use a device if a
rule of its control group says so, because Docker's containers may make nodes; else every node
that it sees. Contract: what cannot be understood counts as a device.
"""

from __future__ import annotations

from nvct.container.host_view import seen_nodes, way_out, way_to_processes
from nvct.container.plan_devices import PlanDevices, origin_of
from nvct.container.request import device_numbers
from nvct.container.request.case import EXTRA_NAMES, IMEX_KIND, Case, extras_of
from nvct.container.request.device_numbers import NVIDIA_MAJOR, is_gpu
from nvct.container.request.model import BY_ANNOTATION, BY_ENGINE, Request
from nvct.container.request.origin import RuleResult
from nvct.container.request.policy import admits
from nvct.container.request.resolve import CAP_SYS_ADMIN, given_by, parse_env
from nvct.errors import NotPermittedError, NvctError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from nvct.config.model import Config
    from nvct.container.host import Host
    from nvct.container.request.device_numbers import Nodes, Number
    from nvct.container.request.kubelet_record import Answer
    from nvct.container.request.model import Env
    from nvct.container.request.origin import Origin
    from nvct.oci.bundle import Bundle

ANY, ANY_BITS = -1, (1 << 32) - 1
EVERYTHING = "management.nvidia.com/gpu=all"
"""What a rule for every device of the host gives."""
RULES = ("linux", "resources", "devices")
GPU_MINORS = range(device_numbers.FIRST_CONTROL_MINOR)
LISTENER = ("linux", "seccomp", "listenerPath")
UNIT_DEVICES = ("org.systemd.property.Device", "org.systemd.property.BPFProgram")
"""Annotations by which systemd lets a container use a device: docs/systemd.md of runc 1.3."""
FILE_NODE = {"c": "c", "u": "c"}
"""Types of character devices: runtime-spec, config-linux.md."""


class Access:
    """The NVIDIA devices that a container can use before anything is injected.

    Attributes:
        nodes: GPUs and extras, with a path for messages; control nodes are left out.
        ways: what gives each of the nodes, in words.
        wide: what gives more than GPUs, such as a rule for every device of the host.
        control: the major of nvidia-uvm, whose nodes all are control nodes.
        capabilities: the numbers that distinguish this host's MIG devices.
        majors: of NVIDIA's drivers.
        shared: what gives such devices, and others that cannot be told from them: mounted folders
            where no control group refuses their nodes, and properties of the container's unit.
    """

    __slots__ = (
        "_exact", "_rules", "capabilities", "control", "majors", "nodes", "shared", "ways", "wide",
    )  # fmt: skip

    def __init__(self, bundle: Bundle, origin: Origin, drivers: dict[str, int]) -> None:
        ours = {name: m for name, m in drivers.items() if name.startswith(("nvidia", "gdrdrv"))}
        self.majors = {NVIDIA_MAJOR, *ours.values()}
        self.control = {ours["nvidia-uvm"]} if "nvidia-uvm" in ours else set()
        self.nodes: Nodes = {}
        self.ways: Nodes = {}
        self.capabilities: set[Number] = set()
        self.shared = [
            f"the annotation {key}" for key in bundle.annotations if key.startswith(UNIT_DEVICES)
        ]
        if bundle.document.value(LISTENER):  # its agent gives descriptors to the container
            self.shared.append(".".join(LISTENER))
        self.wide = list(self.shared)
        is_rootless = origin.is_rootless()
        for node in bundle.objects(("linux", "devices")):
            self._add(number_of(node), str(node.get("path")), f"the node {node.get('path')}")
        self._rules = [_rule(rule) for rule in bundle.objects(RULES)]
        if not origin.cgroup or is_rootless or not self._is_guarded():
            self._add_mounts(bundle)
        self._exact = set(self.nodes)
        has_driver = NVIDIA_MAJOR in ours.values()
        way_to_host = way_to_processes if is_rootless else way_out
        way = way_to_host(bundle) if has_driver else ""
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
        if number is not None and number[1] in self.majors - self.control:
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

    def _is_guarded(self) -> bool:
        """Report whether a rule refuses the rest: without one, crun refuses nothing."""
        return any(
            not allow and major == minor == ANY and "r" in access and "w" in access
            for allow, major, minor, access in self._rules
        )

    def _granted(self, major: int, minor: int) -> tuple[int, int]:
        """Return the numbers of the rule that grants a device; (0, 0) if none does.

        A rule that refuses takes something from a rule for every device, and else what one of the
        same numbers allows: runc and control groups of version 1 know no others.
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
        """Drop the GPUs that the host has not, and no rule or node names."""
        kept = {
            number: path
            for number, path in self.nodes.items()
            if not is_gpu(number) or number in known or number in self._exact
        }
        self.nodes = kept or self.nodes


class EngineCase(Case):
    """A request of origin `engine`; `given_nodes` are the numbers that the kubelet has given."""

    __slots__ = ("given_nodes",)

    def __init__(
        self, request: Request, nodes: Nodes, config: Config, origin: Origin, *, privileged: bool
    ) -> None:
        super().__init__(request, BY_ENGINE, {}, config, origin, privileged=privileged)
        self._injected = nodes
        self.given_nodes: set[Number] = set()

    @property
    def is_given(self) -> bool:
        """Whether the kubelet has given every device."""
        is_narrow = bool(self.given_nodes) and EVERYTHING not in self.names
        return is_narrow and set(self.injected) <= self.given_nodes


def check(
    bundle: Bundle,
    config: Config,
    host: Host,
    origin: Origin | None,
    request: Request | None,
    *,
    devices: list[str],
    notes: list[str],
    trouble: NvctError | None,
) -> Removal | None:
    """Apply the policy to the devices that an engine gave; return what goes, None if all stay.

    `request` is the container's other one, which the policy allows. `devices` gets names.

    Raises:
        NotPermittedError: the policy denies the devices.
        NvctError: `trouble`, why config.toml cannot be read, if there are any devices.
    """
    plans = PlanDevices(config, host)
    origin = origin or origin_of(bundle, config, host)
    access = Access(bundle, origin, plans.drivers())
    if not access.nodes and not access.wide:
        return None
    nodes, requested = _remaining(access, plans, request)
    asked = _request(access, nodes, plans, requested)
    if not (asked.extras or asked.ids):
        return None
    devices += [*asked.ids, *extras_of(asked)]
    if trouble is not None:
        raise trouble
    case = EngineCase(asked, nodes, config, origin, privileged=CAP_SYS_ADMIN in bundle.bounding)
    variables = parse_env(bundle.env)
    case.way = [*access.wide, *(access.ways[n] for n in nodes if n in access.ways)][0]
    case.parse = lambda answer: _given(case, answer, plans, variables)
    before, origin.results = origin.results, []
    try:
        is_allowed = admits(case, notes)
    finally:
        origin.results = before + [
            RuleResult(f"{r.rule} ({BY_ENGINE})", r.then, r.why, holds=r.holds)
            for r in origin.results
        ]
    return None if is_allowed else Removal(access, case.given_nodes | requested)


def _remaining(
    access: Access, plans: PlanDevices, request: Request | None
) -> tuple[Nodes, set[Number]]:
    """Return the nodes that an allowed request does not give anyway, and those that it gives."""
    if access.wide:
        for minor in GPU_MINORS:
            access.nodes.setdefault(("c", NVIDIA_MAJOR, minor), f"/dev/nvidia{minor}")
    try:
        access.keep_known(plans.gpus())
        access.capabilities.update(*(device.capabilities for device in plans.devices()))
        same = plans.injected(request) if request is not None else {}
    except NvctError:
        same = {}
    return {n: path for n, path in access.nodes.items() if n not in same}, set(same)


def _request(access: Access, nodes: Nodes, plans: PlanDevices, requested: set[Number]) -> Request:
    """Return the request for nodes, by the names of devices where there are any.

    A MIG device is one whose capability is among them, even if an allowed request gives its GPU.
    """
    numbers, names, named, seen = set(nodes), [], set(), []
    try:
        for device in plans.devices():
            own = device.gpus | (device.capabilities if device.is_mig else set())
            if own in seen:  # of another kind
                continue
            if own & numbers and own <= numbers | requested and not device.is_all:
                seen.append(own)
                names.append(device.names[0].partition("=")[2])
                named |= own
    except NvctError:
        pass
    names += [
        path for number, path in nodes.items()
        if (is_gpu(number) or number in access.capabilities) and number not in named
    ]  # fmt: skip
    request = Request([EVERYTHING] if access.wide else names, BY_ENGINE)
    attributes = {name: attribute for attribute, name in EXTRA_NAMES.items()}
    for extra in plans.extras(nodes):
        kind, _, channel = extra.partition("=")
        if kind == IMEX_KIND:
            request.extras.imex.append(int(channel))
        elif extra in attributes:
            setattr(request.extras, attributes[extra], True)
    request.none = False
    return request


def _given(case: EngineCase, answer: Answer, plans: PlanDevices, variables: Env) -> Request | None:
    """Note the device numbers in an answer of a device plugin; return its request.

    Raises:
        NvctError: the answer is malformed, or a device of it is not known.
    """
    nodes: Nodes = {}
    for path in answer.nodes:
        device_numbers.add_mounted(nodes, path, 0)
    request = given_by(
        answer, BY_ANNOTATION, variables, case.config, [], privileged=case.privileged, defined=None
    )
    named = Request(answer.names, BY_ENGINE) if answer.names else None
    if named is not None:
        named.mode = "cdi"
    for part in (request, named):
        if part is not None:
            nodes.update(plans.injected(part))
    case.given_nodes = set(nodes)
    return request or named or (Request(answer.nodes, BY_ENGINE) if nodes else None)


class Removal:
    """Takes devices of an engine out of config.json again."""

    __slots__ = ("_access", "_kept")

    def __init__(self, access: Access, kept: set[Number]) -> None:
        self._access = access
        self._kept = kept

    def apply(self, bundle: Bundle) -> None:
        """Remove nodes, mounts of nodes and rules, and refuse what a rule for everything gives.

        Raises:
            NotPermittedError: the devices cannot be told from others that the container gets.
        """
        if self._access.shared:
            raise _inseparable(self._access.shared[0])
        for path, goes in (
            (("linux", "devices"), self._is_device),
            (("mounts",), self._is_node),
            (RULES, self._is_rule),
        ):
            gone = [value for value in bundle.objects(path) if goes(value)]
            bundle.document.replace(path, gone.__contains__, [])
        template = '{"allow":%s,"type":"c","major":%d%s,"access":"rwm"}'
        held = {number[1] for number in self._kept} | self._access.control
        refused = []
        if self._access.wide:  # runc makes no hole in a rule that refuses a whole major
            refused = [template % ("false", n, "") for n in sorted(self._access.majors - held)]
            known = {*self._access.nodes, *self._access.capabilities}
            others = [n for n in known - self._kept if n[1] in held]
            refused += [template % ("false", n[1], f',"minor":{n[2]}') for n in sorted(others)]
        kept = [template % ("true", n[1], f',"minor":{n[2]}') for n in sorted(self._kept)]
        bundle.document.append(RULES, refused + kept)

    def _is_device(self, node: Mapping[str, object]) -> bool:
        return self._goes(number_of(node))

    def _is_rule(self, rule: Mapping[str, object]) -> bool:
        """Report whether a rule gives devices that go.

        A control group cannot except a driver from a rule for all character devices.

        Raises:
            NotPermittedError: it is such a rule.
        """
        allow, major, minor, access = _rule(rule)
        if not allow or str(rule.get("type") or "a")[:1] in ("a", "b"):
            return False
        if major == ANY and ("r" in access or "w" in access):
            raise _inseparable("a device rule for every major")
        return self._goes(("c", major, max(minor, 0)))

    def _goes(self, number: Number | None) -> bool:
        if number is None or number[0] != "c" or number[1] not in self._access.majors:
            return False
        if number in self._kept:
            return False
        return not self._kept or number in device_numbers.without_control({number: ""})

    def _is_node(self, mount: Mapping[str, object]) -> bool:
        nodes: Nodes = {}
        device_numbers.add_mounted(nodes, str(mount.get("source")), 0)
        return any(map(self._goes, nodes))


def _inseparable(source: str) -> NotPermittedError:
    return NotPermittedError(
        f"the GPUs of {source} cannot be ignored alone",
        hint="name the devices that the container needs",
    )


def _shown(number: int) -> str:
    return "*" if number == ANY else str(number)


def number_of(node: Mapping[str, object]) -> Number | None:
    """Return the device number of a member of linux.devices; None if it is no character device."""
    major, minor = _cut(node.get("major")), _cut(node.get("minor"))
    if str(node.get("type"))[:1] not in FILE_NODE or major == ANY:
        return None
    return "c", major, max(minor, 0)


def _cut(number: object) -> int:
    """Return a device number as crun takes it, which cuts it to 32 bits; ANY if there is none.

    For runc and crun each negative number is any.
    """
    cut = number & ANY_BITS if isinstance(number, int) else ANY_BITS
    return ANY if cut > ANY_BITS >> 1 else cut


def _rule(rule: Mapping[str, object]) -> tuple[bool, int, int, str]:
    """Return whether a device rule allows, its major and minor, and what it is about.

    runc ignores the numbers and the access of a rule for all types (libcontainer/cgroups/devices);
    crun looks at the first letter of a type, and takes an unknown one for character devices.
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
