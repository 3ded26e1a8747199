# SPDX-License-Identifier: Apache-2.0
"""The origin of a container: what policy rules read from config.json and from the kernel.

Hot; loaded only if the policy has rules.
"""

from __future__ import annotations

import posix

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Protocol

    from nvct.container.plan.model import Plan
    from nvct.container.request.device_numbers import Nodes, Selection
    from nvct.container.request.model import Request
    from nvct.oci.bundle import Bundle

    class DeviceNumbers(Protocol):
        """Looks device numbers up in plans (nvct.container.plan_devices)."""

        def injected(self, request: Request) -> Nodes:
            """Return the nodes that a container would get."""

        def select(
            self, request: Request, nodes: Nodes, fits: Callable[[Sequence[str]], bool]
        ) -> Selection:
            """Return the device numbers of all devices whose names match."""

        def extras(self, nodes: Nodes) -> set[str]:
            """Return the CDI names of extras that own one of the nodes."""


UID_MAP = "/proc/self/uid_map"
ALL_UIDS = (1 << 32) - 1  # The length of the map of the host's own user namespace


class RuleResult:
    """The result of one rule."""

    __slots__ = ("holds", "rule", "then", "why")

    def __init__(self, rule: str, then: str, why: str, *, holds: bool) -> None:
        self.rule = rule
        self.then = then
        self.holds = holds
        self.why = why  # the condition that does not hold, or all conditions


class Origin:
    """The origin of a request, according to config.json and the kernel."""

    __slots__ = (
        "aliases", "annotations", "cgroup", "check_known", "count", "mapped_root", "plans",
        "results", "uid_map",
    )  # fmt: skip

    def __init__(
        self,
        bundle: Bundle,
        count: Callable[[Request, str], int] | None,
        uid_map: str = UID_MAP,
        *,
        check_known: Callable[[Request], None] | None = None,
        aliases: Callable[[Request, str], list[list[str]] | None] | None = None,
        plans: DeviceNumbers | None = None,
    ) -> None:
        self.annotations = bundle.annotations
        document = bundle.document
        cgroup = document.value(("linux", "cgroupsPath"))
        # linux.cgroupsPath of config.json, "" if missing
        self.cgroup = cgroup if isinstance(cgroup, str) else ""
        # host uid of the container's uid 0, as config.json maps it; None if the container joins
        # another user namespace
        self.mapped_root = _mapped(bundle)
        self.count = count  # returns the number of devices of a kind, for a request
        self.check_known = check_known
        # returns all names of each device that a name selects, for a request; None if they are
        # unknown
        self.aliases = aliases
        self.plans = plans
        self.uid_map = uid_map  # path of the deciding process's uid_map; read when a rule needs it
        self.results: list[RuleResult] = []

    def owner(self) -> int | None:
        """Return the host uid that owns the container, None if unknown.

        It is the uid of the engine; if the engine is root, that of the container's root user.
        """
        lines = self._uid_map()
        if lines is None:
            return None
        caller = _outside(posix.geteuid(), lines)
        if caller != 0 or self.mapped_root is None:
            return caller or None
        return _outside(self.mapped_root, lines)

    def is_rootless(self) -> bool:
        """Report whether the engine may set no device rules, as it is in a user namespace."""
        return self._uid_map() != [[0, 0, ALL_UIDS]]

    def _uid_map(self) -> list[list[int]] | None:
        try:
            fd = posix.open(self.uid_map, posix.O_RDONLY | posix.O_CLOEXEC)
            try:
                text = posix.read(fd, 65536).decode()
            finally:
                posix.close(fd)
            return [[int(word) for word in line.split()] for line in text.splitlines()]
        except (OSError, ValueError):
            return None


def _outside(inside: int, lines: list[list[int]]) -> int | None:
    for first, outside, count in lines:
        if first <= inside < first + count:
            return outside + inside - first
    return None


def _mapped(bundle: Bundle) -> int | None:
    """Return the uid of the container's root in the user namespace of the runtime."""
    namespaces = bundle.objects(("linux", "namespaces"))
    if not any(namespace.get("type") == "user" for namespace in namespaces):
        return 0
    for mapping in bundle.objects(("linux", "uidMappings")):
        host = mapping.get("hostID")
        if mapping.get("containerID") == 0 and isinstance(host, int):
            return host
    return None


def count_all(plan: Plan, kind: str) -> int:
    """Return the number of devices of a kind in a plan; two names of a device count once."""
    devices = {
        (device["spec"], device["edits"])
        for name, device in plan["devices"].items()
        if name.partition("=")[0] == kind and name.partition("=")[2] != "all"
    }
    return len(devices) or 1


def names_of(plan: Plan, name: str) -> list[list[str]] | None:
    """Return all names of each device that a name selects in a plan; None if unknown.

    Devices of two specs are distinct even if their own edits are equal, because the common edits
    of the specs may differ.
    """
    kind, _, device = name.partition("=")
    devices = plan["devices"]
    names: dict[tuple[int, int], list[str]] = {}
    for device_name in devices:
        if device_name.partition("=")[0] == kind and device_name != f"{kind}=all":
            entry = devices[device_name]
            names.setdefault((entry["spec"], entry["edits"]), []).append(device_name)
    if device == "all":
        return list(names.values()) or None
    return [names[devices[name]["spec"], devices[name]["edits"]]] if name in devices else []
