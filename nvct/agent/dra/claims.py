# SPDX-License-Identifier: Apache-2.0
"""Reads what the scheduler has allocated to a ResourceClaim, and finds claims that may be gone.

Contract: pure functions of the API server's objects, except `Doubts`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from nvct.agent.dra.devices import CORES, DRIVER, MEMORY, MIB, Device
from nvct.agent.dra.journal import Entry, Prepared
from nvct.agent.dra.slices import GROUP
from nvct.agent.kubernetes import quantity
from nvct.agent.kubernetes.cluster import Kind, Object
from nvct.agent.nvml.host_verbs import OBJECT, UID
from nvct.errors import HostError, RequestError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.agent.kubelet.dra_service import ClaimRef


PERCENT = 100
TURN_S = 180.0
"""How often one of the claims that the kubelet never names is looked up on the API server."""


class Doubts:
    """Chooses the claims that may be gone: those that the kubelet no longer names.

    The kubelet does not name some claims that exist: only init containers have them, or it is
    older than Kubernetes 1.34. These are chosen one at a time.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._seen: dict[str, float] = {}
        self._turn_at = clock() + TURN_S
        self._clock = clock

    def exists(self, uid: str) -> None:
        """Note that the API server has a claim."""
        self._seen[uid] = self._clock()

    def next(self, known: Mapping[str, Prepared], named: Collection[str]) -> list[Prepared]:
        """Return the prepared claims to look up on the API server now.

        Claims that the kubelet names, as NAMESPACE/NAME, are not looked up.
        """
        names = Counter(claim.full_name for claim in known.values())
        unnamed = {
            uid: claim
            for uid, claim in known.items()
            if claim.full_name not in named or names[claim.full_name] > 1
        }
        self._seen = {uid: at for uid, at in self._seen.items() if uid in unnamed}
        now = self._clock()
        doubtful = [claim for uid, claim in unnamed.items() if uid not in self._seen]
        if not doubtful and self._seen and now >= self._turn_at:
            doubtful = [unnamed[min(self._seen, key=self._seen.__getitem__)]]
        if doubtful:
            import random  # 0.3 MB

            self._turn_at = now + TURN_S * random.uniform(0.8, 1.2)  # noqa: S311  no secret
        return doubtful


def kind(version: str) -> Kind:
    """Return the kind of claims in a version of the API."""
    return Kind(GROUP, version, "ResourceClaim", "resourceclaims", is_namespaced=True)


def check(ref: ClaimRef) -> None:
    """Refuse a malformed uid: it becomes part of a file's name."""
    if not UID.fullmatch(ref.uid):
        raise RequestError(f"{ref.uid!r} is not the uid of a ResourceClaim")


def checked(claim: Object | None, ref: ClaimRef) -> Object:
    """Return a claim; RequestError if it does not exist or is not allocated."""
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


def pod_claim(claim: Object) -> str:
    """Return the pod's name for a claim that is made from a template, "" for another claim.

    A user can write anything into this annotation of another claim, so the name is checked.
    """
    annotations = claim["metadata"].get("annotations") or {}
    name = str(annotations.get("resource.kubernetes.io/pod-claim-name", ""))
    return name if OBJECT.fullmatch(name) else ""


def devices(
    claim: Object, node: str, known: Mapping[str, Device], before: Prepared | None
) -> list[tuple[tuple[str, ...], Entry]]:
    """Return the devices of this driver on a node that a claim has, in the claim's order.

    Each comes with its requests, as REQUEST or REQUEST/ALTERNATIVE. A device that the node does
    not have now is taken from `before`.

    Raises:
        HostError: neither the node nor `before` has a device.
        RequestError: a share is malformed, or the shares of one device differ in size.
    """
    had = {(entry.device, entry.is_admin): entry for entry in before.entries} if before else {}
    found: dict[tuple[str, bool], list[Object]] = {}
    allocation = claim.get("status", {}).get("allocation", {}).get("devices", {})
    for result in allocation.get("results", ()):
        if (result.get("driver"), result.get("pool")) == (DRIVER, node):
            key = result["device"], bool(result.get("adminAccess"))
            found.setdefault(key, []).append(result)
    return [
        (
            tuple(result["request"] for result in results),
            _entry(key, results, known, had.get(key), node),
        )
        for key, results in found.items()
    ]


def _consumed(result: Object) -> tuple[int, int] | None:
    found = result.get("consumedCapacity") or {}
    if MEMORY not in found:
        return None
    memory, cores = (quantity.parse(str(found.get(name, "0"))) for name in (MEMORY, CORES))
    if memory is None or memory < MIB or cores is None or cores > PERCENT:
        raise RequestError(
            f"the claim's share of {result['device']} is malformed: memory {found[MEMORY]}, "
            f"cores {found.get(CORES, 0)}",
            hint="memory must be at least 1Mi, and cores are percent, at most 100",
        )
    return int(memory), int(cores)


def _entry(
    key: tuple[str, bool],
    results: Sequence[Object],
    known: Mapping[str, Device],
    before: Entry | None,
    node: str,
) -> Entry:
    name, is_admin = key
    consumed = {_consumed(result) for result in results}
    device = known.get(name)
    if device is None and before is not None:
        return before
    if device is None:
        raise HostError(
            f"Node {node} has no device {name} now",
            hint="see `nvct agent --status`, in the agent's pod or on the node",
        )
    if len(consumed) > 1:
        raise RequestError(
            f"the claim has shares of different sizes of {name}, but a client can have one limit",
            hint="ask for each by a claim of its own",
        )
    memory, cores = consumed.pop() or (0, 0)
    if is_admin or memory >= device.capacity.get(MEMORY, 0):
        memory = cores = 0
    return Entry(
        device=name, uuid=device.uuid, gpu=device.gpu, is_admin=is_admin, place=device.place,
        # Containers name the request, whichever of its alternatives was chosen.
        requests=tuple(dict.fromkeys(_request(result) for result in results)),
        alternatives=tuple(one["request"] for one in results if "/" in one["request"]),
        share_mib=memory // MIB, cores=cores,
        shares=tuple((_request(one), one["shareID"]) for one in results if "shareID" in one),
    )  # fmt: skip


def excluded(claim: Prepared, other: Prepared) -> HostError:
    """Return the error for a claim that wants a device that another claim has."""
    device, share, held = claim.excluded_by(other), claim.share, other.share
    if share and held:
        is_same = share.share_mib == held.share_mib
        which = "from another setting of MEMORY_SHARES" if is_same else f"of {held.share_mib}Mi"
        return HostError(
            f"{device} has shares {which} for claim {other.full_name}, and this claim asks for "
            f"{share.share_mib}Mi",
            hint="the claim is prepared when the pods of the other shares have ended",
        )
    if held:
        return HostError(
            f"claim {other.full_name} has a share of the memory of {device}, and this claim asks "
            "for the whole GPU",
            hint="ask for a share, by the capacity memory, or for a GPU that no claim has",
        )
    return HostError(
        f"{device} is prepared for claim {other.full_name}",
        hint="this claim is prepared when the pod of that claim has ended",
    )


def check_sum(claim: Prepared, known: Iterable[Prepared], devices: Iterable[Device]) -> None:
    """Raise HostError if all shares of a claim's GPU would exceed the GPU's memory."""
    own = claim.share
    if own is None:
        return
    held = [one.share for one in known if one.uid != claim.uid and one.share]
    sum_mib = sum(share.memory_mib for share in (own, *held) if share.gpu == own.gpu)
    capacity = next((one.capacity.get(MEMORY) for one in devices if one.uuid == own.gpu), None)
    if capacity is not None and sum_mib > capacity // MIB:
        raise HostError(
            f"the shares of {own.device} would need {sum_mib}Mi, but it has {capacity // MIB}Mi",
            hint="the claim is prepared when the pods of other shares have ended",
        )


def _request(result: Object) -> str:
    return str(result["request"]).partition("/")[0]
