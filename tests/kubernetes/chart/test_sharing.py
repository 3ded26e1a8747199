# SPDX-License-Identifier: Apache-2.0
"""GPUs shared by the chart's config files: by MPS, with its control daemon, and by time-slicing."""

import json
import time

import pytest

from nvct.agent.device_plugin.resources import GPU
from tests.kubernetes import audit
from tests.kubernetes.api import wait
from tests.kubernetes.chart.lab import CHART, FARM, IN_NAMESPACE, installed, logs_of, taints_of
from tests.kubernetes.cluster import NODE, Cluster
from tests.kubernetes.conftest import ON_ONE
from tests.kubernetes.device_plugin import GPUS, TIMEOUT_S, allocatable, asks, smi
from tests.kubernetes.pods import Result, run, run_all

pytestmark = [pytest.mark.slow, ON_ONE]
PAGE = CHART.parents[2] / "docs/kubernetes.md"
LABEL = "nvidia.com/device-plugin.config"
TAINT = "example.com/no-gpus-yet"
CONFIGS = {
    "whole": "version: v1",
    "mps": f"sharing: {{mps: {{resources: [{{name: {GPU}, replicas: 4}}]}}}}",
    "sliced": f"sharing: {{timeSlicing: {{resources: [{{name: {GPU}, replicas: 2}}]}}}}",
}
MPS_ROOT = "/run/nvidia/mps"
CONTROL = "nvidia-cuda-mps-control"
ASKS = f"""
echo pipe=$CUDA_MPS_PIPE_DIRECTORY
[ -z "$CUDA_MPS_PIPE_DIRECTORY" ] || {{
  echo get_default_active_thread_percentage | {CONTROL}
  echo get_default_device_pinned_mem_limit 0 | {CONTROL}
  touch /dev/shm/of-a-pod
}}
"""
WITH_LIMITS = [f"pipe=/mps/{GPU}/pipe", "25.0", "19G"]
"""Of a quarter of 81559 MiB, in whole units as the daemon shows them."""


def test_a_label_switches_between_mps_and_time_slicing(node: Cluster) -> None:
    """The daemon, limits, pods; a daemon that ends; another way of sharing, and back.

    All tasks that ask the API server do what they can: each right of the chart is used, and no other.
    """
    start = node.audit_log.stat().st_size
    values = node.box.work / "sharing.yaml"
    values.write_text(json.dumps({"config": {"map": CONFIGS, "default": "whole"}}))
    node.kubectl("taint", "node", NODE, f"{TAINT}=:NoSchedule")
    with installed(node, *FARM, f"--values={values}", f"--set=devicePlugin.startupTaint={TAINT}"):
        parts = [node.helm("get", part, "nvct", *IN_NAMESPACE) for part in ("manifest", "hooks")]
        rights = audit.granted("\n---\n".join(parts))
        assert wait(lambda: allocatable(node) == GPUS, TIMEOUT_S)
        assert wait(lambda: TAINT not in taints_of(node), TIMEOUT_S), logs_of(node)
        choose(node, "mps", 4 * GPUS)
        assert modes(node) == {"Exclusive_Process"}
        assert node.labels["nvidia.com/mps.capable"] == "true"
        pods = {"one": asks(1, ASKS, runtime_class=""), "two": asks(2, runtime_class="")}
        results = run_all(node.api, pods)
        assert results["one"].lines == WITH_LIMITS
        assert node.box.call("test", "-e", f"{MPS_ROOT}/shm/of-a-pod").returncode == 0
        refusal = "maximum request size for shared resources is 1; found 2"
        assert refusal in results["two"].log, results

        before = daemon(node)
        assert node.box.call("kill", "-KILL", before).returncode == 0
        began = time.monotonic()
        assert wait(lambda: daemon(node) not in ("", before), TIMEOUT_S), logs_of(node)
        assert wait(lambda: logs_of(node).count("control daemon is ready") == 2, TIMEOUT_S), (
            logs_of(node)
        )
        print(f"the daemon is ready {time.monotonic() - began:.1f} s after SIGKILL")
        assert wait(lambda: allocatable(node) == 4 * GPUS, TIMEOUT_S), logs_of(node)
        assert asked(node, "after-kill").lines == WITH_LIMITS

        choose(node, "sliced", 2 * GPUS)
        assert wait(lambda: modes(node) == {"Default"}, TIMEOUT_S), logs_of(node)
        assert wait(lambda: daemon(node) == "", TIMEOUT_S), logs_of(node)
        assert asked(node, "sliced").lines == ["pipe="]

        choose(node, "mps", 4 * GPUS)
        assert asked(node, "by-mps-again").lines == WITH_LIMITS
        node.label(f"{LABEL}-")
        assert wait(lambda: allocatable(node) == GPUS, TIMEOUT_S), logs_of(node)
        assert wait(lambda: modes(node) == {"Default"}, TIMEOUT_S), logs_of(node)
        assert wait(lambda: daemon(node) == "", TIMEOUT_S), logs_of(node)
    requests = audit.of_accounts(audit.requests(node.audit_log, start))
    assert {each.right for each in requests} == rights
    assert rights <= audit.documented(PAGE.read_text())


def choose(node: Cluster, name: str, count: int) -> None:
    """Choose a config file by the Node's label; wait until the Node shows its replicas."""
    began = time.monotonic()
    node.label(f"{LABEL}={name}")
    assert wait(lambda: allocatable(node) == count, TIMEOUT_S), logs_of(node)
    print(f"{count} replicas {time.monotonic() - began:.1f} s after the label {name}")


def asked(node: Cluster, name: str) -> Result:
    """Return the result of a pod that has one replica, and asks the daemon for its limits."""
    return run(node.api, name, asks(1, ASKS, runtime_class=""))


def daemon(node: Cluster) -> str:
    """Return the number of the control daemon's process, "" if there is none."""
    return node.box.call("pgrep", "-f", f"^{CONTROL} -f").stdout.strip()


def modes(node: Cluster) -> set[str]:
    """Return the compute modes of the GPUs."""
    return set(smi(node, "--query-gpu=compute_mode", "--format=csv,noheader").split())
