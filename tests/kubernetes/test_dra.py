# SPDX-License-Identifier: Apache-2.0
"""nvct's DRA driver with the real scheduler and kubelet: pods get the GPUs that they describe.

The driver runs on the node. A second Node has no kubelet: its slices have other GPUs.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from nvct.agent import convert_claims
from nvct.agent.device_plugin.resources import GPU
from nvct.agent.dra import slices
from nvct.agent.dra.devices import MIB, Device, Offer, Version
from nvct.agent.dra.journal import FILE
from nvct.agent.dra.settings import PLUGINS
from tests.engines.box import DRIVER_ROOT, PROGRAMS
from tests.engines.checks import UUID
from tests.engines.releases import of_release
from tests.kubernetes.api import PODS, wait
from tests.kubernetes.cluster import FOLDER, KUBECONFIG, NODE, Cluster
from tests.kubernetes.device_plugin import GPUS, LIST, smi
from tests.kubernetes.device_plugin import asks as asks_for
from tests.kubernetes.pods import Pod, run, run_all
from tests.kubernetes.test_exporter import exporter, of_pod, series

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.slow,
    pytest.mark.parametrize("cluster", [of_release("trixie")], indirect=True),
]
TIMEOUT_S = 60.0
API = "/apis/resource.k8s.io/v1"
CLAIMS = f"{API}/namespaces/default/resourceclaims"
MIG_UUID = re.compile(r"UUID: (MIG-[0-9a-f-]+)")
FAR = "far"
"""The second Node."""
RIGHTS = """
rules:
- {apiGroups: [""], resources: [nodes], verbs: [get]}
- {apiGroups: [resource.k8s.io], resources: [resourceclaims], verbs: [get]}
- apiGroups: [resource.k8s.io]
  resources: [resourceslices]
  verbs: [list, watch, create, patch, delete]
"""
OF_TYPE = "device.driver == 'gpu.nvidia.com' && {}.type == '{}'"
MEMORY = "device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('{}')) >= 0"
ATTRIBUTES = "device.attributes['gpu.nvidia.com']"
COMPUTE = f"{ATTRIBUTES}.cudaComputeCapability.compareTo(semver('8.0.0')) >= 0"
LARGE = f"{MEMORY.format('40Gi')} && {COMPUTE} && {ATTRIBUTES}.ecc"
TESLA = " && ".join(
    convert_claims.condition(f"nvidia.com/gpu.{key}", operator, [value])
    for key, operator, value in (
        ("product", "In", "Tesla-T4"), ("family", "In", "turing"), ("memory", "Lt", "16000"),
        ("compute.major", "In", "7"), ("compute.minor", "Gt", "4"), ("ecc", "In", "false"),
    )
)  # fmt: skip
"""As `nvct convert --claims` writes it."""
HUGE = MEMORY.format("200Gi")


class Driver:
    """The driver's process on the node."""

    def __init__(self, cluster: Cluster, kubeconfig: str) -> None:
        self._cluster = cluster
        self._words = [
            f"{PROGRAMS}/python", "-I", "-m", "nvct.agent.dra.main",
            f"--container-driver-root={DRIVER_ROOT}", f"--nvidia-driver-root={DRIVER_ROOT}",
            f"--nvidia-cdi-hook-path={PROGRAMS}/nvidia-cdi-hook", f"--node-name={NODE}",
            f"--kubeconfig={kubeconfig}", "--mig-devices=on-demand",
        ]  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        before = self.log().count("Registered DRA driver")
        self._process = self._cluster.box.start(self._words, "dra.log")
        assert wait(lambda: self.log().count("Registered DRA driver") > before, TIMEOUT_S), (
            self.log()
        )
        assert wait(lambda: len(devices(self._cluster)) == GPUS, TIMEOUT_S), self.log()

    def kill(self) -> None:
        assert self._process is not None
        self._cluster.box.call("pkill", "-KILL", "-f", "nvct.agent.dra.main")
        self._process.wait(TIMEOUT_S)

    def log(self) -> str:
        with contextlib.suppress(FileNotFoundError):
            return (Path(self._cluster.box.work) / "dra.log").read_text(errors="replace")
        return ""

    def journal(self) -> list[str]:
        document = json.loads(self._cluster.box.read(f"{PLUGINS}/gpu.nvidia.com/{FILE}"))
        return sorted(claim["name"] for claim in document["claims"])


@pytest.fixture(scope="module")
def driver(node: Cluster) -> Iterator[Driver]:
    """Yield the driver of a node whose slices are there, beside a Node of other GPUs."""
    for kind in ("gpu", "mig"):
        expression = OF_TYPE.format(ATTRIBUTES, kind)
        spec: dict[str, Any] = {"selectors": [{"cel": {"expression": expression}}]}
        if kind == "gpu":
            spec["extendedResourceName"] = GPU
        manifest = {"metadata": {"name": f"{kind}.nvidia.com"}, "spec": spec}
        node.api.create(f"{API}/deviceclasses", manifest)
    make_far_node(node)
    made = Driver(node, account(node))
    made.start()
    try:
        yield made
    finally:
        made.kill()


def account(cluster: Cluster) -> str:
    """Return the kubeconfig of an account with the rights that the documentation lists."""
    cluster.kubectl("create", "serviceaccount", "dra")
    role = f"{FOLDER}/dra-role.yaml"
    kind = "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: dra}"
    cluster.box.write(role, f"{kind}{RIGHTS}")
    cluster.kubectl("create", "-f", role)
    cluster.kubectl(
        "create", "clusterrolebinding", "dra", "--clusterrole=dra", "--serviceaccount=default:dra"
    )
    config = json.loads(cluster.box.read(KUBECONFIG))
    token = cluster.kubectl("create", "token", "dra").strip()
    config["users"][0]["user"] = {"token": token}
    path = f"{FOLDER}/dra.kubeconfig"
    cluster.box.write(path, json.dumps(config))
    return path


def make_far_node(cluster: Cluster) -> None:
    resources = {"cpu": "4", "memory": "8Gi", "pods": "10"}
    cluster.api.create(
        "/api/v1/nodes",
        {
            "metadata": {"name": FAR},
            "status": {"capacity": resources, "allocatable": resources},
        },
    )
    found = cluster.api.find(f"/api/v1/nodes/{FAR}")
    assert found is not None
    tesla = Device(
        name="gpu-0", uuid="GPU-far", gpu="GPU-far", capacity={"memory": 15360 * MIB},
        attributes={
            "type": "gpu", "uuid": "GPU-far", "productName": "Tesla T4", "ecc": False,
            "cudaComputeCapability": Version("7.5.0"), "architecture": "Turing",
        },
    )  # fmt: skip
    for manifest in slices.changes(
        [], slices.contents(Offer(devices=(tesla,)), "v1"), found
    ).apply:
        cluster.api.create(f"{API}/resourceslices", manifest)


def devices(cluster: Cluster) -> dict[str, str]:
    """Return the UUIDs of the node's devices by name."""
    found = cluster.api.find(f"{API}/resourceslices?fieldSelector=spec.nodeName%3D{NODE}")
    assert found is not None
    return {
        device["name"]: device["attributes"].get("uuid", {}).get("string", "")
        for one in found["items"]
        for device in one["spec"].get("devices", ())
    }


def claim(
    cluster: Cluster,
    name: str,
    expression: str = "",
    count: int = 1,
    device_class: str = "gpu.nvidia.com",
) -> None:
    """Create a claim; without an expression, for GPUs of the node with a kubelet."""
    selector = {"cel": {"expression": expression or f"{ATTRIBUTES}.productName != 'Tesla T4'"}}
    request: dict[str, Any] = {
        "deviceClassName": device_class, "count": count, "selectors": [selector]
    }  # fmt: skip
    spec = {"devices": {"requests": [{"name": "gpu", "exactly": request}]}}
    cluster.api.create(CLAIMS, {"metadata": {"name": name}, "spec": spec})


def asks(*names: str, script: str = f"{LIST}; sleep 2", **more: Any) -> Pod:
    """Return a pod that has claims."""
    return Pod(
        script=script,
        container={"resources": {"claims": [{"name": name} for name in names]}},
        spec={
            "resourceClaims": [{"name": name, "resourceClaimName": name} for name in names],
            # The second node is never ready.
            "tolerations": [{"operator": "Exists"}],
            **more,
        },
    )


def allocated(cluster: Cluster, name: str) -> list[str]:
    """Return the names of a claim's devices with the pool, [] if it has none."""
    found = cluster.api.find(f"{CLAIMS}/{name}")
    assert found is not None
    allocation = found.get("status", {}).get("allocation", {})
    return [
        f"{result['pool']}/{result['device']}"
        for result in allocation.get("devices", {}).get("results", ())
    ]


@contextlib.contextmanager
def pod(cluster: Cluster, name: str, content: Pod) -> Iterator[None]:
    cluster.api.create(PODS, content.manifest(name))
    try:
        yield
    finally:
        cluster.api.delete(f"{PODS}/{name}")
        assert wait(lambda: cluster.api.find(f"{PODS}/{name}") is None, TIMEOUT_S)


def runs(cluster: Cluster, name: str) -> bool:
    found = cluster.api.find(f"{PODS}/{name}")
    return bool(found and found["status"]["phase"] == "Running")


def scheduled_to(cluster: Cluster, name: str) -> str:
    found = cluster.api.find(f"{PODS}/{name}")
    return str(found["spec"].get("nodeName", "")) if found else ""


def test_pods_get_the_gpus_that_they_describe_and_no_others(node: Cluster, driver: Driver) -> None:
    claim(node, "large", LARGE)
    claim(node, "two", f"{ATTRIBUTES}.architecture == 'Hopper'", 2)
    claim(node, "first")
    claim(node, "second", LARGE)
    claim(node, "huge", HUGE)
    claim(node, "tesla", TESLA)
    written = driver.log().count("were written")
    with pod(node, "huge", asks("huge")), pod(node, "tesla", asks("tesla")):
        asked = {
            "large": asks("large"),
            "two": asks("two"),
            "both": asks("first", "second"),
            "plain": asks_for(1, f"{LIST}; sleep 2", GPU, runtime_class=""),
        }
        results = run_all(node.api, asked)
        assert wait(lambda: scheduled_to(node, "tesla") == FAR, TIMEOUT_S)
        assert allocated(node, "tesla") == [f"{FAR}/gpu-0"]
        assert scheduled_to(node, "huge") == ""
        assert any("cannot allocate all claims" in text for text in node.api.events("huge"))
    seen = {name: UUID.findall(result.log) for name, result in results.items()}
    assert {name: len(uuids) for name, uuids in seen.items()} == {
        "large": 1, "two": 2, "both": 2, "plain": 1,
    }, (results, driver.log())  # fmt: skip
    every = [uuid for uuids in seen.values() for uuid in uuids]
    assert set(every) <= set(devices(node).values())
    assert len(set(every)) == len(every), seen
    assert wait(lambda: driver.journal() == [], TIMEOUT_S), driver.log()
    assert driver.log().count("were written") == written


def test_what_a_claim_has_is_what_its_pod_sees_also_after_a_restart_of_the_kubelet(
    node: Cluster, driver: Driver
) -> None:
    claim(node, "stays")
    with pod(node, "stays", asks("stays", script=f"{LIST}; sleep 600")):
        assert wait(lambda: UUID.findall(log_of(node, "stays")), TIMEOUT_S), driver.log()
        (name,) = allocated(node, "stays")
        mine = devices(node)[name.partition("/")[2]]
        assert UUID.findall(log_of(node, "stays")) == [mine]
        with exporter(node, "--kubernetes-enable-dra"):
            assert wait(lambda: of_pod(node, "stays"), TIMEOUT_S), series(node)
            (labels,) = of_pod(node, "stays")
            assert (labels["UUID"], labels["dra_claim_name"]) == (mine, "stays")
        before = driver.log().count("Registered DRA driver")
        node.restart_kubelet()
        assert wait(lambda: driver.log().count("Registered DRA driver") > before, TIMEOUT_S)
        assert wait(lambda: len(devices(node)) == GPUS, TIMEOUT_S), driver.log()
        claim(node, "rest", count=GPUS - 1)
        rest = run(node.api, "rest", asks("rest"))
        others = UUID.findall(rest.log)
        assert len(others) == GPUS - 1, (rest, driver.log())
        assert mine not in others
        assert runs(node, "stays")


def test_a_killed_driver_and_a_claim_that_was_deleted_meanwhile(
    node: Cluster, driver: Driver
) -> None:
    claim(node, "lost")
    claim(node, "kept")
    slow = f"{LIST}; sleep 600"
    with pod(node, "kept", asks("kept", script=slow)), contextlib.ExitStack() as lost:
        lost.enter_context(pod(node, "lost", asks("lost", script=slow)))
        assert wait(lambda: runs(node, "kept") and runs(node, "lost"), TIMEOUT_S), driver.log()
        driver.kill()
        # Somebody removes the protection, and deletes pod and claim by force.
        node.api.request(
            "PATCH", f"{CLAIMS}/lost", {"metadata": {"finalizers": []}},
            "application/merge-patch+json",
        )  # fmt: skip
        node.api.delete(f"{CLAIMS}/lost")
        began = time.monotonic()
        driver.start()
        print(f"offered again {time.monotonic() - began:.1f} s after its start")
        assert wait(lambda: driver.journal() == ["kept"], TIMEOUT_S), driver.log()
        lost.close()
        claim(node, "after", count=GPUS - 1)
        after = run(node.api, "after", asks("after"))
        assert len(UUID.findall(after.log)) == GPUS - 1, (after, driver.log())
    assert wait(lambda: driver.journal() == [], TIMEOUT_S), driver.log()
    failures = re.findall(r".*error: .*", driver.log())
    assert failures == []


def test_mig_devices_are_made_for_claims_that_share_a_gpu(node: Cluster, driver: Driver) -> None:
    smi(node, "-i", "0", "-mig", "1")  # procfs does not show it: the driver's next look does
    try:
        assert wait(lambda: "gpu-0-mig-3g40gb-9-0" in devices(node), TIMEOUT_S), driver.log()
        profile = f"{ATTRIBUTES}.?profile.orValue('') == '{{}}'"
        for name, size in (("half-1", "3g.40gb"), ("half-2", "3g.40gb"), ("more", "1g.10gb")):
            claim(node, name, profile.format(size), device_class="mig.nvidia.com")
        slow = f"{LIST}; sleep 600"
        first = contextlib.ExitStack()
        with contextlib.ExitStack() as stack:
            stack.enter_context(first)
            first.enter_context(pod(node, "half-1", asks("half-1", script=slow)))
            stack.enter_context(pod(node, "half-2", asks("half-2", script=slow)))
            halves = ("half-1", "half-2")
            assert wait(
                lambda: all(MIG_UUID.findall(log_of(node, name)) for name in halves), TIMEOUT_S
            ), driver.log()
            seen = [MIG_UUID.findall(log_of(node, name)) for name in halves]
            assert [len(uuids) for uuids in seen] == [1, 1]
            assert seen[0] != seen[1]
            stack.enter_context(pod(node, "more", asks("more", script=slow)))
            assert wait(lambda: node.api.events("more"), TIMEOUT_S)
            assert scheduled_to(node, "more") == ""  # the halves have all memory
            first.close()
            node.api.delete(f"{CLAIMS}/half-1")
            assert wait(lambda: MIG_UUID.findall(log_of(node, "more")), TIMEOUT_S), driver.log()
        assert wait(lambda: driver.journal() == [], TIMEOUT_S), driver.log()
    finally:
        smi(node, "-i", "0", "-mig", "0")
    assert wait(lambda: len(devices(node)) == GPUS, TIMEOUT_S), driver.log()


def log_of(cluster: Cluster, name: str) -> str:
    with contextlib.suppress(Exception):  # its container may be starting
        return cluster.api.logs(name) if runs(cluster, name) else ""
    return ""
