# SPDX-License-Identifier: Apache-2.0
"""Device plugin and exporter with a real kubelet: pods get what they ask for, and each series has its pod."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse

from nvct.agent.device_plugin.resources import GPU
from nvct_sim import node_changes
from tests.engines.box import DRIVER_ROOT, PROGRAMS
from tests.engines.checks import UUID
from tests.kubernetes.api import PODS, wait
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.conftest import ON_ONE
from tests.kubernetes.device_plugin import (
    GPUS,
    LIST,
    TIMEOUT_S,
    allocatable,
    asks,
    divided,
    log,
    plugin,
    simulated,
    state,
)

pytestmark = [pytest.mark.slow, ON_ONE]
SMALL = "nvidia.com/mig-1g.10gb"
SHARED = f"{GPU}.shared"
FILE = "/run/prometheus/dcgm.prom"
NAME = "DCGM_FI_DEV_GPU_TEMP"
STAYS = f"{LIST}; sleep 600"


@contextlib.contextmanager
def exporter(cluster: Cluster, *flags: str) -> Iterator[None]:
    """Run the exporter on the node, beside the kubelet."""
    cluster.box.call("mkdir", "-p", FILE.rpartition("/")[0])
    cluster.box.call("rm", "-f", FILE)
    words = (
        f"{PROGRAMS}/python", "-I", "-m", "nvct.agent.core.program", "dcgm-exporter", "--textfile", FILE,
        "--driver-root-ctr-path", DRIVER_ROOT, "--collect-interval", "1000", *flags,
    )  # fmt: skip
    with cluster.running("exporter.log", *words) as daemon:
        yield
    assert daemon.returncode == 0


@contextlib.contextmanager
def pods(cluster: Cluster, resources: dict[str, str]) -> Iterator[dict[str, str]]:
    """Run a pod for each name with one device of a resource; yield what each of them sees."""
    for name, resource in resources.items():
        cluster.api.create(PODS, asks(1, STAYS, resource).manifest(name))
    try:
        for name in resources:
            assert wait(lambda: "UUID" in log(cluster, name), TIMEOUT_S), state(cluster, name)  # noqa: B023
        yield {name: log(cluster, name) for name in resources}
    finally:
        for name in resources:
            cluster.api.delete(f"{PODS}/{name}")
        assert wait(lambda: not any(cluster.api.find(f"{PODS}/{n}") for n in resources), TIMEOUT_S)


def series(cluster: Cluster, name: str = NAME) -> list[dict[str, str]]:
    """Return the labels of all series of one metric."""
    try:
        text = cluster.box.read(FILE)
    except FileNotFoundError:
        return []
    found: list[Any] = [family for family in parse(text) if family.name == name]
    return [sample.labels for family in found for sample in family.samples]


def of_pod(cluster: Cluster, pod: str, name: str = NAME) -> list[dict[str, str]]:
    return [labels for labels in series(cluster, name) if labels.get("pod") == pod]


def test_a_whole_gpu_has_its_pod_and_what_that_uses_and_loses_it(node: Cluster) -> None:
    machine, used = simulated(node), "nvct_container_gpu_memory_used_bytes"
    with plugin(node), exporter(node, "--processes"):
        assert wait(lambda: allocatable(node) == GPUS, TIMEOUT_S)
        with pods(node, {"train": GPU}) as seen:
            assert wait(lambda: of_pod(node, "train"), TIMEOUT_S), series(node)
            (labels,) = of_pod(node, "train")
            uuid = labels["UUID"]
            assert UUID.findall(seen["train"]) == [uuid]
            assert (labels["namespace"], labels["container"]) == ("default", "main")
            assert len(series(node)) == GPUS
            index = next(g.fields["index"] for g in machine.state().find("gpu", uuid=uuid))
            pid = node.box.call("pgrep", "-n", "-x", "sleep").stdout.strip()
            words = [index, pid, f"memory={5 << 30}", "sm=30"]
            node_changes.apply(machine, "process", words)
            try:
                has_used = wait(lambda: of_pod(node, "train", used), TIMEOUT_S)
                assert has_used, node.box.read(f"/proc/{pid}/cgroup")
                (labels,) = of_pod(node, "train", used)
                assert (labels["container"], labels["UUID"]) == ("main", uuid)
            finally:
                node_changes.apply(machine, "process-end", words[:2])
        assert wait(lambda: not of_pod(node, "train"), TIMEOUT_S), series(node)
        assert len(series(node)) == GPUS


def test_mig_instances_are_offered_when_they_are_made_and_have_their_pods(node: Cluster) -> None:
    names = ("infer-a", "infer-b")
    with plugin(node, "--mig-strategy=mixed"), exporter(node):
        assert wait(lambda: allocatable(node) == GPUS, TIMEOUT_S)
        with divided(node, "1g.10gb,1g.10gb"):
            assert wait(lambda: allocatable(node, SMALL) == 2, TIMEOUT_S), state(node, "plugin")
            with pods(node, {**dict.fromkeys(names, SMALL), "rest": GPU}) as seen:
                assert len({seen[name].partition("UUID: MIG-")[2] for name in names}) == 2
                assert seen["rest"].count("UUID: GPU-") == 1
                assert wait(lambda: all(of_pod(node, n) for n in names), TIMEOUT_S), series(node)
                rows = [row for name in names for row in of_pod(node, name)]
                assert [row["GPU_I_PROFILE"] for row in rows] == ["1g.10gb"] * 2
                assert len({row["GPU_I_ID"] for row in rows}) == 2
        assert wait(lambda: allocatable(node, SMALL) == 0, TIMEOUT_S)
        assert wait(lambda: allocatable(node) == GPUS, TIMEOUT_S)


def test_shared_gpus_are_distributed_and_have_each_pod_where_that_is_asked_for(
    node: Cluster,
) -> None:
    rule = "{name: nvidia.com/gpu, replicas: 2}"
    config = f"sharing: {{timeSlicing: {{renameByDefault: true, resources: [{rule}]}}}}"
    names = [f"share-{number}" for number in range(4)]
    with plugin(node, config=config), exporter(node, "--kubernetes-virtual-gpus"):
        assert wait(lambda: allocatable(node, SHARED) == 2 * GPUS, TIMEOUT_S)
        with pods(node, dict.fromkeys(names, SHARED)) as seen:
            assert wait(lambda: all(of_pod(node, n) for n in names), TIMEOUT_S), series(node)
            labels = {name: of_pod(node, name) for name in names}
            assert {n: [each["UUID"] for each in rows] for n, rows in labels.items()} == {
                name: UUID.findall(seen[name]) for name in names
            }
            assert len({rows[0]["UUID"] for rows in labels.values()}) == len(names)
            assert {rows[0]["vgpu"] for rows in labels.values()} <= {"0", "1"}
