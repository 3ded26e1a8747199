# SPDX-License-Identifier: Apache-2.0
"""What the scheduler has allocated to a ResourceClaim, as the API server has it.

Contract: pure functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from nvct.agent.dra.devices import DRIVER, Device
from nvct.agent.dra.journal import Entry, Prepared
from nvct.agent.dra.slices import GROUP
from nvct.agent.kubernetes.cluster import Kind, Object
from nvct.agent.nvml.host_verbs import UID
from nvct.errors import HostError, RequestError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.agent.kubelet.dra_service import ClaimRef


class Allocated(NamedTuple):
    """A device of this driver that a claim has.

    Attributes:
        device: its name in the pool of the node.
        requests: names of the claim's requests that it is for.
        is_admin: whether the claim only observes it, and others may have it.
        alternatives: as `requests`, with the alternative that was taken: REQUEST/ALTERNATIVE.
    """

    device: str
    requests: tuple[str, ...]
    is_admin: bool = False
    alternatives: tuple[str, ...] = ()


def kind(version: str) -> Kind:
    """Return the kind of claims in a version of the API."""
    return Kind(GROUP, version, "ResourceClaim", "resourceclaims", is_namespaced=True)


def check(ref: ClaimRef) -> None:
    """Refuse a uid that is none: it becomes part of a file's name.

    Raises:
        RequestError: it is none.
    """
    if not UID.fullmatch(ref.uid):
        raise RequestError(f"{ref.uid!r} is no uid of a ResourceClaim")


def checked(claim: Object | None, ref: ClaimRef) -> Object:
    """Return a claim that has devices.

    Raises:
        RequestError: there is none, or it is not allocated.
    """
    if claim is None:
        raise RequestError(
            f"there is no ResourceClaim {ref.namespace}/{ref.name} with uid {ref.uid}"
        )
    if not is_allocated(claim):
        raise RequestError(f"ResourceClaim {ref.namespace}/{ref.name} is not allocated")
    return claim


def is_allocated(claim: Object) -> bool:
    """Return whether the scheduler has given devices to a claim."""
    return bool(claim.get("status", {}).get("allocation"))


def allocated(claim: Object, node: str) -> tuple[Allocated, ...]:
    """Return the devices of this driver on a node that a claim has, in the claim's order."""
    devices = claim.get("status", {}).get("allocation", {}).get("devices", {})
    found: dict[tuple[str, bool], list[str]] = {}
    for result in devices.get("results", ()):
        if (result.get("driver"), result.get("pool")) == (DRIVER, node):
            key = result["device"], bool(result.get("adminAccess"))
            found.setdefault(key, []).append(result["request"])
    return tuple(
        # A container names the request; which of its alternatives was taken does not matter to it.
        Allocated(device, tuple(dict.fromkeys(map(_request, names))), is_admin, tuple(names))
        for (device, is_admin), names in found.items()
    )


def entries(
    devices: Iterable[Allocated], known: Mapping[str, Device], node: str, before: Prepared | None
) -> tuple[Entry, ...]:
    """Return the devices of a claim; one that is not there now as the claim had it before.

    Args:
        devices: that the claim has.
        known: the devices of the node, by name.
        before: the claim as it was prepared.

    Raises:
        HostError: the node has no such device, and the claim did not have it.
    """
    had = {(entry.device, entry.is_admin): entry for entry in before.entries} if before else {}
    return tuple(_entry(one, known.get(one.device), node, had) for one in devices)


def _entry(
    allocated: Allocated, device: Device | None, node: str, had: Mapping[tuple[str, bool], Entry]
) -> Entry:
    before = had.get((allocated.device, allocated.is_admin))
    if device is None and before is not None:
        return before
    if device is None:
        raise HostError(
            f"Node {node} has no device {allocated.device} now",
            hint="see `nvct agent --status`, in the agent's pod or on the node",
        )
    return Entry(
        device=device.name, uuid=device.uuid, gpu=device.gpu,
        requests=allocated.requests, is_admin=allocated.is_admin, place=device.place,
    )  # fmt: skip


def _request(name: str) -> str:
    return name.partition("/")[0]
