# SPDX-License-Identifier: Apache-2.0
"""What a change of MIG meets: pods that have devices, labels of the Node, services of the host."""

import asyncio
import contextlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from nvct.agent.kubelet.pod_resources import Claim, Holding
from nvct.agent.kubernetes import node_pods as pods
from nvct.agent.kubernetes.cluster import FORBIDDEN, POD, ClusterError, Kind, Object
from nvct.agent.kubernetes.node_pods import PodDevice
from nvct.agent.mig_manager import node_labels
from nvct.agent.mig_manager.node_labels import REASON, STATE
from nvct.agent.mig_manager.users import STOPPED, HostServices
from nvct.errors import DocumentError, HostError
from nvct.host.nvml.model import NvmlGpu, NvmlMig, NvmlReport
from tests.support.broken_disk import break_call

REPORT = NvmlReport(
    driver_version="580.1",
    cuda_version="13.0",
    gpus=(
        NvmlGpu(index=0, minor=0, uuid="GPU-0", bus_id="", name="A100"),
        NvmlGpu(
            index=1, minor=1, uuid="GPU-1", bus_id="", name="A100", mig_enabled=True,
            mig=(NvmlMig(index=0, uuid="MIG-0", gi=9, ci=0),),
        ),
    ),
)  # fmt: skip


def holding(pod: str, *ids: str) -> Holding:
    return Holding("default", pod, "main", "nvidia.com/gpu", ids)


@pytest.mark.parametrize(
    ("id_", "gpu", "instance", "device"),
    [
        ("GPU-0", "GPU-0", None, "GPU-0"),
        ("GPU-0::3", "GPU-0", None, "GPU-0"),
        ("0", "GPU-0", None, "GPU-0"),
        ("MIG-0", "GPU-1", (9, 0), "MIG-0"),
        ("MIG-0::1", "GPU-1", (9, 0), "MIG-0"),
        ("1:0", "GPU-1", (9, 0), "MIG-0"),
    ],
)
def test_an_id_is_found(id_: str, gpu: str, instance: tuple[int, int] | None, device: str) -> None:
    (found,) = pods.devices([holding("train", id_)], REPORT)
    assert (found.gpu, found.instance) == (gpu, instance)
    assert str(found) == f"pod default/train has {device}"


def test_ids_of_others_and_repeated_ones_are_left_out() -> None:
    holdings = [holding("train", "MIG-gone", "rdma0", "GPU-0::0", "GPU-0::1")]
    assert len(pods.devices(holdings, REPORT)) == 1


@pytest.mark.parametrize("resource", ["rdma/hca", "nvidia.com/rdma", "example.com/gpu"])
def test_a_number_of_another_resource_is_no_gpu(resource: str) -> None:
    holdings = [Holding("default", "network", "main", resource, ("0", "1:0"))]
    assert pods.devices(holdings, REPORT) == []


def test_the_pod_of_a_gpu_that_nvml_has_lost_is_found_by_its_uuid() -> None:
    holdings = [holding("train", "GPU-lost::1"), holding("other", "GPU-0")]
    found = pods.devices(holdings, REPORT, lost=["GPU-lost"])
    assert [(each.pod, each.gpu) for each in found] == [("train", "GPU-lost"), ("other", "GPU-0")]


class FakeNvml:
    async def report(self) -> NvmlReport:
        return REPORT


class FakeCluster:
    def __init__(self, phases: dict[str, str]) -> None:
        self.phases = phases
        self.evicted: list[tuple[str, str, str]] = []

    async def find(self, kind: Kind, name: str, namespace: str) -> Object | None:
        assert (kind, namespace) == (POD, "default")
        if name == "secret":
            raise ClusterError("may not get pods", status=FORBIDDEN)
        if name not in self.phases:
            return None
        where = "node-2" if name == "elsewhere" else "node-1"
        return {
            "metadata": {"name": name, "uid": f"uid-{name}"},
            "spec": {"nodeName": where},
            "status": {"phase": self.phases[name]},
        }

    async def evict(self, namespace: str, name: str, uid: str) -> None:
        self.evicted.append((namespace, name, uid))


class FakeKubelet:
    def __init__(self, path: Path) -> None:
        self.is_there = path.exists

    async def holdings(self) -> tuple[Holding, ...]:
        names = ("runs", "ended", "gone", "secret")
        return tuple(holding(name, "GPU-0") for name in names)


def asked(path: Path) -> list[str]:
    cluster = FakeCluster({"runs": "Running", "ended": "Succeeded"})
    found = pods.Pods(FakeNvml(), cluster, str(path))  # type: ignore[arg-type]
    found._kubelet = FakeKubelet(path)  # type: ignore[assignment]
    return [each.pod for each in asyncio.run(found.devices())]


def test_pods_that_have_ended_do_not_count(tmp_path: Path) -> None:
    path = tmp_path / "kubelet.sock"
    assert asked(path) == []  # there is no kubelet
    path.touch()
    assert asked(path) == ["runs", "secret"]


async def test_without_a_kubelet_nobody_knows_who_has_a_gpu(tmp_path: Path) -> None:
    found = pods.Pods(FakeNvml(), FakeCluster({}), f"{tmp_path}/kubelet.sock")  # type: ignore[arg-type]
    with pytest.raises(HostError, match="the kubelet does not answer"):
        await found.devices(["GPU-0"])
    await found.close()


CLAIM = Claim("claim", "default", "node-1")


class KubeletOfClaims(FakeKubelet):
    async def holdings(self) -> tuple[Holding, ...]:
        claimed = Holding("default", "claims", "main", "gpu.nvidia.com", ("gpu-1",), CLAIM)
        part = Holding("default", "part", "main", "gpu.nvidia.com", ("gpu-1-mig-0",), CLAIM)
        return claimed, part, holding("elsewhere", "GPU-1"), holding("secret", "GPU-0")


async def test_the_pods_of_one_gpu_by_claim_too_and_none_that_runs_elsewhere(
    tmp_path: Path,
) -> None:
    socket = tmp_path / "pod-resources/kubelet.sock"
    journal = tmp_path / "plugins/gpu.nvidia.com/nvct-claims.json"
    for path in (socket, journal):
        path.parent.mkdir(parents=True)
    socket.touch()
    entries = [
        {"device": "gpu-1", "uuid": "GPU-1", "gpu": "GPU-1"},
        {"device": "gpu-1-mig-0", "uuid": "", "gpu": "GPU-1"},  # made for the claim
    ]
    claims = [{"namespace": "default", "name": "claim", "entries": entries}]
    journal.write_text(json.dumps({"claims": claims}))
    cluster = FakeCluster(dict.fromkeys(("claims", "part", "elsewhere"), "Running"))
    found = pods.Pods(FakeNvml(), cluster, str(socket), "node-1")  # type: ignore[arg-type]
    found._kubelet = KubeletOfClaims(socket)  # type: ignore[assignment]

    devices = await found.devices(["GPU-1"])
    assert [each.pod for each in devices] == ["claims", "part"]
    await found.evict([*devices, *await found.devices(["GPU-0"])])
    assert cluster.evicted == [
        ("default", "claims", "uid-claims"), ("default", "part", "uid-part"),
        ("default", "secret", ""),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("metadata", "says"),
    [
        ({"labels": {pods.PROTECTED: "never"}}, "label nvct.dev/evict forbids its eviction"),
        ({"annotations": {pods.MIRROR: "hash"}}, "it is a static pod, which no eviction ends"),
        ({"labels": {pods.PROTECTED: "never"}, "deletionTimestamp": "now"}, ""),
        ({"labels": {pods.PROTECTED: "later"}}, ""),
    ],
)
async def test_a_protected_pod_is_not_evicted_and_none_beside_it(
    metadata: Object, says: str, tmp_path: Path
) -> None:
    cluster = FakeCluster({})
    found = pods.Pods(FakeNvml(), cluster, str(tmp_path))  # type: ignore[arg-type]
    names = {"other": {}, "train": metadata}
    devices = [
        PodDevice("default", name, "GPU-0", None, "GPU-0", {"metadata": its})
        for name, its in names.items()
    ]
    with pytest.raises(ClusterError, match=says) if says else contextlib.nullcontext():
        await found.evict(devices)
    assert len(cluster.evicted) == (0 if says else 2)


# The patch of a Node: only what differs, and only labels that are there.


PLUGIN, EXPORTER, DCGM = (
    f"nvidia.com/gpu.deploy.{name}" for name in ("device-plugin", "dcgm-exporter", "dcgm")
)


def node(labels: dict[str, str] | None = None, reason: str = "") -> dict[str, Any]:
    annotations = {REASON: reason} if reason else {}
    return {"metadata": {"name": "node-1", "labels": labels, "annotations": annotations}}


def test_a_node_without_labels_asks_for_nothing() -> None:
    assert node_labels.wanted(node()) == node_labels.state(node()) == ""
    assert not node_labels.can_pause(node())
    assert node_labels.patch(node(), None, "", pauses=False) == {}
    assert node_labels.patch(node(), "pending", "", pauses=True) == {"labels": {STATE: "pending"}}


def test_only_daemonsets_that_are_deployed_are_paused_and_come_back() -> None:
    labels = {PLUGIN: "true", DCGM: "false", STATE: "success"}
    assert node_labels.can_pause(node(labels))
    paused = node_labels.patch(node(labels), "pending", "", pauses=True)
    assert paused == {"labels": {PLUGIN: "paused-for-mig-change", STATE: "pending"}}
    back = node_labels.patch(node({**labels, **paused["labels"]}), "success", "", pauses=False)
    assert back == {"labels": {PLUGIN: "true", STATE: "success"}}


def test_the_label_of_the_agents_own_pod_is_spared() -> None:
    labels = {PLUGIN: "true", node_labels.OWN: "true"}
    paused = node_labels.patch(node(labels), None, "", pauses=True, spares_own=True)
    assert paused == {"labels": {PLUGIN: "paused-for-mig-change"}}
    assert node_labels.OWN in node_labels.patch(node(labels), None, "", pauses=True)["labels"]


def test_what_a_killed_manager_left_is_put_back_though_nothing_is_wanted() -> None:
    left = node({EXPORTER: "paused-for-mig-change"})
    assert node_labels.patch(left, None, "", pauses=False) == {"labels": {EXPORTER: "true"}}


def test_the_reason_is_an_annotation_that_goes_with_the_failure() -> None:
    labels = {STATE: "failed"}
    assert node_labels.patch(node(labels), "failed", "x" * 5000, pauses=False) == {
        "annotations": {REASON: "x" * 1024}
    }
    assert node_labels.patch(node(labels, "busy"), "failed", "busy", pauses=False) == {}
    assert node_labels.patch(node(labels, "busy"), "success", "", pauses=False) == {
        "labels": {STATE: "success"}, "annotations": {REASON: None},
    }  # fmt: skip


def test_uninstallation_leaves_nothing_of_it() -> None:
    assert node_labels.leaving(node({PLUGIN: "true", node_labels.CONFIG: "mine"})) == {}
    assert node_labels.leaving(node({PLUGIN: "paused-for-mig-change", STATE: "failed"}, "busy")) == {
        "labels": {PLUGIN: "true", STATE: None}, "annotations": {REASON: None},
    }  # fmt: skip


# Services of the host: those that run are stopped and started again, after a kill, too.


SYSTEMCTL = """#!/bin/sh
echo "$@" >> {log}
case "$*" in
  "is-active --quiet dcgm.service") exit 0;;
  "start dcgm.service") [ ! -e {log}.broken ] || {{ echo "it is masked" >&2; exit 1; }};;
  is-active*) exit 3;;
esac
"""


@pytest.fixture
def clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A systemctl and a file of clients; return that file."""
    program = tmp_path / "systemctl"
    program.write_text(SYSTEMCTL.format(log=tmp_path / "log"))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    path = tmp_path / "clients.yaml"
    path.write_text("version: v1\nsystemd-services: [dcgm.service, nvsm.service]\n")
    return path


def called(clients: Path) -> list[str]:
    log = clients.parent / "log"
    return log.read_text().splitlines() if log.exists() else []


def services(clients: Path) -> HostServices:
    return HostServices("/nowhere", str(clients), str(clients.parent))


def test_only_what_runs_is_stopped_and_started(clients: Path) -> None:
    services(clients).stop()
    assert called(clients)[-1] == "stop dcgm.service"
    services(clients).start()  # another process
    assert called(clients)[-1] == "start dcgm.service"
    services(clients).start()
    assert called(clients).count("start dcgm.service") == 1


def test_one_that_does_not_start_is_tried_again(clients: Path) -> None:
    broken = clients.parent / "log.broken"
    broken.touch()
    services(clients).stop()
    with pytest.raises(HostError, match=r"systemctl start dcgm\.service .* fails: it is masked"):
        services(clients).start()
    broken.unlink()
    services(clients).start()
    assert called(clients).count("start dcgm.service") == 2


@pytest.mark.parametrize("call", ["open", "unlink"])
def test_a_disk_that_fails_is_a_sentence(
    call: str, clients: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    services(clients).stop()
    break_call(monkeypatch, call, STOPPED)

    with pytest.raises(HostError, match=rf"{STOPPED}, cannot be used: Input/output error"):
        services(clients).start()


def test_without_a_file_systemd_is_not_asked(clients: Path) -> None:
    nothing = HostServices("/", "", str(clients.parent))
    nothing.stop()
    nothing.start()
    assert called(clients) == []


@pytest.mark.parametrize("text", ["[1]", "systemd-services: 7", "{", None])
def test_a_malformed_file_is_refused(clients: Path, text: str | None) -> None:
    if text is None:
        clients.unlink()
    else:
        clients.write_text(text)
    with pytest.raises(DocumentError, match=r"clients\.yaml(: No such| lists no s| is malf)"):
        services(clients).stop()
    assert called(clients) == []
