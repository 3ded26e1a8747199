# SPDX-License-Identifier: Apache-2.0
"""packaging/helm/nvct on a real cluster: installed, used, upgraded and removed."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from nvct.agent.condition.condition import TYPE
from nvct.agent.convert import convert
from nvct.agent.device_plugin.resources import GPU
from nvct.agent.device_plugin.settings import FOLDER
from nvct.agent.labels.compute import PCI_PRESENT
from nvct.agent.mig_manager.node_labels import CONFIG, STATE
from nvct.container.rootfs.view_links import OF_SPEC
from nvct.installer import publication
from nvct.sim import attach
from nvct.version import __version__
from tests.engines.box import PROGRAMS
from tests.engines.checks import UUID
from tests.engines.releases import of_release
from tests.engines.supervised import SupervisedContainerd
from tests.kubernetes import audit, image_alone, programs
from tests.kubernetes.api import PODS, ApiError, wait
from tests.kubernetes.cluster import FOLDER as CLUSTER_FOLDER
from tests.kubernetes.cluster import KUBECONFIG, NODE
from tests.kubernetes.device_plugin import simulated
from tests.kubernetes.pods import CONTAINER, Pod, Result, run, run_all
from tests.kubernetes.test_chart_values import MATRIX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from tests.kubernetes.cluster import Cluster

pytestmark = pytest.mark.slow
ON_ONE = pytest.mark.parametrize("cluster", [of_release("trixie")], indirect=True)
"""For what does not depend on the engine's version."""
CHART = Path(__file__).parents[2] / "packaging/helm/nvct"
MANIFESTS = CHART.parents[1] / "kubernetes"
PAGE = CHART.parents[2] / "docs/kubernetes.md"
FOREIGN = ("ServiceMonitor", "PodMonitor", "PrometheusRule")
NAMESPACE = "nvct"
IN_NAMESPACE = (f"--namespace={NAMESPACE}",)
IMAGE = "docker.io/library/nvct:agent"
AGENT = "/run/nvct-agent/agent.sock"
TOOLKIT = "/usr/local/nvidia/toolkit"
SOCKET = f"{FOLDER}/nvidia-gpu.sock"
CLASSES = ("", "nvidia", "nvidia-cdi", "nvidia-legacy")
"""The RuntimeClasses of pods; "" is none."""
GPUS = 8
READY_ROW = rf"(?m)^{NODE}  nvidia.com/gpu={GPUS}  [\d.]+ +\S+ +Ready  True$"
"""Of nvct cluster status."""
TIMEOUT_S = 90.0
AGENTS_MIB = 80
"""Proportional set sizes of the agent and of NVML's processes, with all tasks of the chart."""
FROM_NOTHING_S = 60.0
"""From helm install to the output of nvidia-smi in a pod."""
LIST = "nvidia-smi -L"
MOUNTED = "cut -d' ' -f5 /proc/self/mountinfo"
FARM = (
    "--set=toolkit.env[0].name=NVCT_FARM_DIR",
    f"--set=toolkit.env[0].value={attach.farm_dir()}",
)
"""The driver of a simulated node has a file system of its own."""
POWER_OFF = r"""
pkill -KILL -f 'containerd-[s]him'
for folder in /proc/[0-9]*; do
  ! grep -q kubepods $folder/cgroup || kill -KILL ${folder#/proc/}
done 2>/dev/null
rm -rf /run/nvct /run/nvct-agent /run/cdi
"""
"""What a boot leaves: no container, and nothing of nvct in /run."""
IMAGE_SAYS_ALL = {"NVIDIA_VISIBLE_DEVICES": "all"}


@pytest.fixture(scope="module")
def node(cluster: Cluster) -> Cluster:
    """Return the cluster with the image; containers see the simulated driver, and no nvct."""
    image_alone.prepare(cluster)
    return cluster


@contextlib.contextmanager
def installed(node: Cluster, *words: str, said: list[str] | None = None) -> Iterator[None]:
    """Install the chart; remove it at the end, and hold the engine's files against the former.

    The API server has refused nothing. `said` gets what the removal prints.
    """
    before, labels = node.engine.snapshot(), _labels(node)
    began = node.audit_log.stat().st_size
    node.helm("install", "nvct", str(CHART), *IN_NAMESPACE, "--create-namespace", *words)
    try:
        yield
    except BaseException:
        print(_state(node))
        raise
    finally:
        words = ("uninstall", "nvct", *IN_NAMESPACE, "--wait", "--timeout=180s")
        text = node.helm(*words, errors=True)
    if said is not None:
        said += text.replace("\\n", "\n").splitlines()  # helm quotes what the Job prints
    assert node.engine.snapshot() == before
    assert wait(lambda: _allocatable(node) == 0, TIMEOUT_S)
    assert _labels(node) == labels
    assert _condition(node) == ""
    assert not audit.refused(node.audit_log, began)


def test_pods_get_what_they_request_from_nothing(node: Cluster) -> None:
    began, said = time.monotonic(), list[str]()
    with installed(node, *FARM, said=said):
        first = run(node.api, "first", _asks(""))
        from_nothing_s = time.monotonic() - began
        print(f"nvidia-smi in a pod {from_nothing_s:.1f} s after helm install")
        assert _gpus(first) == 1, first
        assert from_nothing_s < FROM_NOTHING_S
        mounts = run(node.api, "mounts", _asks("", MOUNTED)).lines
        assert mounts.count(OF_SPEC) == 1, (mounts, _state(node))
        assert not [path for path in mounts if path.startswith("/usr/")], mounts
        results = run_all(node.api, {f"asks-{name or 'none'}": _asks(name) for name in CLASSES})
        assert [_gpus(result) for result in results.values()] == [1] * len(CLASSES), results
        pod = Pod(script="ls /dev | grep -c nvidia", env=IMAGE_SAYS_ALL)
        silent = {f"silent-{name or 'none'}": replace(pod, runtime_class=name) for name in CLASSES}
        results = run_all(node.api, silent)
        assert [result.lines for result in results.values()] == [["0"]] * len(CLASSES), results
        assert wait(lambda: _labels(node).get("nvidia.com/gpu.count") == str(GPUS), TIMEOUT_S)
        assert wait(lambda: _condition(node) == "True", TIMEOUT_S), _state(node)
        assert wait(lambda: re.search(READY_ROW, _status(node)), TIMEOUT_S), _status(node)
        metrics = _served(node, "gpu-metrics", "metrics")
        assert len(re.findall(rf'(?m)^DCGM_FI_DEV_GPU_TEMP.*hostname="{NODE}"', metrics)) == GPUS
        assert "nvct_agent_nvml_up 1" in _served(node, "agent", "metrics")
        assert _served(node, "agent", "readyz") == "ok\n"
        memory = _memory_mib(node)
        print(f"memory of the agent: {memory} MiB")
        assert sum(memory) < AGENTS_MIB, memory
        node.helm("test", "nvct", *IN_NAMESPACE, "--timeout=120s")
    print("\n".join(said))
    assert f"{NODE}: removed {TOOLKIT}" in said, said
    assert f"{NODE}: removed {publication.PATH}" in said, said
    assert node.box.call("ls", "/run/cdi").stdout == ""
    assert any(line.startswith(f"{NODE}: /run/nvct stays") for line in said), said


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
        node.api.create(PODS, _asks("nvidia", f"while {LIST}; do sleep 1; done").manifest("stays"))
        try:
            assert wait(lambda: UUID.findall(_log(node, "stays")), TIMEOUT_S)
            assert wait(lambda: _condition(node) == "True", TIMEOUT_S), _state(node)
            containerd = node.box.call("pgrep", "-x", "containerd").stdout
            words = ("--set=image.tag=newer", "--set=daemonsets.labels.changed=yes")
            watched = Watched(node)
            with watched.running():
                node.helm("upgrade", "nvct", str(newer), *IN_NAMESPACE, *words, "--wait",
                          "--reset-then-reuse-values", "--timeout=120s")  # fmt: skip
            assert (watched.conditions, None in watched.labels) == ({"True"}, False)
            pods = node.api.find(f"/api/v1/namespaces/{NAMESPACE}/pods")
            assert pods is not None
            images = {pod["spec"]["containers"][0]["image"] for pod in pods["items"]}
            assert "nvct:newer" in images
            assert _gpus(run(node.api, "after-upgrade", _asks("", count=GPUS - 1))) == GPUS - 1
            node.helm("rollback", "nvct", *IN_NAMESPACE, "--wait", "--timeout=120s")
            assert _gpus(run(node.api, "after-rollback", _asks("", count=GPUS - 1))) == GPUS - 1
            assert node.box.call("pgrep", "-x", "containerd").stdout == containerd, "not restarted"
        finally:
            stays = node.api.find(path)
            print(_state(node))
    assert stays is not None
    after = node.api.find(path)
    assert after is not None
    try:
        for each in (stays, after):
            (status,) = each["status"]["containerStatuses"]
            assert (status["ready"], status["restartCount"]) == (True, 0)
        lines = len(_log(node, "stays").splitlines())
        assert wait(lambda: len(_log(node, "stays").splitlines()) > lines, TIMEOUT_S)
        assert len(set(_log(node, "stays").splitlines())) == 1, "always the same GPU"
        assert any(line.startswith(f"{NODE}: {TOOLKIT} stays: container ") for line in said), said
        program = f"{TOOLKIT}/nvidia-container-runtime"
        assert node.box.call("test", "-x", program).returncode == 0, "the pod was started by it"
    finally:
        node.api.delete(path)
        assert wait(lambda: node.api.find(path) is None, TIMEOUT_S)
        node.box.call("rm", "-rf", TOOLKIT)


OF_GUIDE_C = {
    "driver.enabled": "false", "operator.defaultRuntime": "containerd",
    "operator.runtimeClass": "nvidia", "cdi.enabled": "true", "cdi.default": "false",
    "mig.strategy": "single", "migManager.enabled": "true",
    "migManager.config.name": "default-mig-parted-config", "nfd.enabled": "true",
    "psp.enabled": "false", "toolkit.enabled": "true", "daemonsets.labels.team": "ml",
    "gfd.env[0].name": "GFD_EXTRA_LABELS", "gfd.env[0].value": "ecc\\,pci\\,present\\,operator",
}  # fmt: skip
"""Values that the guide to the GPU operator 1.11 explains; the last line adds gpu.deploy.*."""


@ON_ONE
def test_the_command_of_guide_c_installs_with_the_gpu_operators_values(node: Cluster) -> None:
    """Only the chart is another one, and its image."""
    before, labels, namespace = node.engine.snapshot(), _labels(node), "--namespace=gpu-operator"
    words = [f"--set={name}={value}" for name, value in OF_GUIDE_C.items()]
    installation = json.loads(
        node.helm("install", "--wait", "--generate-name", namespace, "--create-namespace",
                  str(CHART), *words, "--timeout=120s", "--output=json")
    )  # fmt: skip
    try:
        notes = installation["info"]["notes"]
        ignored = [line.partition(":")[0] for line in notes.splitlines() if line[:2] == "- "]
        assert ignored == ["- nfd", "- cdi.default"]
        assert _gpus(run(node.api, "first", _asks("nvidia"))) == 1
        assert wait(lambda: "nvidia.com/gpu.present" in _labels(node), TIMEOUT_S)
        found = _labels(node)
        for name in ("present", "deploy.container-toolkit", "deploy.mig-manager"):
            assert found[f"nvidia.com/gpu.{name}"] == "true"
        assert PCI_PRESENT in node.kubectl("get", "node", NODE, "--output=yaml")
        classes = node.kubectl("get", "runtimeclasses", "--output=name").split()
        assert {name.rpartition("/")[2] for name in classes} == set(CLASSES) - {""}
        assert _gpus(run(node.api, "of-2018", _of_2018("8000"))) == 1
        node.api.create(PODS, _of_2018("90000").manifest("too-large"))
        sentence = "didn't match Pod's node affinity"
        assert wait(lambda: sentence in str(node.api.events("too-large")), TIMEOUT_S)
        node.api.delete(f"{PODS}/too-large")
    finally:
        node.helm("uninstall", installation["name"], namespace, "--wait", "--timeout=180s")
    assert node.engine.snapshot() == before
    assert _labels(node) == labels


def _of_2018(memory: str) -> Pod:
    """Return the pod of guide A, which chooses a GPU by its memory, after nvct convert."""
    required = [{"key": "nvidia.com/gpu-memory", "operator": "Gt", "values": [memory]}]
    resource = {
        "name": "gpus",
        "resources": {"limits": {GPU: 1}},
        "affinity": {"required": required},
    }
    request = {"extendedResourceRequests": ["gpus"]}
    pod = Pod(script=LIST, container=request, spec={"extendedResources": [resource]})
    converted: Any = convert(pod.manifest("of-2018"))[0]
    (container,) = converted["spec"]["containers"]
    return Pod(
        script=LIST,
        container={"resources": container["resources"]},
        spec={"affinity": converted["spec"]["affinity"]},
    )


class Watched:
    """What a Node showed while something happened: nothing of it may vanish."""

    def __init__(self, node: Cluster) -> None:
        """Look at a cluster's node."""
        self._node = node
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.gpus: list[int] = []
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
        print(f"allocatable GPUs of the Node in {len(self.gpus)} looks: {Counter(self.gpus)}")

    def _watch(self) -> None:
        while not self._ended.wait(0.2):
            self.gpus.append(_allocatable(self._node))
            self.conditions.add(_condition(self._node))
            self.labels.add(_labels(self._node).get("nvidia.com/gpu.product"))


@ON_ONE
def test_a_node_that_boots_again_comes_back_by_itself(node: Cluster) -> None:
    """/run is empty then, and each container is started again; the engine's files stay."""
    with installed(node, *FARM):
        assert _gpus(run(node.api, "before", _asks(""))) == 1, _state(node)
        done = node.box.call("sh", "-c", POWER_OFF)
        assert done.returncode == 0, done
        node.engine.reload()
        containerd = node.box.call("pgrep", "-x", "containerd").stdout
        node.restart_kubelet()
        began = time.monotonic()
        assert wait(lambda: node.box.call("test", "-S", AGENT).returncode == 0, TIMEOUT_S)
        node.kubectl("rollout", "status", *IN_NAMESPACE, "daemonset/nvct", "--timeout=90s")
        after = run(node.api, "after", _asks("", f"{LIST}; {MOUNTED}"))
        print(f"nvidia-smi in a pod {time.monotonic() - began:.1f} s after the kubelet's start")
        assert _gpus(after) == 1, (after, _state(node))
        assert after.lines.count(OF_SPEC) == 1, (after, _state(node))
        assert node.box.call("pgrep", "-x", "containerd").stdout == containerd, "not reloaded"


@ON_ONE
@pytest.mark.parametrize("values", ["defaults", "openshift", "plugin-0.20", "dra", "monitoring"])
def test_the_api_server_accepts_what_the_chart_renders(values: str, node: Cluster) -> None:
    """A dry run on the server, without the objects whose kinds other software brings."""
    given = node.box.work / "values.yaml"
    given.write_text(json.dumps(MATRIX[values]))
    text = node.helm("template", "nvct", str(CHART), "--namespace=default", f"--values={given}",
                     "--no-hooks", f"--kube-version={programs.KUBERNETES.version()}")  # fmt: skip
    objects = [each for each in yaml.safe_load_all(text) if each and each["kind"] not in FOREIGN]
    rendered = node.box.work / "rendered.yaml"
    rendered.write_text(yaml.safe_dump_all(objects))
    done = node.kubectl(
        "create", "--dry-run=server", f"--filename={rendered}", "--validate=strict"
    )
    assert done.count("(server dry run)") == len(objects), done


@ON_ONE
def test_the_manifests_install_and_remove_it_without_helm(node: Cluster) -> None:
    """The steps of packaging/kubernetes/README.md."""
    before, labels = node.engine.snapshot(), _labels(node)
    installation, removal = (f"{MANIFESTS}/{name}" for name in ("nvct.yaml", "uninstall.yaml"))
    node.kubectl("apply", f"--filename={installation}")
    try:
        assert _gpus(run(node.api, "first", _asks(""))) == 1, _state(node)
    finally:
        node.kubectl("apply", f"--filename={removal}")
        node.kubectl("rollout", "status", *IN_NAMESPACE, "daemonset/nvct-uninstall",
                     "--timeout=120s")  # fmt: skip
        said = node.kubectl("logs", *IN_NAMESPACE, "--container=toolkit",
                            "--selector=app.kubernetes.io/component=uninstall")  # fmt: skip
        node.kubectl("delete", "--timeout=120s", f"--filename={removal}",
                     f"--filename={installation}")  # fmt: skip
    assert f"removed {TOOLKIT}" in said
    assert node.engine.snapshot() == before
    assert _labels(node) == labels


@ON_ONE
def test_a_label_chooses_the_config_file_and_every_right_is_used_and_no_other(
    node: Cluster,
) -> None:
    """All tasks that ask the API server do what they can, until the chart is removed."""
    began = node.audit_log.stat().st_size
    shared = "sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 2}]}}"
    if node.api.find(f"/api/v1/namespaces/{NAMESPACE}") is None:  # of an earlier test
        node.kubectl("create", "namespace", NAMESPACE)
    node.kubectl("create", "configmap", "plugin", *IN_NAMESPACE, "--from-literal=whole=version: v1",
                 f"--from-literal=shared=version: v1\n{shared}")  # fmt: skip
    taint = "example.com/no-gpus-yet"
    node.kubectl("taint", "node", NODE, f"{taint}=:NoSchedule")
    words = ("--set=devicePlugin.config.name=plugin", "--set=devicePlugin.config.default=whole",
             f"--set=devicePlugin.startupTaint={taint}")  # fmt: skip
    label = "nvidia.com/device-plugin.config"
    with installed(node, *words):
        rights = audit.granted(node.helm("get", "manifest", "nvct", *IN_NAMESPACE))
        assert wait(lambda: _allocatable(node) == GPUS, TIMEOUT_S), _state(node)
        assert wait(lambda: taint not in _taints(node), TIMEOUT_S), _state(node)
        node.kubectl("label", "node", NODE, f"{label}=shared")
        assert wait(lambda: _allocatable(node) == 2 * GPUS, TIMEOUT_S), _state(node)
        node.kubectl("label", "node", NODE, f"{label}-")
        assert wait(lambda: _allocatable(node) == GPUS, TIMEOUT_S), _state(node)
    node.kubectl("delete", *IN_NAMESPACE, "configmap", "plugin")
    requests = audit.of_accounts(audit.requests(node.audit_log, began))
    assert {each.right for each in requests} == rights
    assert rights <= audit.documented(PAGE.read_text())


@ON_ONE
def test_another_device_plugin_is_named_and_not_displaced(node: Cluster) -> None:
    listener = "import socket, time; s = socket.socket(socket.AF_UNIX); s.bind({!r}); s.listen(); "
    script = f"{listener.format(SOCKET)}time.sleep(600)"
    node.box.start(["python3", "-c", script], "other-plugin.log")
    try:
        assert wait(lambda: node.box.call("test", "-S", SOCKET).returncode == 0)
        with installed(node):
            assert wait(lambda: "is not displaced" in _state(node), TIMEOUT_S), _state(node)
            assert re.search(r"process \d+ \(python3\) serves", _state(node)), _state(node)
            assert _allocatable(node) == 0
            assert wait(lambda: "(python3) serves" in _status(node), TIMEOUT_S), _status(node)
    finally:
        node.box.call("pkill", "-f", SOCKET)
        node.box.call("rm", "-f", SOCKET)


@ON_ONE
def test_a_label_makes_mig_devices(node: Cluster) -> None:
    name = "nvidia.com/mig-7g.80gb"
    with installed(node, "--set=mig.strategy=mixed"):
        _show_tree(node)
        assert wait(lambda: _allocatable(node) == GPUS, TIMEOUT_S), _state(node)
        try:
            for config, resource in (("all-7g.80gb", name), ("all-disabled", GPU)):
                node.kubectl("label", "--overwrite", "node", NODE, f"{CONFIG}={config}")
                assert wait(lambda: _allocatable(node, resource) == GPUS, TIMEOUT_S), _state(node)  # noqa: B023
                done = wait(lambda: _labels(node).get(STATE) == "success", TIMEOUT_S)
                assert done, _state(node)
                if resource == name:
                    asked = {"limits": {name: "1"}}
                    pod = Pod(script=LIST, container={"resources": asked})
                    result = run(node.api, "on-mig", pod)
                    assert len(re.findall(r"UUID: MIG-", result.log)) == 1, result
        finally:
            node.kubectl("label", "node", NODE, f"{CONFIG}-")


@ON_ONE
def test_the_agent_may_change_labels_of_its_own_node_only(node: Cluster) -> None:
    other = "other-node"
    node.api.create("/api/v1/nodes", {"kind": "Node", "metadata": {"name": other}})
    label = '{"metadata": {"labels": {"nvidia.com/gpu.count": "9"}}}'
    cordon = '{"spec": {"unschedulable": true}}'
    other_taint = '{"spec": {"taints": [{"key": "example.com/b", "effect": "NoSchedule"}]}}'
    lie, own = (
        f'{{"status": {{"conditions": [{{"type": "{name}", "status": "False"}}]}}}}'
        for name in ("Ready", TYPE)
    )
    less = '{"status": {"capacity": {"cpu": "1"}}}'
    role = '{"metadata": {"labels": {"node-restriction.kubernetes.io/secret": ""}}}'
    feature = '{"metadata": {"labels": {"feature.node.kubernetes.io/pci-10de.present": "true"}}}'
    less_named = '{"metadata": {"labels": {"kubernetes.io/hostname": null}}}'
    note = '{"metadata": {"annotations": {"projectcalico.org/IPv4Address": "10.0.0.1"}}}'
    reason = '{"metadata": {"annotations": {"nvct.dev/mig.config.reason": "busy"}}}'
    elsewhere = '{"status": {"daemonEndpoints": {"kubeletEndpoint": {"Port": 1}}}}'
    try:
        words = (
            "--set=nodeSelector.kubernetes\\.io/hostname=none",
            "--set=devicePlugin.startupTaint=example.com/a",
        )
        with installed(node, *words):
            sentence = "may change only the Node that it runs on"
            assert wait(lambda: sentence in _patch(node, other, label))  # a policy takes a moment
            assert "patched" in _patch(node, NODE, label)
            assert "may change only the Node" in _patch(node, NODE, label, at="")
            assert "no part of a Node's spec but one taint" in _patch(node, NODE, cordon)
            assert "may remove no taint but example.com/a" in _patch(node, NODE, other_taint)
            assert "may change no condition but" in _patch(node, NODE, lie, part="status")
            assert "may not change the resources" in _patch(node, NODE, less, part="status")
            assert "may change no label of Kubernetes" in _patch(node, NODE, role)
            assert "may change no label of Kubernetes" in _patch(node, NODE, less_named)
            assert "patched" in _patch(node, NODE, feature)
            assert "may change no annotation but" in _patch(node, NODE, note)
            assert "patched" in _patch(node, NODE, reason)
            assert "may not change where" in _patch(node, NODE, elsewhere, part="status")
            assert "serverside-applied" in _patch(node, NODE, own, part="status")
    finally:
        node.api.delete(f"/api/v1/nodes/{other}")


def _show_tree(node: Cluster) -> None:
    """Mount the simulated node into the agent's container: there, MIG changes write files."""
    tree = str(simulated(node).tree)
    volume = {"name": "tree", "hostPath": {"path": tree}}
    mount = {"name": "tree", "mountPath": tree}
    pod = "/spec/template/spec"
    patch = [
        {"op": "add", "path": f"{pod}/volumes/-", "value": volume},
        {"op": "add", "path": f"{pod}/containers/0/volumeMounts/-", "value": mount},
    ]
    name = ("daemonset", "nvct", *IN_NAMESPACE)
    node.kubectl("patch", *name, "--type=json", f"--patch={json.dumps(patch)}")
    node.kubectl("rollout", "status", *name, "--timeout=90s")


def _patch(node: Cluster, name: str, patch: str, at: str = NODE, part: str = "") -> str:
    """Patch a Node with the agent's account, in a dry run; return what kubectl prints.

    `at` is the Node on which its pod runs, "" for a token that is not bound to a pod.
    """
    words = ["kubectl", f"--kubeconfig={_account(node, at)}", "--dry-run=server"]
    if part:  # kubectl patch would read the part first
        metadata = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
        manifest = f"{CLUSTER_FOLDER}/patch.json"
        node.box.write(manifest, json.dumps({**metadata, **json.loads(patch)}))
        words += ["apply", "--server-side", "--force-conflicts", f"--filename={manifest}"]
        done = node.box.call(*words, f"--subresource={part}")
    else:
        done = node.box.call(*words, "patch", "node", name, f"--patch={patch}")
    return done.stdout + done.stderr


def _memory_mib(node: Cluster) -> list[float]:
    """Return the proportional set sizes of the agent's processes and of NVML's."""
    script = "for p in $(pgrep -f 'nvct[.]agent'); do grep ^Pss: /proc/$p/smaps_rollup; done"
    lines = node.box.call("sh", "-c", script).stdout.splitlines()
    return [round(int(line.split()[1]) / 1024, 1) for line in lines]


def _account(node: Cluster, at: str) -> str:
    """Return the kubeconfig of the agent of a Node; "" is a token that is not bound to a pod."""
    config = json.loads(node.box.read(KUBECONFIG))
    claims = {"authentication.kubernetes.io/node-name": [at]} if at else {}
    account = {"as": f"system:serviceaccount:{NAMESPACE}:nvct", "as-user-extra": claims}
    config["users"][0]["user"].update(account)
    path = f"{CLUSTER_FOLDER}/as-agent.kubeconfig"
    node.box.write(path, json.dumps(config))
    return path


def _served(node: Cluster, port: str, path: str) -> str:
    """Return what a port of the Service answers."""
    service = f"/api/v1/namespaces/{NAMESPACE}/services/nvct-metrics:{port}"
    return node.kubectl("get", "--raw", f"{service}/proxy/{path}")


def _condition(node: Cluster) -> str:
    """Return the status of nvct's condition of the Node, "" if there is none."""
    found = node.api.find(f"/api/v1/nodes/{NODE}")
    assert found is not None
    return next((c["status"] for c in found["status"]["conditions"] if c["type"] == TYPE), "")


def _labels(node: Cluster) -> dict[str, str]:
    """Return the Node's labels of NVIDIA's."""
    found = node.api.find(f"/api/v1/nodes/{NODE}")
    assert found is not None
    labels = found["metadata"]["labels"]
    return {key: value for key, value in labels.items() if key.startswith("nvidia.com/")}


def _taints(node: Cluster) -> list[str]:
    """Return the keys of the Node's taints."""
    found = node.api.find(f"/api/v1/nodes/{NODE}")
    assert found is not None
    return [taint["key"] for taint in found["spec"].get("taints", ())]


def _status(node: Cluster) -> str:
    """Return the table of the cluster's GPU nodes."""
    kubeconfig = f"--kubeconfig={KUBECONFIG}"
    words = (f"{PROGRAMS}/python", "-I", "-m", "nvct.cli", "nvct", "cluster", "status")
    done = node.box.call(*words, kubeconfig)
    assert done.returncode == 0, done
    return done.stdout


@ON_ONE
def test_with_dra_a_plain_request_gets_a_gpu_by_a_claim(node: Cluster) -> None:
    slices = "/apis/resource.k8s.io/v1/resourceslices"
    with installed(node, "--set=dra.enabled=true"):
        first = run(node.api, "first", _asks(""))
        assert _gpus(first) == 1, first
        assert _allocatable(node) == 0
        assert wait(lambda: _condition(node) == "True", TIMEOUT_S), _state(node)
        found = node.api.find(slices)
        assert found is not None
        (written,) = found["items"]
        assert len(written["spec"]["devices"]) == GPUS
        assert written["metadata"]["managedFields"][0]["manager"] == "nvct-dra"
        name = written["metadata"]["name"]
        for at, sentence in (("other", "may change only the ResourceSlices"), (NODE, "deleted")):
            words = ("--dry-run=server", "delete", "resourceslice", name)
            done = node.box.call("kubectl", f"--kubeconfig={_account(node, at)}", *words)
            assert sentence in done.stdout + done.stderr, done


def _asks(runtime_class: str, script: str = LIST, count: int = 1) -> Pod:
    limits = {"resources": {"limits": {GPU: count}}}
    return Pod(script=script, runtime_class=runtime_class, container=limits, env=IMAGE_SAYS_ALL)


def _gpus(result: Result) -> int:
    return len(set(UUID.findall(result.log)))


def _log(node: Cluster, pod: str) -> str:
    """Return a pod's log, "" while it has none."""
    try:
        return node.api.logs(pod, CONTAINER)
    except ApiError:
        return ""


def _allocatable(node: Cluster, resource: str = GPU) -> int:
    found = node.api.find(f"/api/v1/nodes/{NODE}")
    assert found is not None
    return int(found["status"]["allocatable"].get(resource, 0))


def _state(node: Cluster) -> str:
    """Return the logs of the pods, and their state."""
    logs = ("logs", f"--namespace={NAMESPACE}", "--all-containers", "--prefix", "daemonset/nvct")
    pods = node.kubectl("describe", "pods", f"--namespace={NAMESPACE}")
    done = node.box.call("kubectl", f"--kubeconfig={KUBECONFIG}", *logs)
    return pods + done.stdout + done.stderr
