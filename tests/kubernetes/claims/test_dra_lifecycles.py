# SPDX-License-Identifier: Apache-2.0
"""Random claims live and die, and nothing leaks, and nothing is given twice.

The test plays scheduler and kubelet for a Node of its own, so that it can do what these would not: the API server, the
journal and the driver's process are real. test_dra_shares.py has the real ones.
"""

import asyncio
import contextlib
import json
import random
import re
import time
from collections.abc import Iterator
from pathlib import Path

import grpc.aio
import pytest

from nvct.agent.kubelet.dra_service import ClaimRef
from tests.engines.releases import FULL
from tests.kubernetes.api import wait
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.conftest import ON_ONE
from tests.kubernetes.device_plugin import GPUS, smi
from tests.kubernetes.dra import (
    CLAIMS,
    TIMEOUT_S,
    Driver,
    account,
    devices,
    make_classes,
    make_node,
)  # fmt: skip
from tests.support.cpu import Limit
from tests.unit.agent.dra.fake_kubelet import FakeKubelet, RefusedError

pytestmark = [pytest.mark.slow, ON_ONE]
RANDOM = 1000 if FULL else 60
"""How many claims live."""
LONELY, FOLDER = "lonely", "/run/lonely"
"""The Node without a kubelet, and the folder that its kubelet would have."""
SMALL = "gpu-0-mig-1g10gb-19-{}"
FREE = [*(f"gpu-{n}" for n in range(1, GPUS)), *(SMALL.format(n) for n in range(7))]
"""Devices that exclude no other one: whole GPUs, and MIG devices of the first one."""


@pytest.fixture(scope="module")
def kubeconfig(node: Cluster) -> str:
    make_classes(node, extended="")
    return account(node)


class Lonely:
    """The Node, its driver, and a test as its scheduler and kubelet.

    Attributes:
        live: the devices of each claim that is prepared, by the claim.
        counts: how often each thing was done.
    """

    def __init__(self, cluster: Cluster, kubeconfig: str) -> None:
        self.cluster = cluster
        self.driver = Driver(cluster, kubeconfig, LONELY, FOLDER)
        self.kubelet = FakeKubelet(f"{FOLDER}/registry", root=str(cluster.box.root))
        self.live: dict[ClaimRef, list[str]] = {}
        self.counts: dict[str, int] = {}

    async def start(self) -> None:
        self.driver.launch()
        limit = Limit(TIMEOUT_S)
        while True:
            try:
                await self.kubelet.register()
                return
            except (AssertionError, ValueError, grpc.aio.AioRpcError):
                assert not limit.is_over, self.driver.log()
            await asyncio.sleep(0.05)

    def allocate(self, name: str, chosen: list[str]) -> ClaimRef:
        """Create a claim that has devices."""
        exactly = {"deviceClassName": "gpu.nvidia.com", "count": len(chosen)}
        spec = {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}
        created = self.cluster.api.request(
            "POST", CLAIMS, {"metadata": {"name": name}, "spec": spec}
        )
        results = [
            {"request": "gpu", "driver": "gpu.nvidia.com", "pool": LONELY, "device": device}
            for device in chosen
        ]
        status = {"allocation": {"devices": {"results": results}}}
        self.cluster.api.patch(f"{CLAIMS}/{name}/status", {"status": status})
        return ClaimRef("default", name, json.loads(created)["metadata"]["uid"])

    def specs(self) -> dict[str, list[str]]:
        """Return the device nodes of GPUs and MIG devices that each claim's CDI file gives."""
        folder: Path = self.cluster.box.root / f"{FOLDER}/cdi".lstrip("/")
        found = {}
        for path in folder.glob("k8s.gpu.nvidia.com-claim_*.json"):
            document = json.loads(path.read_text())
            found[path.stem.partition("_")[2]] = [
                node["path"]
                for device in document["devices"]
                for node in device["containerEdits"]["deviceNodes"]
                if re.fullmatch(r"/dev/nvidia\d+|/dev/nvidia-caps/nvidia-cap\d+", node["path"])
            ]
        return found

    def taken(self) -> set[str]:
        """Return the devices that live claims have."""
        return {device for chosen in self.live.values() for device in chosen}

    def check(self) -> None:
        """Check that journal and files are those of the live claims, each device once."""
        claims = self.driver.claims()
        assert {c["uid"] for c in claims} == {ref.uid for ref in self.live}, self.driver.log()
        held = [entry["device"] for claim in claims for entry in claim["entries"]]
        assert sorted(held) == sorted(name for chosen in self.live.values() for name in chosen)
        assert len(set(held)) == len(held)
        specs = self.specs()
        assert specs.keys() == {ref.uid for ref in self.live}
        # MIG devices share the node of their GPU, and no other one.
        nodes = [
            node for of_claim in specs.values() for node in of_claim if node != "/dev/nvidia0"
        ]
        assert len(set(nodes)) == len(nodes), specs

    async def step(self, dice: random.Random, name: str) -> None:
        """Let a new claim live, and let something happen."""
        while len(self.taken()) > len(FREE) - 3:
            await self.end(dice, dice.choice(list(self.live)))
        taken = self.taken()
        free = [device for device in FREE if device not in taken]
        chosen = dice.sample(free, dice.choice([1, 1, 1, 2, 3]))
        if taken and dice.random() < 0.1:
            await self.conflict(dice.choice(sorted(taken)))
        ref = self.allocate(name, chosen)
        given = await self.kubelet.prepare(ref)
        assert [device.device for device in given] == chosen
        self.live[ref] = chosen
        happening = dice.choices(
            [self.again, self.kill, self.boot, self.lose_api, None], [30, 2, 1, 0.5, 60]
        )[0]
        if happening is not None:
            await happening(dice)
        if dice.random() < 0.8:
            await self.end(dice, dice.choice(list(self.live)))

    async def conflict(self, device: str) -> None:
        """A claim for a device that another one has is refused."""
        self.count("conflicts")
        ref = self.allocate("conflict", [device])
        with pytest.raises(RefusedError, match="is prepared for claim default/"):
            await self.kubelet.prepare(ref)
        self.cluster.api.delete(f"{CLAIMS}/{ref.name}")

    async def end(self, dice: random.Random, ref: ClaimRef) -> list[str]:
        """End a claim as the kubelet does, or delete it by force; return its devices."""
        if dice.random() < 0.8:
            for _ in range(dice.choice([1, 1, 2])):
                await self.kubelet.unprepare(ref)
            self.cluster.api.delete(f"{CLAIMS}/{ref.name}")
        else:
            self.count("deleted while prepared")
            self.cluster.api.delete(f"{CLAIMS}/{ref.name}")
            if dice.random() < 0.5:
                await self.kubelet.unprepare(ref)
            else:  # the next start finds out
                await self.kill(dice)
                assert wait(lambda: ref.uid not in self.specs(), TIMEOUT_S), self.driver.log()
        return self.live.pop(ref)

    async def again(self, dice: random.Random) -> None:
        """The kubelet asks again for what it has."""
        self.count("asked again")
        ref = dice.choice(list(self.live))
        given = await self.kubelet.prepare(ref)
        assert [device.device for device in given] == self.live[ref]

    async def kill(self, _dice: random.Random) -> None:
        """The driver is killed, and started again."""
        self.count("kills")
        self.driver.kill()
        await self.start()

    async def boot(self, _dice: random.Random) -> None:
        """The node boots: /run is empty, and MIG devices are gone."""
        self.count("boots")
        self.driver.kill()
        self.cluster.box.call("rm", "-rf", f"{FOLDER}/cdi")
        for word in ("-dci", "-dgi"):
            with contextlib.suppress(AssertionError):  # there is none
                smi(self.cluster, "mig", word)
        await self.start()
        uids = {ref.uid for ref in self.live}
        assert wait(lambda: self.specs().keys() == uids, TIMEOUT_S), self.driver.log()

    async def lose_api(self, dice: random.Random) -> None:
        """The API server ends, and comes back; what is prepared stays."""
        self.count("API server ended")
        self.cluster.box.call("pkill", "-KILL", "-x", "kube-apiserver")
        await self.again(dice)
        assert wait(self.cluster.api.is_ready, TIMEOUT_S)

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1


@pytest.fixture
def lonely(node: Cluster, kubeconfig: str) -> Iterator[Lonely]:
    make_node(node, LONELY)
    made = Lonely(node, kubeconfig)
    smi(node, "-i", "0", "-mig", "1")
    try:
        yield made
    finally:
        made.driver.remove()
        for words in (("mig", "-dci"), ("mig", "-dgi"), ("-i", "0", "-mig", "0")):
            with contextlib.suppress(AssertionError):  # after a failure, some are left
                smi(node, *words)
        node.api.delete(f"/api/v1/nodes/{LONELY}")


@pytest.mark.timeout(3600)
def test_random_claims_leave_nothing_behind(lonely: Lonely) -> None:
    seed = random.randrange(10**6)
    dice = random.Random(seed)
    print(f"seed {seed}")

    async def test() -> None:
        await lonely.start()
        assert wait(lambda: set(FREE) <= devices(lonely.cluster, LONELY).keys(), TIMEOUT_S)
        for number in range(RANDOM):
            await lonely.step(dice, f"claim-{number % 20}-{number}")
            lonely.check()
        for ref in list(lonely.live):
            await lonely.end(dice, ref)
        lonely.check()

    began = time.monotonic()
    asyncio.run(test())
    print(f"{RANDOM} claims in {time.monotonic() - began:.0f} s: {lonely.counts}")
    assert "MIG" not in smi(lonely.cluster, "-L")
    failures = re.findall(r"Z error: .*", lonely.driver.log())
    assert not failures, failures[:10]
