# SPDX-License-Identifier: Apache-2.0
"""Shares of a GPU's memory that the scheduler should not give, and what users write on their claims.

An allocation can be of another scheduler, of one that counted otherwise before a change of the
driver, or forged by somebody who may write the status of claims.
"""

import asyncio
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nvct.agent.kubelet.dra_service import ClaimRef
from nvct.agent.kubernetes.cluster import Object
from nvct.errors import HostError, NvctError
from tests.unit.agent.dra.test_mps_waits import with_mps
from tests.unit.agent.dra.test_prepare import CLAIM, Node
from tests.unit.agent.dra.test_sharing import by_mps

SIZE, MOST = "5000Mi", "15360Mi"


class Shares(Node):
    """A node of T4, whose MPS control daemons start and end at once."""

    def restart(self, *, is_boot: bool = False, **settings: Any) -> None:
        super().restart(is_boot=is_boot)
        self.preparer.settings = replace(self.settings, **settings)
        self.daemons = with_mps(self)
        self.daemons.may.set()

    def share(self, name: str, memory: str = SIZE, cores: str = "0", gpu: int = 0) -> ClaimRef:
        consumed = {"memory": memory, "cores": cores}
        return self.allocate(name, f"gpu-{gpu}", consumedCapacity=consumed)

    def of(self, claim: str) -> Any:
        """Return the devices of a claim's allocation."""
        return self.api.objects[CLAIM.plural, "ns", claim]["status"]["allocation"]["devices"]

    async def refuses(self, claim: ClaimRef) -> str:
        with pytest.raises(NvctError) as caught:
            await self.preparer.prepare(claim)
        return caught.value.message

    def rewrite(self, pattern: str, text: str) -> None:
        path = Path(self.journal.path)
        before = path.read_text()
        path.write_text(re.sub(pattern, text, before))
        assert path.read_text() != before

    def prepared(self) -> list[str]:
        return [claim.name for claim in self.journal.load().values()]


@pytest.fixture
def node(tmp_path: Path) -> Shares:
    return Shares(tmp_path)


@pytest.mark.parametrize(
    ("memory", "cores"),
    [
        ("0", "0"), ("-5Gi", "0"), ("0.5", "0"), ("1023Ki", "0"), ("1e-30", "0"), ("", "0"),
        ("all", "0"), (SIZE, "101"), (SIZE, "-1"), (SIZE, "1e30"), ("5000Mi\nquit", "0"),
    ],
)  # fmt: skip
async def test_a_share_that_is_none_is_refused(node: Shares, memory: str, cores: str) -> None:
    why = await node.refuses(node.share("odd", memory, cores))
    assert "the claim's share of gpu-0 is malformed" in why
    assert node.prepared() == []


@pytest.mark.parametrize("memory", [MOST, "1e30"])
async def test_all_of_the_memory_is_a_gpu_alone(node: Shares, memory: str) -> None:
    (device,) = await node.preparer.prepare(node.share("whole", memory))
    assert (len(device.cdi), device.share, node.daemons.asked) == (2, "", [])


@pytest.mark.parametrize("shares", ["uniform", "mixed"])
async def test_shares_never_have_more_memory_than_the_gpu(node: Shares, shares: str) -> None:
    node.restart(memory_shares=shares)
    claims = [node.share(f"part-{n}") for n in range(4)]
    done = await asyncio.gather(*map(node.preparer.prepare, claims), return_exceptions=True)
    (problem,) = [one for one in done if isinstance(one, HostError)]
    assert f"the shares of gpu-0 would need 20000Mi, but it has {MOST}" in problem.message
    late, first = claims[done.index(problem)], claims[done.index(problem) - 1]
    node.restart(memory_shares=shares)  # killed meanwhile
    assert "would need 20000Mi" in await node.refuses(late)
    twice = node.share("twice", gpu=1)
    node.of("twice")["results"] *= 4
    node.of("twice")["results"] = [
        {**one, "request": f"req-{n}", "shareID": f"id-{n}"}
        for n, one in enumerate(node.of("twice")["results"])
    ]
    assert "would need 20000Mi" in await node.refuses(twice)
    await node.preparer.unprepare(first)
    await node.preparer.prepare(late)


async def test_the_kubelet_is_told_the_id_of_each_share(node: Shares) -> None:
    pair = node.share("pair")
    found = node.of("pair")["results"]
    found.append({**found[0], "request": "b/large"})
    for number, one in enumerate(found):
        one["shareID"] = f"id-{number}"
    devices = await node.preparer.prepare(pair)
    assert [(one.requests, one.share) for one in devices] == [
        (("req-0",), "id-0"), (("b",), "id-1"),
    ]  # fmt: skip
    assert devices[0].cdi == devices[1].cdi
    node.restart()
    assert await node.preparer.prepare(pair) == devices
    # A journal of an earlier version has no ids: the daemon of the running pods stays.
    node.rewrite(r'(?s),\s*"shares": .*?\]\s*\]', "")
    node.restart()
    (older,) = await node.preparer.prepare(pair)
    assert (older.requests, older.share) == (("req-0", "b"), "")


async def test_what_would_break_the_limit_of_others_is_refused_with_a_sentence(
    node: Shares,
) -> None:
    first, larger = node.share("first"), node.share("larger", "6000Mi")
    await node.preparer.prepare(first)
    why = await node.refuses(larger)
    assert "has shares of 5000Mi for claim ns/first, and this claim asks for 6000Mi" in why
    whole = node.allocate("whole", "gpu-0")
    why = await node.refuses(whole)
    assert "ns/first has a share of the memory of GPU-0" in why
    both = node.share("both", gpu=1)
    found = node.of("both")["results"]
    found.append({**found[0], "request": "b", "device": "gpu-2"})
    why = await node.refuses(both)
    assert "a share of a GPU's memory beside other devices (gpu-1, gpu-2)" in why
    found[1] = {**found[0], "request": "b", "consumedCapacity": {"memory": "1Gi"}}
    assert "has shares of different sizes of gpu-1" in await node.refuses(both)
    by_both = node.share("by-both", gpu=1)
    node.of("by-both")["config"] = by_mps()
    why = await node.refuses(by_both)
    assert "and for an MPS configuration or a time slice, and can" in why
    assert node.prepared() == ["first"]
    # What is refused while others share is given when they have ended.
    await node.preparer.unprepare(first)
    await node.preparer.prepare(whole)
    assert "is prepared for claim ns/whole" in await node.refuses(larger)


@pytest.mark.parametrize(("older", "newer"), [("uniform", "mixed"), ("mixed", "uniform")])
async def test_after_a_change_of_the_setting_shares_of_both_kinds_do_not_meet(
    node: Shares, older: str, newer: str
) -> None:
    node.restart(memory_shares=older)
    first, second = node.share("first"), node.share("second")
    await node.preparer.prepare(first)
    node.restart(memory_shares=newer)
    why = await node.refuses(second)
    assert "has shares from another setting of MEMORY_SHARES for claim ns/first" in why
    await node.preparer.unprepare(first)
    await node.preparer.prepare(second)


@pytest.mark.parametrize("named", ["../../../etc", "A", "a" * 300, "a/b", "a\nb"])
async def test_an_annotation_of_a_users_claim_is_no_path(node: Shares, named: str) -> None:
    """Whoever makes a claim can write what the controller writes on claims of templates."""
    node.restart(device_metadata=True)
    claim = node.allocate("odd", "gpu-0")
    metadata: Object = node.api.objects[CLAIM.plural, "ns", "odd"]["metadata"]
    metadata["annotations"] = {"resource.kubernetes.io/pod-claim-name": named}
    await node.preparer.prepare(claim)
    edits = [one["containerEdits"] for one in node.spec(claim)["devices"]]
    (path,) = [mount["containerPath"] for one in edits for mount in one.get("mounts", ())]
    assert path == (
        "/var/run/kubernetes.io/dra-device-attributes/resourceclaims/odd/req-0/"
        "gpu.nvidia.com-metadata.json"
    )


async def test_a_claim_that_cannot_be_written_stops_no_other_one(node: Shares) -> None:
    """Such as one that an earlier version has in its journal."""
    claim, other = node.allocate("odd", "gpu-0"), node.allocate("other", "gpu-1")
    await node.preparer.prepare(claim)
    node.rewrite('"pod_claim": ""', '"pod_claim": "../../etc"')
    node.restart()
    await node.preparer.reconcile()
    await node.preparer.prepare(other)
    await node.preparer.reconcile()
    assert other.uid in node.files()
    assert "claim ns/odd is refused" in await node.refuses(claim)
    for one in (claim, other):
        await node.preparer.unprepare(one)
    assert node.prepared() == []
