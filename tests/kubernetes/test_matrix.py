# SPDX-License-Identifier: Apache-2.0
"""Pods on a real kubelet see exactly the devices that it gave them: each way, each kind of device.

The kubelet's checkpoint says which it gave. Without NVCT_TESTS_PROFILE=full, a few cells of the matrix.
"""

import contextlib
import itertools
import json
import re

import pytest

from nvct.agent.device_plugin.resources import GPU, SEPARATOR
from nvct.agent.device_plugin.settings import FOLDER, ID_STRATEGIES, STRATEGIES
from tests.engines.box import PROGRAMS
from tests.engines.daemons import SPEC
from tests.engines.releases import FULL
from tests.kubernetes.api import PODS, wait
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.conftest import ON_ONE
from tests.kubernetes.device_plugin import (
    LIST,
    MANIFESTS,
    MOUNTS,
    PLUGIN,
    TIMEOUT_S,
    asks,
    divide,
    log,
    plugin,
    prepare,
    ruled,
    state,
)
from tests.kubernetes.listed import kubelet

pytestmark = [pytest.mark.slow, ON_ONE]
UUID = re.compile(r"UUID: (\S+)\)")
CHECKPOINT = f"{FOLDER}/kubelet_internal_checkpoint"
SMALL, LARGE = "nvidia.com/mig-1g.10gb", "nvidia.com/mig-2g.20gb.shared"
STAYS = f"{LIST}; echo listed; sleep 600"
PROFILES = {0: ["1g.10gb"] * 6, 1: ["2g.20gb"] * 3}
"""The MIG instances that are made, by GPU."""
SHARING = (
    "sharing: {timeSlicing: {renameByDefault: true, resources:"
    " [{name: nvidia.com/mig-2g.20gb, replicas: 2}]}}"
)
OFFERS = {GPU: 6, SMALL: 6, LARGE: 6}
"""Whole GPUs, MIG devices, and shared ones."""
PLAIN = "plain"
"""A RuntimeClass of the engine's own runtime: that of a pod without one, unless nvidia is the default."""
COUNTS = {"": 1, "nvidia": 2, "nvidia-cdi": 1, "nvidia-legacy": 1, PLAIN: 1}
"""How many devices a pod asks for, by its RuntimeClass."""
BY_ENGINE = ("cdi-annotations", "cdi-cri")
RULES = (MANIFESTS.parent / "helm/nvct/policy/pods.toml").read_text()
POLICIES = {
    "no-rules": ("", {}),
    "rules": (RULES, {}),
    "all": (RULES, {"NVIDIA_VISIBLE_DEVICES": "all"}),
}
"""Rules of the policy, and variables of the pods' authors."""
CELLS = [
    (strategy, ids, policy)
    for strategy in (*STRATEGIES, "envvar,cdi-cri")
    for ids in ID_STRATEGIES
    for policy in POLICIES
]
SHORT = [("envvar", "index", "all"), ("auto", "uuid", "rules")]


@pytest.fixture(scope="module")
def node(cluster: Cluster) -> Cluster:
    """Return a cluster whose default runtime is nvidia; its node has MIG devices as well."""
    prepare(cluster, "--set-as-default")
    plain = {"metadata": {"name": PLAIN}, "handler": "runc"}
    cluster.api.create("/apis/node.k8s.io/v1/runtimeclasses", plain)
    for gpu, profiles in PROFILES.items():
        divide(cluster, ",".join(profiles), gpu)
    hook = f"--nvidia-cdi-hook-path={PROGRAMS}/nvidia-cdi-hook"  # for the runtime nvidia-cdi
    done = cluster.box.call("nvidia-ctk", "cdi", "generate", f"--output={SPEC}", hook)
    assert done.returncode == 0, done
    return cluster


@pytest.mark.parametrize(("strategy", "ids", "policy"), CELLS if FULL else SHORT)
def test_pods_see_exactly_the_devices_that_they_were_given(
    strategy: str, ids: str, policy: str, node: Cluster
) -> None:
    """Whole GPUs, MIG devices and shared ones, with each RuntimeClass and without one."""
    flags = (f"--device-list-strategy={strategy}", f"--device-id-strategy={ids}")
    mounts = {**MOUNTS, "/run/containerd": "/run/containerd"}  # for auto
    rules, env = POLICIES[policy]
    with (
        ruled(node, rules),
        plugin(node, *flags, "--mig-strategy=mixed", config=SHARING, mounts=mounts),
    ):
        assert wait(lambda: offers(node) == OFFERS, TIMEOUT_S), state(node, PLUGIN)
        by_engine = not {*BY_ENGINE, "auto"}.isdisjoint(strategy.split(","))
        with contextlib.ExitStack() as stack:
            pods = []
            for number, (name, runtime_class) in enumerate(itertools.product(OFFERS, COUNTS)):
                if runtime_class != PLAIN or by_engine:
                    pod = asks(COUNTS[runtime_class], STAYS, name, runtime_class, env=env)
                    pods.append(f"asks-{number}")
                    stack.callback(delete, node, pods[-1])
                    node.api.create(PODS, pod.manifest(pods[-1]))
            for name in pods:
                until_listed(node, name)
            given = {name: devices(node, name) for name in pods}
            seen = {name: listed(node, name) for name in pods}
        every = [id_ for ids in given.values() for id_ in ids]
        assert len(set(every)) == len(every) == sum(COUNTS.values()) * 3 - 3 * (not by_engine)
        wrong = {
            name: (ids, seen[name])
            for name, ids in given.items()
            if seen[name] != {id_.partition(SEPARATOR)[0] for id_ in ids}
        }
        assert not wrong, wrong


def offers(node: Cluster) -> dict[str, int | None]:
    """Return how many devices of each resource the kubelet has."""
    return {name: kubelet(node, name) for name in OFFERS}


def until_listed(node: Cluster, pod: str) -> None:
    """Wait until a pod has listed its devices."""
    assert wait(lambda: is_listed(node, pod), TIMEOUT_S), state(node, pod)


def is_listed(node: Cluster, pod: str) -> bool:
    """Report whether a pod has listed its devices, or fail if it has ended."""
    found = node.api.get(f"{PODS}/{pod}")
    phase, message = (found["status"].get(key, "") for key in ("phase", "message"))
    assert phase in ("Pending", "Running"), (
        f"{phase} {message} {found['status'].get('containerStatuses')} {log(node, PLUGIN)}"
    )
    return "listed" in log(node, pod)


def listed(node: Cluster, pod: str) -> set[str]:
    """Return the UUIDs that a pod sees: of MIG devices if it has any, else of GPUs."""
    uuids = UUID.findall(log(node, pod))
    return {uuid for uuid in uuids if uuid.startswith("MIG-")} or set(uuids)


def devices(node: Cluster, pod: str) -> list[str]:
    """Return the ids of the devices that the kubelet has given a pod."""
    found = node.api.get(f"{PODS}/{pod}")
    entries = json.loads(node.box.read(CHECKPOINT))["Data"]["PodDeviceEntries"]
    return [
        id_
        for entry in entries
        if entry["PodUID"] == found["metadata"]["uid"]
        for ids in entry["DeviceIDs"].values()
        for id_ in ids
    ]


def delete(node: Cluster, pod: str) -> None:
    """Delete a pod, and wait until it has gone."""
    node.api.delete(f"{PODS}/{pod}")
    assert wait(lambda: node.api.find(f"{PODS}/{pod}") is None, TIMEOUT_S)
