# SPDX-License-Identifier: Apache-2.0
"""packaging/helm/nvct on a real cluster: installed and used."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from nvct.agent.device_plugin.resources import GPU
from nvct.sim import run_folder
from tests.engines.checks import UUID
from tests.engines.supervised import SupervisedContainerd
from tests.kubernetes.cluster import NODE
from tests.kubernetes.pods import Pod, Result, run_all
from tests.support import program_image

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tests.kubernetes.cluster import Cluster

pytestmark = pytest.mark.slow
CHART = Path(__file__).parents[2] / "packaging/helm/nvct"
NAMESPACE = "nvct"
CLASSES = ("", "nvidia", "nvidia-cdi", "nvidia-legacy")
"""The RuntimeClasses of pods; "" is none."""
CONFIG = "/etc/containerd/config.toml"
DEFAULT_RUNC = "SystemdCgroup = false"
GPUS = 8
TIMEOUT_S = 90.0
FROM_NOTHING_S = 60.0
"""From helm install to the output of nvidia-smi in a pod."""
LIST = "nvidia-smi -L"
IMAGE_SAYS_ALL = {"NVIDIA_VISIBLE_DEVICES": "all"}


@pytest.fixture(scope="module")
def node(cluster: Cluster) -> Cluster:
    """Return the cluster with the image; containers see the simulated driver, and no nvct."""
    containerd, box = cluster.engine, cluster.box
    assert isinstance(containerd, SupervisedContainerd)
    done = containerd.ctr("image", "import", str(program_image.archive()))
    assert done.returncode == 0, done
    config = box.read(CONFIG)
    assert DEFAULT_RUNC in config
    runc = f'BinaryName = "{run_folder.PROGRAMS}/runc"'
    box.write(CONFIG, config.replace(DEFAULT_RUNC, f"{DEFAULT_RUNC}\n{runc}"))
    containerd.reload()
    done = box.call("mount", "-t", "tmpfs", "local", "/usr/local")  # /usr is read-only here
    assert done.returncode == 0, done
    return cluster


def install(node: Cluster, *words: str) -> str:
    return node.helm("install", "nvct", str(CHART), f"--namespace={NAMESPACE}",
                     "--create-namespace", *words)  # fmt: skip


def uninstall(node: Cluster) -> None:
    node.helm("uninstall", "nvct", f"--namespace={NAMESPACE}", "--wait", "--timeout=180s")


def test_pods_get_what_they_request(node: Cluster) -> None:
    began = time.monotonic()
    install(node)
    try:
        first = run_all(node.api, {"first": _asks("")})["first"]
        from_nothing_s = time.monotonic() - began
        print(f"nvidia-smi in a pod {from_nothing_s:.1f} s after helm install")
        assert _gpus(first) == 1, (first, _state(node))
        assert from_nothing_s < FROM_NOTHING_S
        results = run_all(node.api, {f"asks-{name or 'none'}": _asks(name) for name in CLASSES})
        assert [_gpus(result) for result in results.values()] == [1] * len(CLASSES), results
        pod = Pod(script="ls /dev | grep -c nvidia", env=IMAGE_SAYS_ALL)
        silent = {f"silent-{name or 'none'}": pod for name in CLASSES}
        results = run_all(node.api, silent)
        assert [result.lines for result in results.values()] == [["0"]] * len(CLASSES), results
        node.helm("test", "nvct", f"--namespace={NAMESPACE}", "--timeout=120s")
    except AssertionError:
        print(_state(node))
        raise
    finally:
        uninstall(node)


def _asks(runtime_class: str) -> Pod:
    limits = {"resources": {"limits": {GPU: 1}}}
    return Pod(script=LIST, runtime_class=runtime_class, container=limits, env=IMAGE_SAYS_ALL)


def _gpus(result: Result) -> int:
    return len(set(UUID.findall(result.log)))


def _allocatable(node: Cluster) -> int:
    found = node.api.find(f"/api/v1/nodes/{NODE}")
    assert found is not None
    return int(found["status"]["allocatable"].get(GPU, 0))


def _state(node: Cluster) -> str:
    """Return the logs of the pods, and their state."""
    logs = ("logs", f"--namespace={NAMESPACE}", "--all-containers", "--prefix", "daemonset/nvct")
    pods = node.kubectl("describe", "pods", f"--namespace={NAMESPACE}")
    done = node.box.call("kubectl", "--kubeconfig=/run/kubernetes/kubeconfig", *logs)
    return pods + done.stdout + done.stderr
