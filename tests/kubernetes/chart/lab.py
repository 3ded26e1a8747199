# SPDX-License-Identifier: Apache-2.0
"""The chart installed in a test's cluster, and what its pods and its Node show."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from nvct.agent.condition.condition import TYPE
from nvct.agent.device_plugin.resources import GPU
from nvct_sim import attach
from tests.engines.box import PROGRAMS
from tests.engines.checks import UUID
from tests.kubernetes import audit, device_plugin
from tests.kubernetes.api import ApiError, Object, wait
from tests.kubernetes.cluster import KUBECONFIG, NODE, Cluster
from tests.kubernetes.device_plugin import GPUS, LIST, allocatable
from tests.kubernetes.pods import CONTAINER, Pod, Result

__all__ = ["GPUS", "LIST", "allocatable"]
FOLDERS = (
    "/etc", "/usr/local", "/run/cdi", "/run/nvct", "/run/nvct-agent", "/run/nvct-driver",
    "/run/systemd", "/var/lib/nvct",
    "/var/lib/kubelet/device-plugins", "/var/lib/kubelet/plugins", "/var/lib/kubelet/plugins_registry",
)  # fmt: skip
OTHERS = ("/var/lib/kubelet/device-plugins/kubelet", "/var/lib/kubelet/plugins")
"""The kubelet's own files; and claims, see docs/kubernetes.md."""
CHART = Path(__file__).parents[3] / "packaging/helm/nvct"
NAMESPACE = "nvct"
IN_NAMESPACE = (f"--namespace={NAMESPACE}",)
TOOLKIT = "/usr/local/nvidia/toolkit"
CLASSES = ("", "nvidia", "nvidia-cdi", "nvidia-legacy")
"""The RuntimeClasses of pods; "" is none."""
TIMEOUT_S = 90.0
MOUNTED = "cut -d' ' -f5 /proc/self/mountinfo"
FARM = (
    "--set=toolkit.env[0].name=NVCT_FARM_DIR",
    f"--set=toolkit.env[0].value={attach.farm_dir()}",
)
"""The driver of a simulated node has a file system of its own."""
IMAGE_SAYS_ALL = {"NVIDIA_VISIBLE_DEVICES": "all"}


@contextlib.contextmanager
def installed(
    node: Cluster, *words: str, said: list[str] | None = None, chart: str = str(CHART)
) -> Iterator[None]:
    """Install the chart; remove it at the end, and hold the engine's files against the former.

    The API server has refused nothing. `said` gets what the removal prints.
    """
    before, labels, files = node.engine.snapshot(), nvidia_labels(node), files_of(node)
    began = node.audit_log.stat().st_size
    node.helm("install", "nvct", chart, *IN_NAMESPACE, "--create-namespace", *words)
    try:
        yield
    except BaseException:
        print(state_of(node))
        raise
    finally:
        words = ("uninstall", "nvct", *IN_NAMESPACE, "--wait", "--timeout=180s")
        text = node.helm(*words, errors=True)
    printed = text.replace("\\n", "\n").splitlines()  # helm quotes what the Job prints
    if said is not None:
        said += printed
    assert node.engine.snapshot() == before
    offers_no_gpu(node)
    assert nvidia_labels(node) == labels
    assert condition_of(node) == ""
    refused = audit.refused(node.audit_log, began)
    assert not refused, refused
    kept = [line.removeprefix(f"{NODE}: ").partition(" stays")[0] for line in printed]
    named = [*(path for path in kept if path.startswith("/")), *OTHERS]
    left = files_of(node) - files
    left = {p for p in left if not any(p.startswith(n) or n.startswith(p) for n in named)}
    assert not left, left


def files_of(node: Cluster) -> set[str]:
    """Return the paths on the node, of folders that nvct writes to."""
    return set(node.box.call("find", *FOLDERS).stdout.splitlines())


def asks(runtime_class: str, script: str = LIST, count: int = 1) -> Pod:
    limits = {"resources": {"limits": {GPU: count}}}
    return Pod(script=script, runtime_class=runtime_class, container=limits, env=IMAGE_SAYS_ALL)


def gpus_of(result: Result) -> int:
    return len(set(UUID.findall(result.log)))


def log_of(node: Cluster, pod: str) -> str:
    """Return a pod's log, "" while it has none."""
    try:
        return node.api.logs(pod, CONTAINER)
    except ApiError:
        return ""


def offers_no_gpu(node: Cluster) -> None:
    """Wait until the Node has no GPU to give; if it keeps some, the tests after this one still start from none."""
    if not wait(lambda: allocatable(node) == 0, TIMEOUT_S):
        said = [node.kubectl("get", "pods", "--all-namespaces"), device_plugin.kubelet_log(node)]
        node.restart_kubelet()
        raise AssertionError("\n".join(["the kubelet still offers GPUs", *said]))


def condition_of(node: Cluster) -> str:
    """Return the status of nvct's condition of the Node, "" if there is none."""
    found = node.api.get(node.path)
    return next((c["status"] for c in found["status"]["conditions"] if c["type"] == TYPE), "")


def nvidia_labels(node: Cluster) -> dict[str, str]:
    """Return the Node's labels of NVIDIA's."""
    return {key: value for key, value in node.labels.items() if key.startswith("nvidia.com/")}


def taints_of(node: Cluster) -> list[str]:
    """Return the keys of the Node's taints."""
    found = node.api.get(node.path)
    return [taint["key"] for taint in found["spec"].get("taints", ())]


def cluster_status(node: Cluster) -> str:
    """Return the table of the cluster's GPU nodes."""
    kubeconfig = f"--kubeconfig={KUBECONFIG}"
    words = (f"{PROGRAMS}/python", "-I", "-m", "nvct.cli", "nvct", "cluster", "status")
    done = node.box.call(*words, kubeconfig)
    assert done.returncode == 0, done
    return done.stdout


def state_of(node: Cluster) -> str:
    """Return the logs of the pods, and their state."""
    pods = node.kubectl("describe", "pods", f"--namespace={NAMESPACE}")
    return pods + logs_of(node)


def logs_of(node: Cluster, *words: str) -> str:
    """Return the logs of all pods of the chart."""
    chosen = (
        "--selector=app.kubernetes.io/name=nvct",
        "--all-containers",
        "--prefix",
        "--tail=-1",
    )
    logs = ("logs", *IN_NAMESPACE, *chosen, "--max-log-requests=20", *words)
    done = node.box.call("kubectl", f"--kubeconfig={KUBECONFIG}", *logs)
    return done.stdout + done.stderr


def as_agent(at: str) -> dict[str, str]:
    """Return the headers of a request of the agent of a Node; "" is a token of no pod."""
    headers = {"Impersonate-User": f"system:serviceaccount:{NAMESPACE}:nvct"}
    if at:
        headers["Impersonate-Extra-authentication.kubernetes.io%2fnode-name"] = at
    return headers


def answer(
    node: Cluster, method: str, path: str, body: Object | None = None, at: str = NODE
) -> str:
    """Return "" or the API server's refusal of a request of the agent, which changes nothing."""
    kind = "application/merge-patch+json" if method == "PATCH" else ""
    try:
        node.api.request(method, f"{path}?dryRun=All", body, kind, as_agent(at))
    except ApiError as error:
        return str(error.message)
    return ""
