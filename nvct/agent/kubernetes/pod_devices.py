# SPDX-License-Identifier: Apache-2.0
"""Explains which GPUs a pod has or waits for, from the API server's objects: nvct explain POD.

Two ways lead to a GPU: a resource of a device plugin (nvidia.com/gpu), and a ResourceClaim (DRA).
Contract: the functions below `read` are pure. A note names what the user may not read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from nvct.agent.dra import claims, selectors, slices
from nvct.agent.kubernetes import quantity
from nvct.agent.kubernetes.cluster import (
    EVENT,
    FORBIDDEN,
    NODE,
    NOT_FOUND,
    POD,
    Cluster,
    ClusterError,
    Kind,
    Object,
)
from nvct.errors import UsageError

PREFIX = "nvidia.com/"
ENDED = ("Succeeded", "Failed")
BLOCKS = ("NoSchedule", "NoExecute")
CLASS = Kind(slices.GROUP, "v1", "DeviceClass", "deviceclasses", is_namespaced=False)


@dataclass(slots=True)
class Seen:
    """The API server's objects that concern a pod; lists that may not be read are empty."""

    pod: Object
    nodes: list[Object] = field(default_factory=list)
    pods: list[Object] = field(default_factory=list)
    events: list[Object] = field(default_factory=list)
    claims: list[Object] = field(default_factory=list)
    slices: list[Object] = field(default_factory=list)
    classes: list[Object] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


async def read(cluster: Cluster, namespace: str, name: str) -> Seen:
    """Return the API server's objects that concern a pod.

    UsageError if the pod does not exist; ClusterError if the API server does not answer, or the
    pod may not be read.
    """
    pod = await cluster.find(POD, name, namespace)
    if pod is None:
        raise UsageError(
            f"namespace {namespace} has no pod {name!r}",
            hint="--namespace names the pod's namespace",
        )
    seen = Seen(pod)
    seen.events = [
        event
        for event in await _list(cluster, EVENT, seen, namespace)
        if event.get("involvedObject", {}).get("uid") == pod["metadata"].get("uid")
    ]
    seen.nodes = await _list(cluster, NODE, seen)
    seen.pods = await _list(cluster, POD, seen)
    if wanted(pod) or pod["spec"].get("resourceClaims"):
        try:
            version, seen.classes = await slices.newest(
                lambda version: _list(cluster, CLASS._replace(version=version), seen)
            )
        except ClusterError as error:
            if error.status != NOT_FOUND:
                raise
            return seen
        seen.claims = await _list(cluster, claims.kind(version), seen)
        seen.slices = await _list(cluster, slices.kind(version), seen)
    return seen


async def _list(cluster: Cluster, kind: Kind, seen: Seen, namespace: str = "") -> list[Object]:
    try:
        return await cluster.find_all(kind, namespace)
    except ClusterError as error:
        if error.status != FORBIDDEN:
            raise
        seen.notes.append(f"{error.message}: what depends on it is not shown")
        return []


def explanation(seen: Seen) -> Object:
    """Return what is known about the GPUs of a pod, as JSON data."""
    pod, metadata = seen.pod, seen.pod["metadata"]
    return {
        "pod": f"{metadata['namespace']}/{metadata['name']}",
        "phase": pod.get("status", {}).get("phase", "Unknown"),
        "node": pod["spec"].get("nodeName", ""),
        "why": list(_reasons(seen)),
        "resources": [_resource(seen, name, count) for name, count in wanted(pod).items()],
        "claims": [_claim(seen, entry) for entry in _claims(pod)],
        "notes": seen.notes,
    }


def _claims(pod: Object) -> Iterator[Object]:
    """Yield the claims of a pod, and the one that the scheduler makes for extended resources."""
    yield from pod["spec"].get("resourceClaims") or ()
    extended = pod.get("status", {}).get("extendedResourceClaimStatus")
    if extended:
        yield {"name": "", "resourceClaimName": extended["resourceClaimName"]}


def wanted(pod: Object) -> dict[str, int]:
    """Return how many devices of each NVIDIA resource a pod takes from its node.

    Init containers run one after another, before the others; sidecars among them run on.
    """
    running: Counter[str] = Counter()
    most: Counter[str] = Counter()
    for container in pod["spec"].get("initContainers") or ():
        if container.get("restartPolicy") == "Always":
            running.update(_limits(container))
        else:
            most |= running + Counter(_limits(container))
    for container in pod["spec"].get("containers", ()):
        running.update(_limits(container))
    return dict(most | running)


def _limits(container: Object) -> dict[str, int]:
    resources = container.get("resources") or {}
    both = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
    return {name: quantity.count(n) for name, n in both.items() if name.startswith(PREFIX)}


def _reasons(seen: Seen) -> Iterator[str]:
    """Yield Kubernetes' own sentences about why a pod does not run."""
    status = seen.pod.get("status", {})
    texts = [
        condition.get("message")
        for condition in status.get("conditions") or ()
        if condition.get("type") == "PodScheduled" and condition.get("status") != "True"
    ]
    for container in (
        *(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ()),
    ):  # fmt: skip
        waiting = container.get("state", {}).get("waiting") or {}
        texts.append(waiting.get("message") or waiting.get("reason"))
    texts.append(status.get("message"))
    if status.get("phase") != "Running":
        texts += [e.get("message") for e in seen.events if e.get("type") == "Warning"]
    yield from dict.fromkeys(" ".join(text.split()) for text in texts if text)


def _resource(seen: Seen, resource: str, count: int) -> Object:
    nodes = []
    for node in seen.nodes:
        name, status = node["metadata"]["name"], node.get("status", {})
        capacity = quantity.count((status.get("capacity") or {}).get(resource, 0))
        offered = quantity.count((status.get("allocatable") or {}).get(resource, 0))
        if capacity or offered:
            takers = _takers(seen, name, resource)
            free = max(0, offered - sum(takers.values()))
            nodes.append(
                {"node": name, "capacity": capacity, "offered": offered, "free": free,
                 "taken": takers}
            )  # fmt: skip
    by_claim = [
        of_class["metadata"]["name"]
        for of_class in seen.classes
        if of_class["spec"].get("extendedResourceName") == resource
    ]
    requests = [
        _request(seen, {"name": name, "class": name, "count": count, "expressions": []},
                 with_counts=True)
        for name in by_claim
    ]  # fmt: skip
    return {"resource": resource, "count": count, "nodes": nodes, "classes": by_claim,
            "requests": requests}  # fmt: skip


def _takers(seen: Seen, node: str, resource: str) -> dict[str, int]:
    """Return how many devices of a resource each pod of a node has."""
    takers = {}
    for pod in seen.pods:
        is_here = pod["spec"].get("nodeName") == node
        if is_here and pod.get("status", {}).get("phase") not in ENDED:
            count = wanted(pod).get(resource, 0)
            if count:
                takers[f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"] = count
    return takers


def _claim(seen: Seen, entry: Object) -> Object:
    """Return what is known about a claim of the pod."""
    status = seen.pod.get("status", {})
    made = {one["name"]: one.get("resourceClaimName") for one in
            status.get("resourceClaimStatuses") or ()}  # fmt: skip
    name = entry.get("resourceClaimName") or made.get(entry["name"]) or ""
    namespace = seen.pod["metadata"]["namespace"]
    found = next((c for c in seen.claims if _key(c) == (namespace, name)), None)
    if found is None:
        missing = name or f"of template {entry.get('resourceClaimTemplateName', '?')}"
        return {"claim": name, "state": "missing", "missing": missing}
    results = _results(found)
    has = {result["request"].partition("/")[0] for result in results}
    requests = [
        _request(seen, request, with_counts=request["name"].partition("/")[0] not in has)
        for request in requests_of(found)
    ]
    devices = [_allocated(seen, result, requests) for result in results]
    return {
        "claim": name,
        "state": "allocated" if claims.is_allocated(found) else "pending",
        "devices": devices,
        "requests": requests,
        "constraints": list(_constraints(seen, found)),
    }


def requests_of(claim: Object) -> Iterator[Object]:
    """Yield the requests of a claim in one form for all versions: name, class, expressions."""
    for request in claim["spec"].get("devices", {}).get("requests") or ():
        variants = request.get("firstAvailable") or [request.get("exactly") or request]
        for variant in variants:
            is_alternative = bool(request.get("firstAvailable"))
            name = f"{request['name']}/{variant['name']}" if is_alternative else request["name"]
            yield {
                "name": name,
                "class": variant.get("deviceClassName", ""),
                "count": "all" if variant.get("allocationMode") == "All"
                else variant.get("count", 1),
                "expressions": _expressions(variant),
                "memory": (variant.get("capacity") or {}).get("requests", {}).get("memory", ""),
            }  # fmt: skip


def _expressions(owner: Object) -> list[str]:
    found = (one.get("cel", {}).get("expression") for one in owner.get("selectors") or ())
    return [expression for expression in found if expression]


def _request(seen: Seen, request: Object, *, with_counts: bool) -> Object:
    of_class = next((c for c in seen.classes if c["metadata"]["name"] == request["class"]), None)
    expressions = [*(_expressions(of_class["spec"]) if of_class else ()), *request["expressions"]]
    explained = {**request, "expressions": expressions, "class exists": of_class is not None}
    if not with_counts:
        return explained
    every = list(_devices(seen.slices))
    of_driver = [one for one in every if _fits(one, _expressions(of_class["spec"]))
                 is not False] if of_class else []  # fmt: skip
    fitting = [one for one in of_driver if _fits(one, expressions) is not False]
    taken = _taken(seen, fitting, request.get("memory", ""))
    explained["devices"] = len(of_driver)
    explained["terms"] = [
        {"term": term, "fits": sum(selectors.holds(term, d["driver"], d["device"]) is True
                                   for d in of_driver),
         "unknown": sum(selectors.holds(term, d["driver"], d["device"]) is None
                        for d in of_driver),
         **_lacking(term, of_driver)}
        for expression in expressions for term in selectors.terms(expression)
    ]  # fmt: skip
    explained["fitting"] = [
        {"device": one["device"]["name"], "node": one["pool"], "about": _about(one["device"]),
         "certain": _fits(one, expressions) is True, "taken": taken.get(_place(one), ""),
         "tainted": _is_tainted(one["device"])}
        for one in fitting
    ]  # fmt: skip
    free = [
        one for one in fitting if not taken.get(_place(one)) and not _is_tainted(one["device"])
    ]
    explained["most free on a node"] = _most_on_a_node(free)
    return explained


def _lacking(term: str, found: Sequence[Object]) -> Object:
    """Return the attribute of a term that no device has, and advice on what to select by."""
    driver = found[0]["driver"] if found else ""
    lacking, advice = selectors.lacking(term, driver, [one["device"] for one in found])
    return {"lacking": lacking, "advice": advice} if lacking else {}


def _constraints(seen: Seen, claim: Object) -> Iterator[str]:
    """Yield the attributes of a claim's constraints that no device has."""
    found = list(_devices(seen.slices))
    driver = found[0]["driver"] if found else ""
    for constraint in claim["spec"].get("devices", {}).get("constraints") or ():
        for key in ("matchAttribute", "distinctAttribute"):
            attribute = constraint.get(key) or ""
            devices = [one["device"] for one in found]
            if attribute and selectors.unknown(attribute, driver, devices):
                yield attribute


def _most_on_a_node(found: Sequence[Object]) -> int:
    """Return how many of these devices a pod can have at most, on any one node."""
    counts = Counter(one["of node"] for one in found)
    reachable_from_others = counts.pop("", 0)
    return reachable_from_others + max(counts.values(), default=0)


def _fits(one: Object, expressions: Sequence[str]) -> bool | None:
    results = [selectors.holds(each, one["driver"], one["device"]) for each in expressions]
    return False if False in results else None if None in results else True


def _devices(found: Sequence[Object]) -> Iterator[Object]:
    """Yield each device of the newest generation of its pool.

    `of node` is the only node on which a pod can use the device; "" if several can.
    """
    newest: dict[tuple[str, str], int] = {}
    for each in found:
        spec = each["spec"]
        key = spec["driver"], spec["pool"]["name"]
        newest[key] = max(newest.get(key, 0), spec["pool"].get("generation", 0))
    for each in found:
        spec = each["spec"]
        driver, pool = spec["driver"], spec["pool"]["name"]
        if spec["pool"].get("generation", 0) == newest[driver, pool]:
            for device in spec.get("devices") or ():
                of_node = selectors.body(device).get("nodeName") or spec.get("nodeName") or ""
                yield {"driver": driver, "pool": pool, "device": device, "of node": of_node}


def _place(one: Object) -> tuple[str, str, str]:
    return one["driver"], one["pool"], one["device"]["name"]


def _taken(seen: Seen, devices: Sequence[Object], memory: str) -> dict[tuple[str, str, str], str]:
    """Return who has each device, by driver, pool and name: pods, or claims without a pod.

    A device that claims have parts of is free as long as it has the requested memory.
    """
    users: dict[tuple[str, str, str], list[str]] = {}
    parts: dict[tuple[str, str, str], list[str]] = {}
    for claim in seen.claims:
        for result in _results(claim):
            if not result.get("adminAccess"):
                place = result["driver"], result["pool"], result["device"]
                users.setdefault(place, []).append(_user(claim))
                consumed = (result.get("consumedCapacity") or {}).get("memory", "")
                parts.setdefault(place, []).append(consumed)
    for one in devices:
        if selectors.has_room(one["device"], parts.get(_place(one), ()), memory):
            users.pop(_place(one), None)
    return {place: ", ".join(sorted(names)) for place, names in users.items()}


def _user(claim: Object) -> str:
    namespace, name = _key(claim)
    pods = [one["name"] for one in claim["status"].get("reservedFor") or ()
            if one.get("resource") == "pods"]  # fmt: skip
    return ", ".join(f"{namespace}/{pod}" for pod in pods) or f"claim {namespace}/{name}"


def _results(claim: Object) -> list[Object]:
    allocation = claim.get("status", {}).get("allocation") or {}
    return list(allocation.get("devices", {}).get("results") or ())


def _allocated(seen: Seen, result: Object, requests: Sequence[Object]) -> Object:
    key = result["driver"], result["pool"], result["device"]
    device: Object = next(
        (one["device"] for one in _devices(seen.slices)
         if _place(one) == key), {}
    )  # fmt: skip
    request = next((one for one in requests if one["name"] == result["request"]), {})
    return {
        "device": result["device"],
        "node": result["pool"],
        "request": result["request"],
        "about": _about(device),
        "because": request.get("expressions", []),
    }


def _about(device: Object) -> str:
    """Return model, MIG profile and memory of a device."""
    content: dict[str, Any] = selectors.body(device)
    attributes, capacity = content.get("attributes") or {}, content.get("capacity") or {}
    words = [(attributes.get(name) or {}).get("string") for name in ("productName", "profile")]
    words.append((capacity.get("memory") or {}).get("value"))
    return ", ".join(word for word in words if word)


def _is_tainted(device: Object) -> bool:
    return any(t.get("effect") in BLOCKS for t in selectors.body(device).get("taints") or ())


def _key(claim: Object) -> tuple[str, str]:
    return claim["metadata"].get("namespace", ""), claim["metadata"]["name"]
