# SPDX-License-Identifier: Apache-2.0
"""What the scheduler has allocated to a ResourceClaim; which claims may be gone.

Contract: pure functions of objects as the API server has them.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

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
"""How often the API server is asked for one of the claims that the kubelet does not name."""


class Allocated(NamedTuple):
    """A device of this driver that a claim has.

    Attributes:
        requests: names of the claim's requests that it is for.
        is_admin: whether the claim only observes it, and others may have it.
        alternatives: as `requests`, with the alternative that was taken: REQUEST/ALTERNATIVE.
        consumed: how much memory in bytes each has, and of the threads in percent; None for a
            device that the scheduler gives to one claim alone.
        shares: of a device that several claims have: the request and the id of each share.
    """

    device: str
    requests: tuple[str, ...]
    is_admin: bool = False
    alternatives: tuple[str, ...] = ()
    consumed: tuple[tuple[int, int] | None, ...] = (None,)
    shares: tuple[tuple[str, str], ...] = ()


class Doubts:
    """Which claims may be gone: the ones that the kubelet has ceased to name.

    Of those that it does not name though they exist (only init containers have them, or the
    kubelet is older than Kubernetes 1.34), one comes at a time.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._seen: dict[str, float] = {}
        self._turn_at = clock() + TURN_S
        self._clock = clock

    def exists(self, uid: str) -> None:
        """Note that the API server has a claim."""
        self._seen[uid] = self._clock()

    def next(self, known: Mapping[str, Prepared], named: Collection[str]) -> list[Prepared]:
        """Return the prepared claims for which the API server is asked now.

        It is not asked for those that the kubelet still names, by NAMESPACE/NAME.
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
        raise RequestError(f"{ref.uid!r} is no uid of a ResourceClaim")


def checked(claim: Object | None, ref: ClaimRef) -> Object:
    """Return a claim that has devices."""
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
    """Return how the pod calls a claim that is made of a template, "" for another claim.

    A user can write another text than Kubernetes does on a claim of his own: that is no name.
    """
    annotations = claim["metadata"].get("annotations") or {}
    name = str(annotations.get("resource.kubernetes.io/pod-claim-name", ""))
    return name if OBJECT.fullmatch(name) else ""


def allocated(claim: Object, node: str) -> tuple[Allocated, ...]:
    """Return the devices of this driver on a node that a claim has, in the claim's order."""
    devices = claim.get("status", {}).get("allocation", {}).get("devices", {})
    found: dict[tuple[str, bool], list[Object]] = {}
    for result in devices.get("results", ()):
        if (result.get("driver"), result.get("pool")) == (DRIVER, node):
            key = result["device"], bool(result.get("adminAccess"))
            found.setdefault(key, []).append(result)
    return tuple(
        _allocated(device, is_admin, results) for (device, is_admin), results in found.items()
    )


def _allocated(device: str, is_admin: bool, results: Sequence[Object]) -> Allocated:  # noqa: FBT001
    names = tuple(result["request"] for result in results)
    # A container names the request; which of its alternatives was taken does not matter to it.
    requests = tuple(dict.fromkeys(map(_request, names)))
    consumed = tuple(dict.fromkeys(_consumed(result) for result in results))
    shares = tuple(
        (_request(result["request"]), result["shareID"])
        for result in results
        if "shareID" in result
    )
    return Allocated(device, requests, is_admin, names, consumed, shares)


def _consumed(result: Object) -> tuple[int, int] | None:
    found = result.get("consumedCapacity") or {}
    if MEMORY not in found:
        return None
    memory, cores = (quantity.parse(str(found.get(name, "0"))) for name in (MEMORY, CORES))
    if memory is None or memory < MIB or cores is None or cores > PERCENT:
        raise RequestError(
            f"the claim has a share of {result['device']} that is none: memory {found[MEMORY]}, "
            f"cores {found.get(CORES, 0)}",
            hint="memory counts in MiB, and cores in percent",
        )
    return int(memory), int(cores)


def entries(
    devices: Iterable[Allocated], known: Mapping[str, Device], node: str, before: Prepared | None
) -> tuple[Entry, ...]:
    """Return the devices of a claim; one that is not there now as the claim had it before.

    Raises:
        HostError: the node has no such device, and the claim did not have it.
        RequestError: it has shares of different sizes of one device.
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
    if len(allocated.consumed) > 1:
        raise RequestError(
            f"the claim has shares of different sizes of {device.name}; a client has one limit",
            hint="ask for each by a claim of its own",
        )
    memory, cores = allocated.consumed[0] or (0, 0)
    if allocated.is_admin or memory >= device.capacity.get(MEMORY, 0):
        memory = cores = 0
    return Entry(
        device=device.name, uuid=device.uuid, gpu=device.gpu,
        requests=allocated.requests, is_admin=allocated.is_admin, place=device.place,
        share_mib=memory // MIB, cores=cores, shares=allocated.shares,
        alternatives=tuple(name for name in allocated.alternatives if "/" in name),
    )  # fmt: skip


def excluded(claim: Prepared, other: Prepared) -> HostError:
    """Return why a claim cannot have a device while another one has it."""
    device, share, held = claim.excluded_by(other), claim.share, other.share
    if share and held:
        is_same = share.share_mib == held.share_mib
        kind = "another setting of MEMORY_SHARES" if is_same else f"{held.share_mib}Mi"
        return HostError(
            f"{device} has shares of {kind} for claim {other.full_name}, and this claim asks for "
            f"{share.share_mib}Mi",
            hint="the claim is prepared when the pods of the other shares have ended",
        )
    if held:
        return HostError(
            f"{device} is shared by memory for claim {other.full_name}, and this claim asks for "
            "no memory",
            hint="ask for the capacity memory, or for a GPU that no claim has",
        )
    return HostError(
        f"{device} is prepared for claim {other.full_name}",
        hint="the pod of that claim may still end",
    )


def check_sum(claim: Prepared, known: Iterable[Prepared], devices: Iterable[Device]) -> None:
    """Refuse a share with which a GPU would give more memory than it has, whoever asks for it."""
    own = claim.share
    if own is None:
        return
    held = [one.share for one in known if one.uid != claim.uid and one.share]
    sum_mib = sum(share.memory_mib for share in (own, *held) if share.gpu == own.gpu)
    capacity = next((one.capacity.get(MEMORY) for one in devices if one.uuid == own.gpu), None)
    if capacity is not None and sum_mib > capacity // MIB:
        raise HostError(
            f"the shares of {own.device} would have {sum_mib}Mi, and it has {capacity // MIB}Mi",
            hint="the claim is prepared when the pods of other shares have ended",
        )


def _request(name: str) -> str:
    return name.partition("/")[0]
