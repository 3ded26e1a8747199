# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.kubernetes.dra_examples DIR`: the demo manifests of dra-example-driver, by nvct's driver.

DIR is a checkout of kubernetes-sigs/dra-example-driver. Each folder of demo/examples is applied to a
real cluster of one node, with the driver's and class's name replaced, an image of the tests, and sh
for bash. It prints which pods run, and why the others do not.
"""

import contextlib
import sys
import time
from pathlib import Path
from typing import Any

import yaml

from tests.kubernetes import alone, device_plugin
from tests.kubernetes.cluster import FOLDER, KUBECONFIG, Cluster
from tests.kubernetes.dra import Driver, account, make_classes
from tests.kubernetes.pods import IMAGE

WAIT_S = 25.0
REPLACED = {
    "gpu.example.com": "gpu.nvidia.com",
    "gpu.resource.example.com": "resource.nvidia.com",
    "v1alpha1\n            kind: GpuConfig": "v1beta1\n            kind: GpuConfig",
    "example.com/gpu": "nvidia.com/gpu",
}


def main() -> int:
    """Run all examples and print a line for each pod; return the exit status."""
    examples = Path(sys.argv[1]) / "demo/examples"
    with alone.running() as cluster:
        device_plugin.prepare(cluster)
        make_classes(cluster)
        driver = Driver(cluster, account(cluster))
        driver.start()
        for folder in sorted({path.parent for path in examples.rglob("*.yaml")}):
            name = str(folder.relative_to(examples))
            print(f"{name}: {_run(cluster, folder)}", flush=True)
        journal = driver.journal()
        driver.kill()
        print(f"claims that are left in the journal: {journal}")
    return 0


def _run(cluster: Cluster, folder: Path) -> str:
    """Apply the manifests of a folder, and return what became of their pods."""
    namespaces: list[str] = []
    problems = []
    for path in sorted(folder.glob("*.yaml")):
        text = path.read_text(encoding="utf-8")
        for old, new in REPLACED.items():
            text = text.replace(old, new)
        documents = [_with_image(one) for one in yaml.safe_load_all(text) if one]
        namespaces += [one["metadata"]["name"] for one in documents if one["kind"] == "Namespace"]
        target = f"{FOLDER}/example.yaml"
        cluster.box.write(target, yaml.safe_dump_all(documents))
        done = cluster.box.call("kubectl", f"--kubeconfig={KUBECONFIG}", "apply", "-f", target)
        problems += [] if done.returncode == 0 else [done.stderr.strip().splitlines()[-1]]
        time.sleep(2)  # the manifests of a folder are steps
    try:
        pods = [pod for name in namespaces for pod in _settled(cluster, name)]
        return "; ".join([*problems, *pods])
    finally:
        cluster.box.call(
            "kubectl", f"--kubeconfig={KUBECONFIG}", "delete", "devicetaintrule", "--all"
        )
        for name in namespaces:
            cluster.box.call(
                "kubectl", f"--kubeconfig={KUBECONFIG}", "delete", "pods,deployments", "--all",
                f"--namespace={name}", "--grace-period=0", "--force",
            )  # fmt: skip
            cluster.box.call(
                "kubectl", f"--kubeconfig={KUBECONFIG}", "delete", "namespace", name,
                "--timeout=60s",
            )  # fmt: skip


def _settled(cluster: Cluster, namespace: str) -> list[str]:
    """Return the state of the namespace's pods when they run, or when the time is up."""
    path = f"/api/v1/namespaces/{namespace}"
    end = time.monotonic() + WAIT_S
    while True:
        found = (cluster.api.find(f"{path}/pods") or {"items": []})["items"]
        phases = {pod["metadata"]["name"]: pod["status"].get("phase", "") for pod in found}
        if found and set(phases.values()) <= {"Running", "Succeeded"}:
            break
        if time.monotonic() > end:
            break
        time.sleep(0.5)
    lines = []
    for name, phase in phases.items():
        why = ""
        if phase not in ("Running", "Succeeded"):
            events = cluster.api.find(f"{path}/events?fieldSelector=involvedObject.name%3D{name}")
            why = events["items"][-1]["message"] if events and events["items"] else ""
        lines.append(f"{name} {phase}{f' ({why})' if why else ''}")
    return lines


def _with_image(document: dict[str, Any]) -> dict[str, Any]:
    """Return a manifest whose containers have the tests' image."""
    with contextlib.suppress(KeyError):
        pod = document["spec"]
        pod = pod["template"]["spec"] if document["kind"] == "Deployment" else pod
        if document["kind"] in ("Pod", "Deployment"):
            for container in (*pod.get("initContainers", ()), *pod["containers"]):
                container |= {"image": IMAGE, "imagePullPolicy": "Never"}
                if container.get("command", [""])[0] == "bash":
                    container["command"] = ["sh", *container["command"][1:]]
    return document


if __name__ == "__main__":
    sys.exit(main())
