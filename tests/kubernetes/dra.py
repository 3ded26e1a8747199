# SPDX-License-Identifier: Apache-2.0
"""The DRA driver beside a cluster's kubelet, claims, and pods that have claims."""

import contextlib
import json
import re
import subprocess
from collections.abc import Iterator, Sequence
from typing import Any

from nvct.agent.device_plugin.resources import GPU
from nvct.agent.dra import slices
from nvct.agent.dra.devices import DRIVER, MIB, Device, Offer, Value, Version
from nvct.agent.dra.journal import FILE
from nvct.agent.dra.settings import Settings
from nvct.agent.dra.sharing import GPU_CONFIG, VERSION
from nvct.agent.manifests import convert_claims
from tests.engines.box import DRIVER_ROOT, PROGRAMS
from tests.kubernetes.accounts import kubeconfig_of
from tests.kubernetes.api import PODS, wait
from tests.kubernetes.cluster import KUBECONFIG, NODE, Cluster
from tests.kubernetes.device_plugin import GPUS, LIST
from tests.kubernetes.node import ClusterNode
from tests.kubernetes.pods import Pod

TIMEOUT_S = 60.0
API = "/apis/resource.k8s.io/v1"
CLAIMS = f"{API}/namespaces/default/resourceclaims"
MIG_UUID = re.compile(r"UUID: (MIG-[0-9a-f-]+)")
FAR = "far"
"""The second Node."""
V100 = "Tesla V100-SXM2-32GB"
RIGHTS = (
    ("get", "nodes"), ("get", "resourceclaims.resource.k8s.io"),
    ("list,watch,create,patch,delete", "resourceslices.resource.k8s.io"),
)  # fmt: skip
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
MPS_PROGRAMS = (
    f"PATH={DRIVER_ROOT}/usr/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    f"LD_LIBRARY_PATH={DRIVER_ROOT}/usr/lib/x86_64-linux-gnu",
)
"""Variables of the driver: outside of a pod, it starts the programs of MPS as anybody does."""


class Driver:
    """The driver's process on the node.

    Attributes:
        node: in whose machine it runs.
        gpus: how many devices it offers at first.
        plugins: folder of its journal.
    """

    def __init__(
        self,
        node: ClusterNode,
        kubeconfig: str,
        name: str = "",
        folder: str = "",
        gpus: int = GPUS,
        *,
        options: Sequence[str] = (),
    ) -> None:
        """Start nothing yet.

        Args:
            node: in whose machine it runs.
            kubeconfig: of the driver's account.
            name: of another Node, whose kubelet is a test's; "" for the node's own.
            folder: of that kubelet; "" for the node's own.
            gpus: how many devices it offers at first.
            options: more of its command line.
        """
        self.node = node
        self.gpus = gpus
        self._name = name = name or node.name
        self._log = f"dra-{name}.log"
        self.plugins = f"{folder}/plugins" if folder else Settings().plugins
        self._words = [
            "env", *MPS_PROGRAMS, f"{PROGRAMS}/python", "-I", "-m", "nvct.agent.core.program", "gpu-kubelet-plugin",
            f"--container-driver-root={DRIVER_ROOT}", f"--nvidia-driver-root={DRIVER_ROOT}",
            f"--nvidia-cdi-hook-path={PROGRAMS}/nvidia-cdi-hook", f"--node-name={name}",
            f"--kubeconfig={kubeconfig}", "--mig-devices=on-demand", *options,
        ]  # fmt: skip
        if folder:
            self._words += [
                f"--cdi-root={folder}/cdi", f"--kubelet-plugins-directory-path={self.plugins}",
                f"--kubelet-registrar-directory-path={folder}/registry",
            ]  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None

    def launch(self) -> None:
        """Start the process."""
        self._process = self.node.box.start(self._words, self._log)

    def start(self) -> None:
        before = self.log().count("Registered DRA driver")
        self.launch()
        assert wait(lambda: self.log().count("Registered DRA driver") > before, TIMEOUT_S), (
            self.log()
        )
        assert wait(lambda: len(devices(self.node, self._name)) == self.gpus, TIMEOUT_S), (
            self.log()
        )

    def kill(self) -> None:
        assert self._process is not None
        pattern = f"nvct.agent.core.program gpu-kubelet-plugin .*--node-name={self._name} "
        self.node.box.call("pkill", "-KILL", "-f", pattern)
        self._process.wait(TIMEOUT_S)

    def remove(self) -> None:
        """Kill it, and delete the slices that it leaves: the scheduler would give their devices."""
        self.kill()
        forget_slices(self.node, self._name)

    def log(self) -> str:
        return self.node.log(self._log)

    def journal(self) -> list[str]:
        return sorted(claim["name"] for claim in self.claims())

    def claims(self) -> list[dict[str, Any]]:
        """Return the claims in the journal."""
        try:
            text = self.node.box.read(f"{self.plugins}/gpu.nvidia.com/{FILE}")
        except FileNotFoundError:
            return []
        found: list[dict[str, Any]] = json.loads(text)["claims"]
        return found


def forget_slices(node: ClusterNode, name: str = NODE) -> None:
    """Delete the slices of a Node."""
    node.api.delete(f"{API}/resourceslices?fieldSelector=spec.nodeName%3D{name}")


def make_classes(cluster: Cluster, extended: str = GPU) -> None:
    """Create the DeviceClasses anew; pods that ask for the extended resource get a GPU by DRA, too."""
    for kind in ("gpu", "mig"):
        expression = OF_TYPE.format(ATTRIBUTES, kind)
        spec: dict[str, Any] = {"selectors": [{"cel": {"expression": expression}}]}
        if kind == "gpu" and extended:
            spec["extendedResourceName"] = extended
        manifest = {"metadata": {"name": f"{kind}.nvidia.com"}, "spec": spec}
        cluster.api.delete(f"{API}/deviceclasses/{kind}.nvidia.com")
        cluster.api.create(f"{API}/deviceclasses", manifest)


def account(cluster: Cluster) -> str:
    """Return the kubeconfig of an account with the rights that the documentation lists."""
    return kubeconfig_of(cluster, "dra", *RIGHTS)


def make_node(cluster: Cluster, name: str) -> dict[str, Any]:
    """Create a Node without a kubelet, and return it; pods that can be elsewhere are not for it."""
    resources = {"cpu": "4", "memory": "8Gi", "pods": "100"}
    status = {"capacity": resources, "allocatable": resources}
    spec = {"taints": [{"key": "without-kubelet", "effect": "PreferNoSchedule"}]}
    manifest = {"metadata": {"name": name}, "spec": spec, "status": status}
    cluster.api.create("/api/v1/nodes", manifest)
    return cluster.api.get(f"/api/v1/nodes/{name}")


def make_slices(cluster: Cluster, node: dict[str, Any], *offered: Device) -> None:
    """Create the slices of devices, as the driver would write them."""
    contents = slices.contents(Offer(devices=offered), "v1")
    for manifest in slices.changes([], contents, node).apply:
        cluster.api.create(f"{API}/resourceslices", manifest)


def make_far_node(cluster: Cluster) -> None:
    """Create a Node with a Tesla T4, and two pairs of V100s with NVLinks."""

    def gpu(number: int, memory: int, **attributes: Value) -> Device:
        uuid = f"GPU-far-{number}"
        every: dict[str, Value] = {"type": "gpu", "uuid": uuid, **attributes}
        return Device(
            name=f"gpu-{number}", uuid=uuid, gpu=uuid, capacity={"memory": memory * MIB},
            attributes=every,
        )  # fmt: skip

    tesla = gpu(
        0, 15360, productName="Tesla T4", ecc=False, architecture="Turing",
        cudaComputeCapability=Version("7.5.0"),
    )  # fmt: skip
    linked = [
        gpu(
            number, 32768, productName=V100, ecc=True, architecture="Volta",
            cudaComputeCapability=Version("7.0.0"), nvlinkDomain=f"domain-{(number - 1) // 2}",
        )
        for number in range(1, 5)
    ]  # fmt: skip
    make_slices(cluster, make_node(cluster, FAR), tesla, *linked)


def devices(cluster: ClusterNode, node: str = NODE) -> dict[str, str]:
    """Return the UUIDs of a node's devices by name."""
    return {
        device["name"]: device["attributes"].get("uuid", {}).get("string", "")
        for device in offered(cluster, node)
    }


def offered(cluster: ClusterNode, node: str = NODE) -> list[dict[str, Any]]:
    """Return the devices in a node's slices."""
    found = cluster.api.get(f"{API}/resourceslices?fieldSelector=spec.nodeName%3D{node}")
    return [device for one in found["items"] for device in one["spec"].get("devices", ())]


def claim(
    cluster: Cluster,
    name: str,
    expression: str = "",
    count: int = 1,
    device_class: str = "gpu.nvidia.com",
    *,
    sharing: dict[str, Any] | None = None,
    capacity: dict[str, str] | None = None,
) -> None:
    """Create a claim; without an expression, for GPUs of the node with a kubelet."""
    selector = {
        "cel": {"expression": expression or f"!{ATTRIBUTES}.productName.startsWith('Tesla')"}
    }
    request: dict[str, Any] = {
        "deviceClassName": device_class, "count": count, "selectors": [selector]
    }  # fmt: skip
    if capacity:
        request["capacity"] = {"requests": capacity}
    wanted: dict[str, Any] = {"requests": [{"name": "gpu", "exactly": request}]}
    if sharing:
        parameters = {"apiVersion": VERSION, "kind": GPU_CONFIG, "sharing": sharing}
        wanted["config"] = [{"opaque": {"driver": DRIVER, "parameters": parameters}}]
    cluster.api.create(CLAIMS, {"metadata": {"name": name}, "spec": {"devices": wanted}})


def asks_for_claims(*names: str, script: str = f"{LIST}; sleep 2", **more: Any) -> Pod:
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
    found = cluster.api.get(f"{CLAIMS}/{name}")
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


def explained(cluster: Cluster, name: str) -> str:
    """Return what `nvct explain` says about a pod."""
    words = (f"{PROGRAMS}/nvct", "explain", f"default/{name}", f"--kubeconfig={KUBECONFIG}")
    done = cluster.box.call(*words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def log_of(cluster: Cluster, name: str) -> str:
    with contextlib.suppress(Exception):  # its container may be starting
        return cluster.api.logs(name) if runs(cluster, name) else ""
    return ""
