# SPDX-License-Identifier: Apache-2.0
"""Claims on two real nodes: two kubelets, two engines, two DRA drivers, GPUs of two models.

Part of `make ci-full`. After each test both nodes are as they were before the first one.
"""

import contextlib
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import pytest

from tests.engines import conftest as engines
from tests.engines.checks import UUID
from tests.kubernetes import device_plugin
from tests.kubernetes.api import PODS, wait
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.conftest import CASES, ON_ONE
from tests.kubernetes.device_plugin import LIST, restarts
from tests.kubernetes.dra import (
    API,
    ATTRIBUTES,
    CLAIMS,
    LARGE,
    Driver,
    account,
    asks_for_claims,
    claim,
    devices,
    log_of,
    make_classes,
    pod,
    runs,
)  # fmt: skip
from tests.kubernetes.node import FIRST, SECOND, ClusterNode, machine
from tests.kubernetes.pods import ENDED, Pod, run, run_all

Workers: TypeAlias = dict[str, "Worker"]
Happening: TypeAlias = Callable[["Worker"], None]

pytestmark = [pytest.mark.slow, ON_ONE]
RELEASE = "trixie"
PROFILE, TESLAS = "t4-4", 4
"""The second node's GPUs; the first one has H100s."""
TESLA = f"{ATTRIBUTES}.productName == 'Tesla T4'"
SLOW = f"{LIST}; sleep 600"
TEMPLATES = f"{API}/namespaces/default/resourceclaimtemplates"
RANDOM = 50
"""How many pods live."""
ALWAYS = {"restartPolicy": "Always"}
TIMEOUT_S = 100.0
"""The driver compares its journal with the API server each minute."""
REFUSED = "is prepared for claim"
"""In an event of a pod whose claim needs a GPU that another claim has; the kubelet tries again."""
EACH = pytest.mark.parametrize("name", [FIRST.name, SECOND.name])


@dataclass
class Worker:
    """A node with its driver."""

    driver: Driver
    fits: str

    @property
    def node(self) -> ClusterNode:
        return self.driver.node

    @property
    def name(self) -> str:
        return self.node.name

    @property
    def gpus(self) -> int:
        return self.driver.gpus

    @property
    def registered(self) -> int:
        """Return how often the kubelet has registered the driver."""
        return self.driver.log().count("Registered DRA driver")

    def slices(self) -> list[dict[str, Any]]:
        """Return the ResourceSlices of the node."""
        found = self.node.api.get(
            f"{API}/resourceslices?fieldSelector=spec.nodeName%3D{self.name}"
        )
        slices: list[dict[str, Any]] = found["items"]
        return slices

    def state(self) -> dict[str, Any]:
        """Return what claims could leave behind."""
        return {
            "journal": self.driver.journal(),
            "cdi": sorted(self.node.box.call("ls", "/var/run/cdi").stdout.split()),
            "devices": [one["spec"].get("devices") for one in self.slices()],
        }

    def work(self, pod_name: str) -> dict[str, Any]:
        """Return what changes if the node or this pod of it is disturbed."""
        found = self.node.api.get(f"{PODS}/{pod_name}")
        node = self.node.api.get(self.node.path)
        conditions = {one["type"]: one for one in node["status"]["conditions"]}
        return {
            "containers": [one["containerID"] for one in found["status"]["containerStatuses"]],
            "kubelet": self.node.box.call("pgrep", "-x", "kubelet").stdout,
            "registered": self.registered,
            "slices": [one["metadata"]["resourceVersion"] for one in self.slices()],
            "ready since": conditions["Ready"]["lastTransitionTime"],
        }


@pytest.fixture(scope="module")
def second(node: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterNode]:
    _, engine_of = CASES[RELEASE]
    prepared = engines.prepare(RELEASE, tmp_path_factory, PROFILE)
    with machine(engine_of, *prepared) as engine:
        joined = node.join(engine)
        device_plugin.configure(joined)
        yield joined


@pytest.fixture(scope="module")
def both(node: Cluster, second: ClusterNode) -> Iterator[Workers]:
    """Yield the nodes, whose drivers have offered their GPUs."""
    make_classes(node, extended="")
    kubeconfig = account(node)
    second.box.write(kubeconfig, node.box.read(kubeconfig))
    workers = [
        Worker(Driver(node, kubeconfig), LARGE),
        Worker(Driver(second, kubeconfig, gpus=TESLAS), TESLA),
    ]
    try:
        for worker in workers:
            worker.driver.start()
        yield {worker.name: worker for worker in workers}
    finally:
        for worker in workers:
            worker.driver.kill()


@pytest.fixture(scope="module")
def at_first(both: Workers) -> Mapping[str, Any]:
    return {name: worker.state() for name, worker in both.items()}


@pytest.fixture(autouse=True)
def _nothing_stays(node: Cluster, both: Workers, at_first: Mapping[str, Any]) -> Iterator[None]:
    """Delete a test's claims, and compare both nodes with what they were before the first test."""

    def now() -> dict[str, Any]:
        return {name: worker.state() for name, worker in both.items()}

    yield
    node.api.delete(CLAIMS)
    logs = [worker.driver.log() for worker in both.values()]
    assert wait(lambda: now() == at_first, TIMEOUT_S), (now(), at_first, logs)
    assert re.findall(r".*Z error: .*", "".join(logs)) == []


def kill_driver(worker: Worker) -> None:
    """Kill the driver; what follows happens while there is none."""
    worker.driver.kill()


def end_kubelet(worker: Worker) -> None:
    """End the kubelet, which is started again at once and deletes the slices of its node."""
    worker.node.restart_kubelet()


def boot(worker: Worker) -> None:
    """Boot the node; what follows happens before there is a driver again."""
    worker.driver.kill()
    worker.node.boot()


HAPPENINGS: list[Happening] = [kill_driver, end_kubelet, boot]


@EACH
@pytest.mark.parametrize("happening", HAPPENINGS)
def test_what_happens_to_a_node_does_not_reach_the_other(
    node: Cluster, both: Workers, name: str, happening: Happening
) -> None:
    """On this node, a claim stays and another one ends; on the other node, two claims live."""
    hit = both[name]
    (other,) = (worker for worker in both.values() if worker is not hit)
    for one, fits in (("stays", hit.fits), ("ends", hit.fits), ("beside", other.fits)):
        claim(node, one, fits)
    with contextlib.ExitStack() as stack:
        for one in ("stays", "ends", "beside"):
            stack.enter_context(pod(node, one, asks_for_claims(one, script=SLOW, **ALWAYS)))
        seen = _seen(node, "stays", "ends", "beside")
        work, registered = other.work("beside"), hit.registered
        happening(hit)
        node.api.delete(f"{PODS}/ends")
        node.api.delete(f"{CLAIMS}/ends")
        claim(node, "meanwhile", other.fits)
        (meanwhile,) = UUID.findall(run(node.api, "meanwhile", asks_for_claims("meanwhile")).log)
        assert meanwhile not in seen["beside"]
        _come_back(hit, happening, registered)
        assert other.work("beside") == work
        are_new = happening is boot
        assert wait(lambda: (restarts(node, "stays") > 0) == are_new, TIMEOUT_S)
        assert _seen(node, "stays", "beside") == {one: seen[one] for one in ("stays", "beside")}
        _gives_the_rest(node, both, seen["stays"] + seen["beside"])
        assert wait(lambda: hit.driver.journal() == ["stays"], TIMEOUT_S), hit.driver.log()


@pytest.mark.timeout(900)
def test_random_pods_on_nodes_to_which_things_happen(node: Cluster, both: Workers) -> None:
    """All pods are there at once; each gets one GPU of any node, and has to run to its end."""
    seed = random.randrange(10**6)
    dice = random.Random(seed)
    print(f"seed {seed}")
    claim_spec = {"devices": {"requests": [
        {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}
    ]}}  # fmt: skip
    node.api.create(TEMPLATES, {"metadata": {"name": "any"}, "spec": {"spec": claim_spec}})
    names = [f"random-{number}" for number in range(RANDOM)]
    turns = [(worker, happening) for worker in both.values() for happening in HAPPENINGS]
    dice.shuffle(turns)
    try:
        for name in names:
            node.api.create(
                PODS, _of_template(f"{LIST}; sleep {dice.randint(0, 8)}").manifest(name)
            )
        for worker, happening in turns:
            assert not wait(lambda: _are_twice(both), dice.uniform(0, 4))
            registered = worker.registered
            happening(worker)
            _come_back(worker, happening, registered)
            print(f"{happening.__name__} {worker.name}: {_phases(node, names)}")
        assert wait(lambda: _are_twice(both) or _have_ended(node, names), TIMEOUT_S * 2), (
            _phases(node, names)
        )  # fmt: skip
        assert not _are_twice(both)
        assert _phases(node, names) == {"Succeeded": RANDOM}
        assert all(len(UUID.findall(node.api.logs(name))) == 1 for name in names)
    finally:
        for name in names:
            node.api.delete(f"{PODS}/{name}")
        node.api.delete(f"{TEMPLATES}/any")


def _of_template(script: str) -> Pod:
    return Pod(
        script=script,
        container={"resources": {"claims": [{"name": "gpu"}]}},
        spec={
            "restartPolicy": "OnFailure",
            "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "any"}],
            "tolerations": [{"operator": "Exists"}],
        },
    )


def _are_twice(both: Workers) -> bool:
    """Return whether the journals have a GPU for two claims."""
    held = [
        entry["uuid"]
        for worker in both.values()
        for one in worker.driver.claims()
        for entry in one["entries"]
    ]
    return len(set(held)) != len(held)


def _phases(node: Cluster, names: list[str]) -> dict[str, int]:
    """Return how many of the pods have each phase."""
    found = node.api.get(PODS)
    pods = (one for one in found["items"] if one["metadata"]["name"] in names)
    return dict(Counter(one["status"]["phase"] for one in pods))


def _have_ended(node: Cluster, names: list[str]) -> bool:
    return set(_phases(node, names)) <= set(ENDED)


def _come_back(worker: Worker, happening: Happening, registered: int) -> None:
    """Start the driver if it was killed, and wait until it offers the GPUs to a new kubelet."""
    if happening is not end_kubelet:
        worker.driver.start()
    assert wait(lambda: worker.registered > registered, TIMEOUT_S), worker.driver.log()
    assert wait(lambda: len(devices(worker.node, worker.name)) == worker.gpus, TIMEOUT_S), (
        worker.driver.log()
    )  # fmt: skip


def _gives_the_rest(node: Cluster, both: Workers, held: list[str]) -> None:
    """Check that one claim on each node can have all GPUs but the one that is held there.

    The GPU of a claim that is gone is free for another one at once, though the journal may have it.
    """
    for name, worker in both.items():
        claim(node, f"rest-of-{name}", worker.fits, worker.gpus - 1)
    asked = {f"rest-of-{name}": asks_for_claims(f"rest-of-{name}") for name in both}
    results = run_all(node.api, asked).values()
    assert not [text for one in results for text in one.events if REFUSED in text]
    given = [uuid for one in results for uuid in UUID.findall(one.log)]
    every = [uuid for name in both for uuid in devices(node, name).values()]
    assert sorted(given + held) == sorted(every)


def _seen(node: Cluster, *names: str) -> dict[str, list[str]]:
    """Return the GPUs that running pods see."""
    assert wait(
        lambda: all(runs(node, name) and UUID.findall(log_of(node, name)) for name in names),
        TIMEOUT_S,
    ), [node.api.events(name) for name in names]
    return {name: UUID.findall(log_of(node, name)) for name in names}
