# SPDX-License-Identifier: Apache-2.0
"""Where a container comes from: what rules of the policy ask of config.json and of the kernel.

Hot; loaded only where there are rules.
"""

from __future__ import annotations

import posix

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Protocol

    from nvct.container.plan.model import Plan
    from nvct.container.request.device_numbers import Meant, Nodes
    from nvct.container.request.model import Request
    from nvct.oci.bundle import Bundle

    class Numbers(Protocol):
        """What is known of device numbers (nvct.container.plan_devices)."""

        def injected(self, request: Request) -> Nodes:
            """Return the nodes that a container would get."""

        def meant(
            self, request: Request, nodes: Nodes, fits: Callable[[Sequence[str]], bool]
        ) -> Meant:
            """Return what the names that fit stand for."""

        def extras(self, nodes: Nodes) -> set[str]:
            """Return the names of extras whose nodes are among some."""


UID_MAP = "/proc/self/uid_map"


class Step:
    """One rule that was looked at.

    Attributes:
        rule: its name.
        then: its outcome.
        holds: whether it decides.
        why: the condition because of which it doesn't, or all that hold.
    """

    __slots__ = ("holds", "rule", "then", "why")

    def __init__(self, rule: str, then: str, why: str, *, holds: bool) -> None:
        self.rule = rule
        self.then = then
        self.holds = holds
        self.why = why


class Origin:
    """Where a request comes from, as far as config.json and the kernel say so.

    Attributes:
        cgroup: linux.cgroupsPath of config.json, "" where it is not said.
        mapped_root: host id of the container's uid 0, as config.json maps it; None where the
            container joins a user namespace that nothing is known about.
        annotations: of config.json.
        count: tells how many devices a kind's "all" stands for, in a request.
        known_as: gives all names of each device that a name stands for, in a request; None where
            that cannot be learned.
        look_up: fails where a request names a device that is not there.
        uid_map: of the process that decides; read when a rule needs it.
        plans: what is known of device numbers; None where nothing is.
        steps: what was looked at, for explanations.
    """

    __slots__ = (
        "annotations", "cgroup", "count", "known_as", "look_up", "mapped_root", "plans", "steps",
        "uid_map",
    )  # fmt: skip

    def __init__(
        self,
        bundle: Bundle,
        count: Callable[[Request, str], int] | None,
        uid_map: str = UID_MAP,
        *,
        look_up: Callable[[Request], None] | None = None,
        known_as: Callable[[Request, str], list[list[str]] | None] | None = None,
        plans: Numbers | None = None,
    ) -> None:
        """Take what the rules may need from a bundle."""
        self.annotations = bundle.annotations
        document = bundle.document
        cgroup = document.value(("linux", "cgroupsPath"))
        self.cgroup = cgroup if isinstance(cgroup, str) else ""
        self.mapped_root = _mapped(bundle)
        self.count = count
        self.look_up = look_up
        self.known_as = known_as
        self.plans = plans
        self.uid_map = uid_map
        self.steps: list[Step] = []

    def owner(self) -> int | None:
        """Return the host user that a container belongs to, None where it cannot be learned.

        That is who runs the engine; where that is root, who the container's root is on the host.
        """
        try:
            fd = posix.open(self.uid_map, posix.O_RDONLY | posix.O_CLOEXEC)
            try:
                text = posix.read(fd, 65536).decode()
            finally:
                posix.close(fd)
            lines = [[int(word) for word in line.split()] for line in text.splitlines()]
        except (OSError, ValueError):
            return None
        caller = _outside(posix.geteuid(), lines)
        if caller != 0 or self.mapped_root is None:
            return caller or None
        return _outside(self.mapped_root, lines)


def _outside(inside: int, lines: list[list[int]]) -> int | None:
    for first, outside, count in lines:
        if first <= inside < first + count:
            return outside + inside - first
    return None


def _mapped(bundle: Bundle) -> int | None:
    """Return the id of the container's root in the namespace that the container is made in."""
    spaces = bundle.objects(("linux", "namespaces"))
    if not any(space.get("type") == "user" for space in spaces):
        return 0
    for mapping in bundle.objects(("linux", "uidMappings")):
        host = mapping.get("hostID")
        if mapping.get("containerID") == 0 and isinstance(host, int):
            return host
    return None


def count_all(plan: Plan, kind: str) -> int:
    """Return how many devices of a kind a plan has; two names of one device count once."""
    found = {
        (device["spec"], device["edits"])
        for name, device in plan["devices"].items()
        if name.partition("=")[0] == kind and name.partition("=")[2] != "all"
    }
    return len(found) or 1


def names_of(plan: Plan, name: str) -> list[list[str]] | None:
    """Return all names of each device that a name stands for in a plan; None if it does not say.

    Devices of two specs are two, whatever their own edits are: what the specs give with them may
    be all the difference.
    """
    kind, _, device = name.partition("=")
    known = plan["devices"]
    found: dict[tuple[int, int], list[str]] = {}
    for other in known:
        if other.partition("=")[0] == kind and other != f"{kind}=all":
            found.setdefault((known[other]["spec"], known[other]["edits"]), []).append(other)
    if device == "all":
        return list(found.values()) or None
    return [found[known[name]["spec"], known[name]["edits"]]] if name in known else []
