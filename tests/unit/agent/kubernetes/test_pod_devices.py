# SPDX-License-Identifier: Apache-2.0
"""nvct explain POD: which devices a pod has, or why it waits, of objects of an API server."""

import asyncio
from typing import Any

import pytest

from nvct.agent.dra import claims, slices
from nvct.agent.kubernetes import pod_devices
from nvct.agent.kubernetes.cluster import (
    EVENT,
    FORBIDDEN,
    NODE,
    NOT_FOUND,
    POD,
    ClusterError,
    Kind,
)
from nvct.cli import cluster as cluster_command
from nvct.errors import UsageError

Object = dict[str, Any]
CLASSES = Kind(slices.GROUP, "v1", "DeviceClass", "deviceclasses", is_namespaced=False)
MEMORY = "device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('80Gi')) >= 0"
OF_DRIVER = "device.driver == 'gpu.nvidia.com'"


class FakeCluster:
    """Stands for `nvct.agent.kubernetes.cluster.Cluster`: objects by kind, kinds that may not be listed."""

    def __init__(self, *, old: bool = False) -> None:
        self.objects: dict[str, list[Object]] = {}
        self.forbidden: set[str] = set()
        self._version = "v1beta1" if old else "v1"

    def put(self, kind: Kind, *objects: Object) -> None:
        self.objects.setdefault(kind.plural, []).extend(objects)

    async def find(self, kind: Kind, name: str, namespace: str = "") -> Object | None:
        found = self.objects.get(kind.plural, [])
        return next((o for o in found if o["metadata"]["name"] == name
                     and o["metadata"]["namespace"] == namespace), None)  # fmt: skip

    async def find_all(self, kind: Kind, namespace: str = "") -> list[Object]:
        if kind.group == slices.GROUP and kind.version != self._version:
            raise ClusterError("no such version", status=NOT_FOUND)
        if kind.plural in self.forbidden:
            raise ClusterError(f"anna may not list {kind.plural}", status=FORBIDDEN)
        found = self.objects.get(kind.plural, [])
        return [o for o in found if namespace in ("", o["metadata"].get("namespace"))]


def pod(name: str, *, gpus: int = 0, node: str = "", phase: str = "", **spec: Any) -> Object:
    limits = {"nvidia.com/gpu": str(gpus)} if gpus else {}
    containers = [{"name": "main", "resources": {"limits": limits}}]
    return {
        "metadata": {"name": name, "namespace": "team", "uid": name},
        "spec": {"containers": containers, "nodeName": node, **spec},
        "status": {"phase": phase or ("Running" if node else "Pending")},
    }


def node(name: str, offered: int, capacity: int | None = None) -> Object:
    counts = {"capacity": {"nvidia.com/gpu": str(capacity or offered)},
              "allocatable": {"nvidia.com/gpu": str(offered)}}  # fmt: skip
    return {"metadata": {"name": name}, "status": counts}


def gpu(name: str, memory: str, **more: Any) -> Object:
    return {"name": name, "attributes": {"productName": {"string": "NVIDIA H100"}},
            "capacity": {"memory": {"value": memory}}, **more}  # fmt: skip


def slice_of(name: str, *devices: Object, generation: int = 1, **more: Any) -> Object:
    pool = {"name": name, "generation": generation, "resourceSliceCount": 1}
    spec = {"driver": "gpu.nvidia.com", "pool": pool, "devices": list(devices),
            **(more or {"nodeName": name})}  # fmt: skip
    return {"metadata": {"name": f"{name}-{generation}"}, "spec": spec}


def claim(name: str, *expressions: str, device: tuple[str, str] | None = None,
          user: str = "", **more: Any) -> Object:  # fmt: skip
    exactly = {"deviceClassName": "gpu.nvidia.com", "count": 1,
               "selectors": [{"cel": {"expression": one}} for one in expressions], **more}  # fmt: skip
    made: Object = {"metadata": {"name": name, "namespace": "team"}, "status": {},
                    "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}}  # fmt: skip
    if device:
        result = {"request": "gpu", "driver": "gpu.nvidia.com", "pool": device[0],
                  "device": device[1]}  # fmt: skip
        made["status"] = {"allocation": {"devices": {"results": [result]}},
                          "reservedFor": [{"resource": "pods", "name": user}]}  # fmt: skip
    return made


@pytest.fixture
def cluster() -> FakeCluster:
    made = FakeCluster()
    gpu_class = {"metadata": {"name": "gpu.nvidia.com"},
                 "spec": {"selectors": [{"cel": {"expression": OF_DRIVER}}]}}  # fmt: skip
    made.put(CLASSES, gpu_class)
    return made


def waits_for(cluster: FakeCluster, *asked: Object, slices_: tuple[Object, ...] = ()) -> str:
    """Let pod train wait for the first of some claims; return what is said of it."""
    name = asked[0]["metadata"]["name"]
    cluster.put(POD, pod("train", resourceClaims=[{"name": "g", "resourceClaimName": name}]))
    cluster.put(claims.kind("v1"), *asked)
    cluster.put(slices.kind("v1"), *slices_)
    return lines(cluster)


def told(cluster: FakeCluster, name: str = "train") -> Object:
    stand_in: Any = cluster
    return pod_devices.explanation(asyncio.run(pod_devices.read(stand_in, "team", name)))


def lines(cluster: FakeCluster, name: str = "train") -> str:
    return "\n".join(cluster_command.text(told(cluster, name)))


def test_a_missing_pod_is_an_error(cluster: FakeCluster) -> None:
    with pytest.raises(UsageError, match="namespace team has no pod 'train'"):
        told(cluster)


def test_a_pod_that_waits_is_told_who_has_the_gpus_of_each_node(cluster: FakeCluster) -> None:
    cluster.put(NODE, node("x", 8), node("y", 1, capacity=2), node("cpu", 0))
    cluster.put(
        POD, pod("train", gpus=2), pod("a", gpus=4, node="x"), pod("b", gpus=4, node="x"),
        pod("done", gpus=8, node="x", phase="Succeeded"),
    )  # fmt: skip

    said = lines(cluster)

    assert "team/train: Pending, on no node yet" in said
    assert "node x has 8, 8 taken by team/a (4), team/b (4)" in said
    assert "node y has 1, 0 taken; 1 more are unhealthy" in said
    assert "node cpu" not in said


def test_sidecars_take_their_gpus_beside_the_other_containers() -> None:
    def container(gpus: int, **more: str) -> Object:
        return {"resources": {"limits": {"nvidia.com/gpu": str(gpus)}}, **more}

    sidecar = container(2, restartPolicy="Always")
    for initial, count in (
        ([container(1), sidecar], 5), ([sidecar, container(4)], 6), ([container(4), sidecar], 5),
    ):  # fmt: skip
        made = pod("p", gpus=3, initContainers=initial)
        assert pod_devices.wanted(made) == {"nvidia.com/gpu": count}
    assert pod_devices.wanted(pod("p", initContainers=[container(0)])) == {}


def test_counts_may_have_units(cluster: FakeCluster) -> None:
    """The API server writes 3000 as 3k: shared GPUs, or their memory in other software."""
    shared = node("x", 0)
    shared["status"]["allocatable"] = {"nvidia.com/gpu": "2k", "nvidia.com/gpumem": "240k"}
    user = pod("user", gpus=1, node="x")
    user["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpumem"] = "3k"
    cluster.put(NODE, shared)
    cluster.put(POD, pod("train", gpus=1), user)

    assert "node x has 2000, 1 taken by team/user (1)" in lines(cluster)


def test_what_kubernetes_says_is_shown_and_explained(cluster: FakeCluster) -> None:
    waiting = pod("train", gpus=1)
    message = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu.\x1b[2J"
    waiting["status"]["conditions"] = [
        {"type": "PodScheduled", "status": "False", "message": message}
    ]
    cluster.put(POD, waiting)
    event = {"type": "Warning", "message": "other", "involvedObject": {"uid": "train"},
             "metadata": {"namespace": "team"}}  # fmt: skip
    cluster.put(EVENT, event, {**event, "involvedObject": {"uid": "b"}, "message": "not mine"})

    said = lines(cluster)

    assert "cause: No node has so many free GPUs of this resource." in said
    assert "no node offers nvidia.com/gpu" in said
    assert "Kubernetes says: other" in said
    assert "not mine" not in said
    assert "\x1b" not in said


def test_a_claim_that_nothing_fits_is_told_what_fits_and_who_has_it(cluster: FakeCluster) -> None:
    taints = [{"key": "k", "effect": "NoSchedule"}]
    said = waits_for(
        cluster, claim("big", MEMORY), claim("one", device=("n1", "gpu-0"), user="a"),
        claim("two", device=("n2", "gpu-0"), user="b"),
        slices_=(
            slice_of("n1", gpu("gpu-0", "80Gi"), gpu("gpu-1", "40Gi"), generation=2),
            slice_of("n1", gpu("gpu-9", "80Gi"), generation=1),
            slice_of("n2", gpu("gpu-0", "80Gi"), gpu("gpu-1", "80Gi", taints=taints)),
        ),
    )  # fmt: skip
    assert "request gpu (1 of class gpu.nvidia.com): 3 of 4 devices fit, 0 of them free" in said
    assert f"3     {MEMORY}" in said
    assert "gpu-0 of n1 (NVIDIA H100, 80Gi): taken by team/a" in said
    assert "gpu-0 of n2 (NVIDIA H100, 80Gi): taken by team/b" in said
    assert "gpu-1 of n2 (NVIDIA H100, 80Gi): tainted" in said


def test_an_attribute_or_a_constraint_that_no_device_has_is_named(cluster: FakeCluster) -> None:
    by_index = "device.attributes['gpu.nvidia.com'].index == 0"
    by_name = "device.attributes['gpu.nvidia.com'].product == 'NVIDIA H100'"
    asked = claim("one", f"{by_index} && {by_name}")
    asked["spec"]["devices"]["constraints"] = [
        {"matchAttribute": "gpu.nvidia.com/parentUUID"},
        {"matchAttribute": "gpu.nvidia.com/productName"},
    ]
    said = waits_for(cluster, asked, slices_=(slice_of("n1", gpu("gpu-0", "80Gi")),))
    assert f"?     {by_index}  (no device has the attribute index: use uuid)" in said
    assert "(no device has the attribute product: they have productName)" in said
    assert "constraint gpu.nvidia.com/parentUUID: no device has this attribute" in said
    assert said.count("constraint") == 1


PAIR = (gpu("gpu-0", "80Gi"), gpu("gpu-1", "80Gi"))


@pytest.mark.parametrize(
    ("count", "more", "said"),
    [
        (1, (), "4 of 4 devices fit, 3 of them free"),
        (3, (), "4 of 4 devices fit, 3 of them free, at most 2 on one node"),
        (4, (), "4 of 4 devices fit, 3 of them free"),
        ("All", (), "4 of 4 devices fit, 3 of them free"),
        (4, (slice_of("any", PAIR[0], allNodes=True),), "4 of them free, at most 3 on one node"),
    ],
)
def test_free_devices_of_several_nodes_are_not_enough_for_a_request(
    cluster: FakeCluster, count: int | str, more: tuple[Object, ...], said: str
) -> None:
    mode = {"allocationMode": "All"} if count == "All" else {"count": count}
    found = waits_for(
        cluster, claim("big", MEMORY, **mode), claim("one", device=("n2", "gpu-1"), user="a"),
        slices_=(slice_of("n1", *PAIR), slice_of("n2", *PAIR), *more),
    )  # fmt: skip
    (line,) = (each for each in found.splitlines() if "request gpu" in each)
    assert line.endswith(said)


def test_a_claim_that_has_a_device_is_told_by_which_expression(cluster: FakeCluster) -> None:
    waits = {"name": "g", "resourceClaimTemplateName": "t"}
    running = pod("train", node="n1", resourceClaims=[waits])
    running["status"]["resourceClaimStatuses"] = [{"name": "g", "resourceClaimName": "train-g-x"}]
    cluster.put(POD, running)
    cluster.put(
        claims.kind("v1"), claim("train-g-x", MEMORY, device=("n1", "gpu-0"), user="train")
    )
    cluster.put(slices.kind("v1"), slice_of("n1", gpu("gpu-0", "80Gi")))

    said = lines(cluster)

    assert "claim train-g-x: allocated" in said
    assert "has gpu-0 of n1 (NVIDIA H100, 80Gi) for gpu" in said
    assert f"because {MEMORY}" in said


def test_an_expression_that_is_not_understood_is_said_to_be_so(cluster: FakeCluster) -> None:
    odd = "device.attributes['gpu.nvidia.com'].productName.matches('H1')"
    said = waits_for(cluster, claim("big", odd), slices_=(slice_of("n1", PAIR[0]),))
    assert "1 of 1 devices fit or may fit" in said
    assert f"?     {odd}  (nvct cannot evaluate it" in said


def test_a_claim_or_class_that_is_missing(cluster: FakeCluster) -> None:
    cluster.put(POD, pod("train", resourceClaims=[
        {"name": "g", "resourceClaimName": "gone"},
        {"name": "h", "resourceClaimTemplateName": "t"},
        {"name": "i", "resourceClaimName": "odd"},
    ]))  # fmt: skip
    cluster.put(claims.kind("v1"), claim("odd", deviceClassName="none"))

    said = lines(cluster)

    assert "claim gone: it does not exist" in said
    assert "claim of template t: Kubernetes has not made it" in said
    assert "there is no DeviceClass none" in said


def test_a_claim_of_a_pod_that_has_ended_is_gone(cluster: FakeCluster) -> None:
    done = pod("train", phase="Succeeded", node="n1", resourceClaims=[
        {"name": "g", "resourceClaimTemplateName": "t"},
    ])  # fmt: skip
    done["status"]["resourceClaimStatuses"] = [{"name": "g", "resourceClaimName": "train-g-x"}]
    cluster.put(POD, done)

    assert "claim train-g-x: it was deleted when the pod ended" in lines(cluster)


def test_no_remedy_names_the_command_that_prints_it(cluster: FakeCluster) -> None:
    waiting = pod("train", resourceClaims=[{"name": "g", "resourceClaimName": "gone"}])
    message = "0/1 nodes are available: 1 cannot allocate all claims."
    waiting["status"]["conditions"] = [
        {"type": "PodScheduled", "status": "False", "message": message}
    ]
    cluster.put(POD, waiting)

    said = lines(cluster)

    assert "cause: No node has free devices" in said
    assert "do:" not in said


def test_a_resource_that_is_given_by_a_claim(cluster: FakeCluster) -> None:
    cluster.objects[CLASSES.plural][0]["spec"]["extendedResourceName"] = "nvidia.com/gpu"
    running = pod("train", gpus=1, node="n1")
    running["status"]["extendedResourceClaimStatus"] = {"resourceClaimName": "train-x"}
    cluster.put(POD, running, pod("waits", gpus=1))
    cluster.put(claims.kind("v1"), claim("train-x", device=("n1", "gpu-0"), user="train"))
    cluster.put(slices.kind("v1"), slice_of("n1", gpu("gpu-0", "80Gi")))

    assert "has gpu-0 of n1 (NVIDIA H100, 80Gi) for gpu" in lines(cluster)
    said = lines(cluster, "waits")
    assert "devices of class gpu.nvidia.com satisfy it, too (DRA): 1 of 1 devices fit" in said
    assert "fit, 0 of them free" in said
    assert "no node offers" not in said


@pytest.mark.parametrize(
    ("memory", "policy", "free"),
    [
        ("20Gi", {"validRange": {"min": "1Gi"}}, 2), ("30Gi", {"validRange": {"min": "1Gi"}}, 1),
        ("", {"validRange": {"min": "1Gi"}}, 1), ("1Gi", {"validValues": ["30Gi", "80Gi"]}, 1),
        ("25Gi", {"validValues": ["27Gi", "80Gi"]}, 2),
    ],
)  # fmt: skip
def test_a_gpu_of_which_claims_have_parts_is_free_while_it_has_the_memory(
    cluster: FakeCluster, memory: str, policy: Object, free: int
) -> None:
    shared = [gpu(f"gpu-{n}", "80Gi", allowMultipleAllocations=True) for n in range(2)]
    for one in shared:
        one["capacity"]["memory"]["requestPolicy"] = {"default": "80Gi", **policy}
    held = [claim(f"has-{n}", device=("n1", "gpu-0"), user=f"pod-{n}") for n in range(2)]
    for has in held:
        (result,) = has["status"]["allocation"]["devices"]["results"]
        result["consumedCapacity"] = {"memory": "26Gi"}
    asked = claim("c", capacity={"requests": {"memory": memory}} if memory else None)
    shown = waits_for(cluster, asked, *held, slices_=(slice_of("n1", *shared),))
    assert f"2 of 2 devices fit, {free} of them free" in shown
    assert ("taken by team/pod-0, team/pod-1" in shown) == (free == 1)


def test_a_class_of_which_no_node_has_a_device(cluster: FakeCluster) -> None:
    cluster.objects[CLASSES.plural][0]["spec"]["extendedResourceName"] = "nvidia.com/gpu"
    cluster.put(POD, pod("by-resource", gpus=1),
                pod("by-claim", resourceClaims=[{"name": "g", "resourceClaimName": "c"}]))  # fmt: skip
    cluster.put(claims.kind("v1"), claim("c"))

    assert "satisfy it, too (DRA): no node offers one" in lines(cluster, "by-resource")
    assert "(1 of class gpu.nvidia.com): no node offers one" in lines(cluster, "by-claim")


def test_an_older_version_of_the_api_and_alternatives() -> None:
    cluster = FakeCluster(old=True)
    made = claim("big")
    made["spec"]["devices"]["requests"] = [
        {"name": "gpu", "firstAvailable": [{"name": "big", "deviceClassName": "c"},
                                           {"name": "small", "deviceClassName": "c"}]},
    ]  # fmt: skip
    cluster.put(POD, pod("train", resourceClaims=[{"name": "g", "resourceClaimName": "big"}]))
    cluster.put(claims.kind("v1beta1"), made)
    basic = {"name": "gpu-0", "basic": {"capacity": {"memory": {"value": "80Gi"}}}}
    cluster.put(slices.kind("v1beta1"), slice_of("n1", basic))
    cluster.put(CLASSES, {"metadata": {"name": "c"}, "spec": {}})

    said = lines(cluster)

    assert "request gpu/big (1 of class c): 1 of 1 devices fit, 1 of them free" in said
    assert "request gpu/small" in said


def test_what_the_user_may_not_read_is_a_note(cluster: FakeCluster) -> None:
    cluster.put(POD, pod("train", gpus=1))
    cluster.forbidden |= {"nodes", "pods", "events"}

    assert "note: anna may not list nodes: what depends on it is not shown" in lines(cluster)


def test_a_pod_without_a_gpu(cluster: FakeCluster) -> None:
    cluster.put(POD, pod("train"))

    assert "asks for no GPU" in lines(cluster)
