# SPDX-License-Identifier: Apache-2.0
"""packaging/helm/nvct on a real cluster: upgraded and rolled back while pods run."""

import contextlib
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvct.version import __version__
from tests.engines.checks import UUID
from tests.engines.supervised import SupervisedContainerd
from tests.kubernetes.api import PODS, wait
from tests.kubernetes.chart.lab import (
    CHART,
    GPUS,
    IN_NAMESPACE,
    LIST,
    NAMESPACE,
    TIMEOUT_S,
    TOOLKIT,
    allocatable,
    asks,
    condition_of,
    gpus_of,
    installed,
    log_of,
    nvidia_labels,
    state_of,
)
from tests.kubernetes.cluster import KUBECONFIG, NODE, Cluster
from tests.kubernetes.conftest import ON_ONE
from tests.kubernetes.listed import Watch
from tests.kubernetes.pods import run

pytestmark = pytest.mark.slow
SOON = 80
"""Bound of the old pod that is not Ready, in looks: 10 s on an idle machine; the Node follows each 2 s."""
TAKEN = 8
"""Between two agents of which the older one hands over: it takes one look, or two."""
LOOK_S = 0.2
IMAGE = "docker.io/library/nvct:agent"


@ON_ONE
def test_pods_keep_their_gpus_while_it_is_upgraded_rolled_back_and_removed(
    node: Cluster, tmp_path: Path
) -> None:
    """The newer version is the same chart with another version, image and label."""
    newer = tmp_path / "newer"
    shutil.copytree(CHART, newer)
    text = (newer / "Chart.yaml").read_text()
    (newer / "Chart.yaml").write_text(text.replace(f"ersion: {__version__}", "ersion: 99.0.0"))
    assert isinstance(node.engine, SupervisedContainerd)
    done = node.engine.ctr("image", "tag", "--force", IMAGE, IMAGE.replace(":agent", ":newer"))
    assert done.returncode == 0, done
    path, said = f"{PODS}/stays", list[str]()
    with installed(node, said=said):
        node.api.create(PODS, asks("nvidia", f"while {LIST}; do sleep 1; done").manifest("stays"))
        try:
            assert wait(lambda: UUID.findall(log_of(node, "stays")), TIMEOUT_S)
            assert wait(lambda: condition_of(node) == "True", TIMEOUT_S), state_of(node)
            containerd = node.box.call("pgrep", "-x", "containerd").stdout
            words = ("--set=image.tag=newer", "--set=daemonsets.labels.changed=yes")
            watched, began = Watched(node), time.time()
            with watched.running(), Watch(node) as watch:
                node.helm("upgrade", "nvct", str(newer), *IN_NAMESPACE, *words, "--wait",
                          "--reset-then-reuse-values", "--timeout=120s")  # fmt: skip
            assert watch.wrong(GPUS, began) < TAKEN, state_of(node)
            assert (watched.conditions, None in watched.labels) == ({"True"}, False)
            pods = node.api.get(f"/api/v1/namespaces/{NAMESPACE}/pods")
            images = {pod["spec"]["containers"][0]["image"] for pod in pods["items"]}
            assert "nvct:newer" in images
            assert gpus_of(run(node.api, "after-upgrade", asks("", count=GPUS - 1))) == GPUS - 1
            node.helm("rollback", "nvct", *IN_NAMESPACE, "--wait", "--timeout=120s")
            assert gpus_of(run(node.api, "after-rollback", asks("", count=GPUS - 1))) == GPUS - 1
            assert node.box.call("pgrep", "-x", "containerd").stdout == containerd, "not restarted"
        finally:
            stays = node.api.find(path)
            print(state_of(node))
    assert stays is not None
    after = node.api.get(path)
    try:
        for each in (stays, after):
            (status,) = each["status"]["containerStatuses"]
            assert (status["ready"], status["restartCount"]) == (True, 0)
        lines = len(log_of(node, "stays").splitlines())
        assert wait(lambda: len(log_of(node, "stays").splitlines()) > lines, TIMEOUT_S)
        assert len(set(log_of(node, "stays").splitlines())) == 1, "always the same GPU"
        assert any(line.startswith(f"{NODE}: {TOOLKIT} stays: container ") for line in said), said
        program = f"{TOOLKIT}/nvidia-container-runtime"
        assert node.box.call("test", "-x", program).returncode == 0, "the pod was started by it"
    finally:
        node.api.delete(path)
        assert wait(lambda: node.api.find(path) is None, TIMEOUT_S)
        node.box.call("rm", "-rf", TOOLKIT)


@ON_ONE
def test_an_old_pod_that_is_not_ready_serves_until_the_new_one_does(node: Cluster) -> None:
    """Kubernetes deletes it as soon as the new one exists. Its exporter fails: it is not Ready."""
    counters = "--set=dcgmExporter.config"
    with installed(node, f"{counters}.create=true", f"{counters}.data=nonsense"):
        assert wait(lambda: allocatable(node) == GPUS, TIMEOUT_S), state_of(node)
        words = ("get", "pods", *IN_NAMESPACE, "--selector=app.kubernetes.io/component=agent",
                 "--output=jsonpath={.items[*].metadata.name}")  # fmt: skip
        (old,) = node.kubectl(*words).split()
        follow = ("kubectl", f"--kubeconfig={KUBECONFIG}", "logs", "--follow", *IN_NAMESPACE)
        node.box.start([*follow, "--container=agent", old], "old.log")
        with Watch(node) as watch:
            watch.until(GPUS, "the old agent serves", time.time())
            began = time.time()
            node.helm("upgrade", "nvct", str(CHART), *IN_NAMESPACE, f"{counters}.create=false",
                      "--wait", "--reset-then-reuse-values", "--timeout=120s")  # fmt: skip
            assert wait(lambda: old not in node.kubectl(*words).split(), TIMEOUT_S)
            watch.until(GPUS, "the old pod is gone", time.time())
            print(f"the kubelet had another list in {watch.wrong(GPUS, began)} looks")
            assert "serves until the new one takes over" in (node.box.work / "old.log").read_text()
            assert watch.wrong(GPUS, began) < SOON, state_of(node)


class Watched:
    """What a Node showed while something happened: nothing of it may vanish."""

    def __init__(self, node: Cluster) -> None:
        """Look at a cluster's node."""
        self._node = node
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.conditions: set[str] = set()
        self.labels: set[str | None] = set()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Look several times a second."""
        self._thread.start()
        try:
            yield
        finally:
            self._ended.set()
            self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(LOOK_S):
            self.conditions.add(condition_of(self._node))
            self.labels.add(nvidia_labels(self._node).get("nvidia.com/gpu.product"))
