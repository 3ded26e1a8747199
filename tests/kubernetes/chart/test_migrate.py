# SPDX-License-Identifier: Apache-2.0
"""docs/migrate.md: a node moves from NVIDIA's device plugin to nvct and back, by the page's commands.

`others_plugin.py` stands for NVIDIA's plugin; if NVCT_PEER names the folder of NVIDIA's programs,
it is the real one. The reduced chart has the values of NVIDIA's 0.20.0 that the page sets.
"""

import contextlib
import json
import os
import re
from collections.abc import Iterator

import pytest

from nvct_sim import attach
from tests.engines.box import DRIVER_ROOT, PROGRAMS
from tests.engines.checks import UUID
from tests.engines.engines import CONFIG
from tests.kubernetes import device_plugin
from tests.kubernetes.api import PODS, wait
from tests.kubernetes.chart import others_plugin
from tests.kubernetes.chart.lab import (
    CHART,
    GPUS,
    TIMEOUT_S,
    allocatable,
    gpus_of,
    nvidia_labels,
    offers_no_gpu,
    state_of,
)
from tests.kubernetes.cluster import ADMIN, NODE, Cluster
from tests.kubernetes.conftest import ON_ONE
from tests.kubernetes.pods import Pod, run

pytestmark = pytest.mark.slow
PAGE = CHART.parents[2] / "docs/migrate.md"
PEER = os.environ.get("NVCT_PEER", "")
ASKS = device_plugin.asks(1, runtime_class="")
NFD = "feature.node.kubernetes.io/pci-10de.present"
DEPLOY = "nvidia.com/gpu.deploy."
VALUES = {
    "image": {"repository": "nvct", "tag": "agent"},
    "toolkit": {"env": [{"name": "NVCT_FARM_DIR", "value": attach.farm_dir()}]},
}
"""What the page leaves to the reader: nvct's image, and what the simulated driver needs."""


class Reader:
    """Somebody who types the commands of a section, in a folder with both charts."""

    def __init__(self, node: Cluster) -> None:
        self.node = node
        self._folder = node.box.work / "reader"
        self._folder.mkdir(exist_ok=True)
        packaging = self._folder / "packaging"
        packaging.unlink(missing_ok=True)
        packaging.symlink_to(CHART.parents[1])
        chart = self._folder / "nvdp/nvidia-device-plugin"
        (chart / "templates").mkdir(parents=True, exist_ok=True)
        (chart / "Chart.yaml").write_text(
            "{apiVersion: v2, name: nvidia-device-plugin, version: 0.20.0}"
        )
        (chart / "templates/plugin.yaml").write_text(_plugin(node))

    def types(self, section: str, number: int) -> str:
        """Type the lines of a block, and return what they print."""
        text = PAGE.read_text().partition(f"### {section}\n")[2].partition("\n#")[0]
        blocks = re.findall(r"(?m)(?:^    .*\n|^\n(?=    ))+", text)
        block = re.sub(r"(?m)^    ", "", blocks[number]).replace("NODE", NODE)
        nvct = f'nvct() {{ {PROGRAMS}/python -I -m nvct.cli nvct "$@"; }}\n'
        script = f"set -eu; cd {self._folder}\n{nvct}{block}"
        done = self.node.box.call("sh", "-c", script, env=ADMIN, timeout=300)
        assert done.returncode == 0, (block, done, state_of(self.node))
        return done.stdout

    def edits(self, name: str) -> None:
        """Do what a comment of the page says: nvct's image goes into the values."""
        (self._folder / name).write_text(json.dumps(VALUES))


def _plugin(node: Cluster) -> str:
    """Return the template of the plugin's DaemonSet, with an affinity by a value."""
    uuids = UUID.findall(device_plugin.smi(node, "-L"))
    own = [f"{PROGRAMS}/python", "-I", others_plugin.__file__, *uuids]
    mounts = device_plugin.MOUNTS | ({PEER: PEER} if PEER else {})
    names = {path: f"volume-{number}" for number, path in enumerate(mounts)}
    pod = Pod(
        script=f"exec {PEER}/nvidia-device-plugin" if PEER else f"exec {' '.join(own)}",
        env={"NVIDIA_DRIVER_ROOT": DRIVER_ROOT, "CONTAINER_DRIVER_ROOT": "/driver-root"},
        container={
            "securityContext": {"privileged": True},
            "volumeMounts": [{"name": names[path], "mountPath": path} for path in mounts],
        },
        spec={
            "restartPolicy": "Always",
            "volumes": [
                {"name": names[path], "hostPath": {"path": source}}
                for path, source in mounts.items()
            ],
            "affinity": "AFFINITY",
        },
    ).manifest("plugin")  # fmt: skip
    labels = {"app": "nvidia-device-plugin"}
    template = {"metadata": {"labels": labels}, "spec": pod["spec"]}
    spec = {"selector": {"matchLabels": labels}, "template": template}
    text = json.dumps(
        {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "nvdp"}, "spec": spec}
    )
    return text.replace('"AFFINITY"', "{{ toJson .Values.affinity }}")


@pytest.fixture
def reader(node: Cluster) -> Iterator[Reader]:
    """Yield a reader at a node with runtimes on the host, and NVIDIA's plugin by its chart."""
    config, before = node.box.read(CONFIG), node.engine.snapshot()
    with contextlib.ExitStack() as ends:  # from the last line to the first, also if one fails
        ends.callback(node.engine.reload)
        ends.callback(node.box.write, CONFIG, config)
        ends.callback(node.engine.undo)
        ends.callback(node.kubectl, "label", "node", NODE, f"{NFD}-", "gpus-")
        for release in ("nvdp", "nvct"):
            words = ("uninstall", release, f"--namespace={release}", "--ignore-not-found")
            ends.callback(node.helm, *words, "--wait", "--timeout=100s")
        ends.callback(node.kubectl, "delete", "pods", "--all")
        node.box.write(CONFIG, config + device_plugin.LOW_LEVEL)
        node.engine.configure("--cdi.enabled", "--set-as-default")
        node.engine.reload()
        node.label(f"{NFD}=true")
        made = Reader(node)
        node.helm("install", "nvdp", str(node.box.work / "reader/nvdp/nvidia-device-plugin"),
                  "--namespace=nvdp", "--create-namespace")  # fmt: skip
        yield made
    assert node.engine.snapshot() == before
    offers_no_gpu(node)


@ON_ONE
def test_a_node_moves_and_moves_back_by_the_pages_commands(node: Cluster, reader: Reader) -> None:
    assert wait(lambda: allocatable(node) == GPUS, TIMEOUT_S), _state_of_others(node)
    before, labels = node.engine.snapshot(), nvidia_labels(node)
    runs_on = device_plugin.asks(1, "sleep 1000", runtime_class="")
    node.api.create(PODS, runs_on.manifest("runs-on"))
    assert wait(lambda: _gpus_in(node) == 1, TIMEOUT_S), node.api.events("runs-on")
    section = "From the device plugin's chart"
    reader.types(section, 0)
    reader.edits("values.yaml")
    reader.types(section, 1)
    _moves(node, reader, section)
    reader.types("Back", 1)
    _is_back(node, before, labels)
    _moves(node, reader, section)
    reader.types("Back", 0)
    _is_back(node, before, labels)
    reader.types(section, 1)
    with _operand(node):
        reader.types("From the GPU operator, with its driver", 0)
    assert wait(lambda: nvidia_labels(node), TIMEOUT_S), state_of(node)
    reader.types(section, 3)
    node.label("gpus-")
    node.kubectl("--namespace=nvct", "rollout", "status", "daemonset/nvct", "--timeout=100s")
    assert wait(lambda: allocatable(node) == GPUS, TIMEOUT_S), state_of(node)
    assert gpus_of(run(node.api, "stays", ASKS)) == 1, state_of(node)
    assert _gpus_in(node) == 1


@contextlib.contextmanager
def _operand(node: Cluster) -> Iterator[None]:
    """Have an operand of the GPU operator on the node by its label; it has gone at the end."""
    app = {"app": "nvidia-device-plugin-daemonset"}
    pod = Pod(script="sleep 1000").manifest("")["spec"]
    spec = {**pod, "restartPolicy": "Always", "nodeSelector": {f"{DEPLOY}device-plugin": "true"}}
    template = {"metadata": {"labels": app}, "spec": spec}
    if node.api.find("/api/v1/namespaces/gpu-operator") is None:
        node.api.create("/api/v1/namespaces", {"metadata": {"name": "gpu-operator"}})
    node.api.create(
        "/apis/apps/v1/namespaces/gpu-operator/daemonsets",
        {"metadata": {"name": app["app"]},
         "spec": {"selector": {"matchLabels": app}, "template": template}},
    )  # fmt: skip
    running = "/api/v1/namespaces/gpu-operator/pods"
    node.label(f"{DEPLOY}device-plugin=true")
    try:
        assert wait(lambda: (node.api.find(running) or {})["items"], TIMEOUT_S)
        yield
        assert not (node.api.find(running) or {})["items"]
    finally:
        keys = [key for key in nvidia_labels(node) if key.startswith(DEPLOY)]
        node.label(*(f"{key}-" for key in keys))
        node.kubectl("delete", "namespace", "gpu-operator")


def _moves(node: Cluster, reader: Reader, section: str) -> None:
    table = reader.types(section, 2)
    assert re.search(rf"(?m)^{NODE} ", table), table
    assert wait(lambda: allocatable(node) == GPUS, TIMEOUT_S), state_of(node)
    assert gpus_of(run(node.api, "new", ASKS)) == 1, state_of(node)
    assert nvidia_labels(node)
    assert _gpus_in(node) == 1


def _is_back(node: Cluster, before: object, labels: dict[str, str]) -> None:
    assert wait(lambda: allocatable(node) == GPUS, TIMEOUT_S), state_of(node)
    assert node.engine.snapshot() == before
    assert nvidia_labels(node) == labels
    assert gpus_of(run(node.api, "again", ASKS)) == 1
    assert _gpus_in(node) == 1


def _state_of_others(node: Cluster) -> str:
    kubectl = ("kubectl", "--namespace=nvdp")
    log = node.box.call(*kubectl, "logs", "daemonset/nvdp", env=ADMIN)
    return node.box.call(*kubectl, "describe", "pods", env=ADMIN).stdout + log.stdout + log.stderr


def _gpus_in(node: Cluster) -> int:
    """Return how many GPUs the pod has that runs all the time; it was not started again."""
    done = node.box.call("kubectl", "exec", "runs-on", "--", "nvidia-smi", "-L", env=ADMIN)
    assert device_plugin.restarts(node, "runs-on") == 0
    return len(UUID.findall(done.stdout))
