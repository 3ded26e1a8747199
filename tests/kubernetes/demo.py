# SPDX-License-Identifier: Apache-2.0
"""`make demo-kubernetes`: a pod gets a GPU of a simulated node, in a real cluster of one node.

It prints each command that a user types, and its output. The cluster, its files and the node vanish at the
end.
"""

import shlex
import sys
from pathlib import Path

import pytest
import yaml

from nvct.agent.device_plugin.resources import GPU
from nvct.errors import ContainerNotPossibleError
from tests.engines.supervised import SupervisedContainerd
from tests.kubernetes import alone, device_plugin, programs
from tests.kubernetes.api import wait
from tests.kubernetes.cluster import KUBECONFIG, Cluster
from tests.kubernetes.device_plugin import MANIFESTS, TIMEOUT_S, allocatable
from tests.kubernetes.pods import IMAGE
from tests.support import program_image

POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "gpu-pod"},
    "spec": {
        "restartPolicy": "Never",
        "runtimeClassName": "nvidia",
        "containers": [
            {
                "name": "main", "image": IMAGE, "imagePullPolicy": "Never",
                "command": ["nvidia-smi", "-L"], "resources": {"limits": {GPU: 1}},
            }
        ],
    },
}  # fmt: skip


def main() -> int:
    """Run the demonstration; return 0 if the pod saw one GPU, or if none of it can run here."""
    try:
        programs.folders()
        print("\nGPUs in pods: building the image, if it is not built", flush=True)
        image = program_image.archive()
        print("\nA private machine with 8 simulated GPUs; etcd, Kubernetes and containerd are real",
              flush=True)  # fmt: skip
        with alone.running() as cluster:
            device_plugin.show_simulation(cluster.box)
            return _type_all(cluster, image)
    except (ContainerNotPossibleError, pytest.skip.Exception) as error:
        print(
            f"GPUs in pods of a real Kubernetes are not shown: {error}; see `make demo-kubernetes`"
        )
        return 0


def _type_all(cluster: Cluster, image: Path) -> int:
    pod = cluster.box.work / "pod.yaml"
    pod.write_text(yaml.safe_dump(POD, sort_keys=False))
    _type(cluster, "nvct", "runtime", "configure", "--runtime=containerd", "--cdi.enabled")
    assert isinstance(cluster.engine, SupervisedContainerd)
    cluster.engine.reload()
    print("(here its supervisor restarts it)")
    _type(cluster, "ctr", "--namespace=k8s.io", "images", "import", "--no-unpack", str(image))
    for name in ("runtimeclasses", "agent"):
        _type(cluster, "kubectl", "apply", "-f", str(MANIFESTS / f"{name}.yaml"))
    rollout = ("rollout", "status", "--namespace=nvct", "daemonset/nvct-agent", "--timeout=90s")
    _type(cluster, "kubectl", *rollout)
    wait(lambda: allocatable(cluster) > 0, TIMEOUT_S)
    columns = f"custom-columns=NAME:.metadata.name,GPUS:.status.allocatable.{GPU.replace('.', chr(92) + '.')}"
    _type(cluster, "kubectl", "get", "nodes", "-o", columns)
    _type(cluster, "cat", str(pod))
    _type(cluster, "kubectl", "apply", "-f", str(pod))
    phase = "--for=jsonpath={.status.phase}=Succeeded"
    _type(cluster, "kubectl", "wait", phase, "--timeout=90s", "pod/gpu-pod")
    seen = _type(cluster, "kubectl", "logs", "gpu-pod")
    _type(cluster, "kubectl", "delete", "-f", str(MANIFESTS / "agent.yaml"), "-f", str(pod))
    return 0 if seen.count("UUID: GPU-") == 1 else 1


def _type(cluster: Cluster, *words: str) -> str:
    """Print a command, run it in the machine, print its output and return it."""
    shown = [word.replace(f"{MANIFESTS.parents[1]}/", "") for word in words]
    print(f"\n$ {shlex.join(shown)}", flush=True)
    config = [f"--kubeconfig={KUBECONFIG}"] if words[0] == "kubectl" else []
    done = cluster.box.call(words[0], *config, *words[1:])
    print(done.stdout + done.stderr, end="", flush=True)
    if done.returncode:
        print(f"(exit status {done.returncode})", flush=True)
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
