# SPDX-License-Identifier: Apache-2.0
"""Pods on a real kubelet see exactly the devices that it gave them: each strategy, each kind of device.

The kubelet's checkpoint says which it gave.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import re
import time
from dataclasses import dataclass

import pytest

from nvct.agent.device_plugin.resources import GPU, SEPARATOR
from nvct.agent.device_plugin.settings import FOLDER, STRATEGIES
from tests.engines.releases import of_release
from tests.kubernetes.api import PODS, wait
from tests.kubernetes.device_plugin import (
    GPUS,
    LIST,
    PLUGIN,
    TIMEOUT_S,
    asks,
    log,
    plugin,
    smi,
    state,
)
from tests.kubernetes.listed import kubelet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.kubernetes.cluster import Cluster

pytestmark = [
    pytest.mark.slow,
    pytest.mark.parametrize("cluster", [of_release("trixie")], indirect=True),
]
UUID = re.compile(r"UUID: (\S+)\)")
CHECKPOINT = f"{FOLDER}/kubelet_internal_checkpoint"
SMALL, LARGE = "nvidia.com/mig-1g.10gb", "nvidia.com/mig-3g.40gb"
CROWD = 100 if os.environ.get("NVCT_TESTS_PROFILE") == "full" else 16
"""Pods."""
STAYS = f"cut -d' ' -f1 /proc/uptime; {LIST}; echo listed; sleep 600"
SHARED = f"{GPU}.shared"
SHARING = f"sharing: {{timeSlicing: {{renameByDefault: true, resources: [{{name: {GPU}, replicas: 2}}]}}}}"


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of devices.

    Attributes:
        profiles: of the MIG instances that are made, by GPU.
        flags, config: of the plugin.
        offers: what the kubelet then has, by resource.
        rounds: what pods ask for, those of a round at the same time.
    """

    profiles: dict[int, Sequence[str]]
    flags: tuple[str, ...] = ()
    config: str = ""
    offers: dict[str, int]
    rounds: Sequence[Sequence[tuple[str, int]]]


KINDS = {
    "full": Kind(profiles={}, offers={GPU: GPUS}, rounds=[[(GPU, 1), (GPU, 2)], [(GPU, 8)]]),
    "mig-single": Kind(
        profiles={gpu: ["3g.40gb", "3g.40gb"] for gpu in range(GPUS)},
        flags=("--mig-strategy=single",),
        offers={GPU: 2 * GPUS},
        rounds=[[(GPU, 1), (GPU, 2), (GPU, 8)]],
    ),
    "mig-mixed": Kind(
        profiles={0: ["1g.10gb"] * 3, 1: ["3g.40gb", "1g.10gb"]},
        flags=("--mig-strategy=mixed",),
        offers={GPU: GPUS - 2, SMALL: 4, LARGE: 1},
        rounds=[[(SMALL, 1), (SMALL, 2), (LARGE, 1), (GPU, 2), (GPU, 4)]],
    ),
    "shared": Kind(
        profiles={},
        config=SHARING,
        offers={SHARED: 2 * GPUS},
        rounds=[[(SHARED, count) for count in (1, 2, 8)]],
    ),
}


@pytest.fixture(scope="module")
def kind(node: Cluster, request: pytest.FixtureRequest) -> Iterator[Kind]:
    """Yield a kind whose MIG instances exist."""
    wanted = KINDS[request.param]
    try:
        for gpu, profiles in wanted.profiles.items():
            smi(node, "-i", str(gpu), "-mig", "1")
            smi(node, "mig", "-i", str(gpu), "-cgi", ",".join(profiles), "-C")
        yield wanted
    finally:
        for gpu in wanted.profiles:
            smi(node, "mig", "-i", str(gpu), "-dci")
            smi(node, "mig", "-i", str(gpu), "-dgi")
            smi(node, "-i", str(gpu), "-mig", "0")


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("kind", KINDS, indirect=True)
def test_pods_see_exactly_the_devices_that_they_were_given(
    strategy: str, kind: Kind, node: Cluster
) -> None:
    flags = (f"--device-list-strategy={strategy}", *kind.flags)
    with plugin(node, *flags, config=kind.config):
        assert wait(lambda: offers(node, kind) == kind.offers, TIMEOUT_S), state(node, "plugin")
        for asked in kind.rounds:
            pods = [f"asks-{number}" for number in range(len(asked))]
            with contextlib.ExitStack() as stack:
                for pod, (name, count) in zip(pods, asked, strict=True):
                    stack.callback(delete, node, pod)
                    node.api.create(PODS, asks(count, STAYS, name).manifest(pod))
                for pod in pods:
                    until_listed(node, pod)
                given = {pod: devices(node, pod) for pod in pods}
                seen = {pod: listed(node, pod) for pod in pods}
            every = [id_ for ids in given.values() for id_ in ids]
            assert len(set(every)) == len(every) == sum(count for _, count in asked), given
            for pod, ids in given.items():
                assert seen[pod] == {id_.partition(SEPARATOR)[0] for id_ in ids}, (given, seen)


@pytest.mark.parametrize("kind", ["full"], indirect=True)
def test_a_crowd_that_is_started_and_deleted_in_random_order(kind: Kind, node: Cluster) -> None:
    """No GPU is given to a pod before another one that has it is deleted."""
    assert kind is KINDS["full"], "strategy none offers GPUs in MIG mode as well"
    chance = random.Random(1)
    waiting = [f"crowd-{number}" for number in range(CROWD)]
    alive: dict[str, int] = {}
    spans: dict[str, list[tuple[float, float]]] = {}
    with plugin(node):
        assert wait(lambda: kubelet(node) == GPUS, TIMEOUT_S)
        while waiting or alive:
            fits = GPUS - sum(alive.values())
            if waiting and fits and (not alive or chance.random() < 2 / 3):
                pod, count = waiting.pop(), chance.randint(1, min(fits, 4))
                node.api.create(PODS, asks(count, STAYS).manifest(pod))
                alive[pod] = count
                continue
            pod = chance.choice(sorted(alive))
            until_listed(node, pod)
            began = float(log(node, pod).split()[0])
            uuids, count = listed(node, pod), alive.pop(pod)
            assert len(uuids) == count, (pod, uuids)
            assert uuids == set(devices(node, pod))
            ended = time.clock_gettime(time.CLOCK_BOOTTIME)
            delete(node, pod)
            for uuid in uuids:
                spans.setdefault(uuid, []).append((began, ended))
    assert len(spans) == GPUS
    for ordered in map(sorted, spans.values()):
        # /proc/uptime has hundredths of a second.
        pairs = itertools.pairwise(ordered)
        assert all(before[1] <= after[0] + 0.01 for before, after in pairs), ordered


def offers(node: Cluster, kind: Kind) -> dict[str, int | None]:
    """Return how many devices of a kind's resources the kubelet has."""
    return {name: kubelet(node, name) for name in kind.offers}


def until_listed(node: Cluster, pod: str) -> None:
    """Wait until a pod has listed its devices."""
    assert wait(lambda: is_listed(node, pod), TIMEOUT_S), state(node, pod)


def is_listed(node: Cluster, pod: str) -> bool:
    """Report whether a pod has listed its devices, or fail if it has ended."""
    found = node.api.find(f"{PODS}/{pod}")
    assert found is not None
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
    found = node.api.find(f"{PODS}/{pod}")
    assert found is not None
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
