# SPDX-License-Identifier: Apache-2.0
"""The origin of a container: what policy rules read from config.json and from the kernel.

Hot; loaded only if the policy has rules.
"""

from __future__ import annotations

import posix

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.container.plan_devices import PlanDevices
    from nvct.oci.bundle import Bundle

UID_MAP = "/proc/self/uid_map"
ALL_UIDS = (1 << 32) - 1  # The length of the map of the host's own user namespace


class RuleResult:
    """The result of one rule."""

    __slots__ = ("holds", "reason", "rule", "then", "why")

    def __init__(self, rule: str, then: str, reason: str) -> None:
        self.rule = rule
        self.then = then
        self.reason = reason  # of its author, "" for none
        self.holds = False
        self.why = ""  # the condition that does not hold, or all conditions


class Origin:
    """The origin of a request, according to config.json and the kernel."""

    __slots__ = ("annotations", "cgroup", "mapped_root", "plans", "results", "uid_map")

    def __init__(
        self, bundle: Bundle, plans: PlanDevices | None = None, uid_map: str = UID_MAP
    ) -> None:
        self.annotations = bundle.annotations
        document = bundle.document
        cgroup = document.value(("linux", "cgroupsPath"))
        # linux.cgroupsPath of config.json, "" if missing
        self.cgroup = cgroup if isinstance(cgroup, str) else ""
        # host uid of the container's uid 0, as config.json maps it; None if the container joins
        # another user namespace
        self.mapped_root = _mapped(bundle)
        self.plans = plans  # of this machine; None where rules cannot look devices up
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
