# SPDX-License-Identifier: Apache-2.0
"""Shares of a GPU's memory that the scheduler should not give, and clients that want more.

An allocation can be of another scheduler, of one that counted otherwise before a change of the
driver, or forged by somebody who may write the status of claims.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from nvct.agent.dra.devices import DRIVER
from nvct.agent.dra.journal import FILE
from nvct.agent.kubernetes.cluster import Object
from tests.unit.agent.device_plugin.fake_kubelet import until
from tests.unit.agent.dra.fake_kubelet import RefusedError
from tests.unit.agent.dra.test_mps import LIMIT, PERCENTAGE, Lab, lab, node
from tests.unit.agent.dra.test_prepare import CLAIM
from tests.unit.agent.dra.test_shares import SIZE, allocate, pid, refused, resource
from tests.unit.agent.dra.test_sharing import config

__all__ = ["lab", "node"]
MOST = "15360Mi"
"""The memory of a T4."""


def results(lab: Lab, claim: str) -> list[Object]:
    found = lab.api.objects[CLAIM.plural, "ns", claim]["status"]["allocation"]["devices"][
        "results"
    ]
    assert isinstance(found, list)
    return found


@pytest.mark.parametrize(
    ("memory", "cores"),
    [
        ("0", "0"), ("-5Gi", "0"), ("0.5", "0"), ("1023Ki", "0"), ("1e-30", "0"), ("", "0"),
        ("all", "0"), (SIZE, "101"), (SIZE, "-1"), (SIZE, "1e30"), ("5000Mi\nquit", "0"),
    ],
)  # fmt: skip
async def test_a_share_that_is_none_is_refused(lab: Lab, memory: str, cores: str) -> None:
    lab.shares = "uniform"
    async with lab.agent():
        claim = lab.share("odd", "gpu-0", memory)
        results(lab, "odd")[0]["consumedCapacity"]["cores"] = cores
        why = await refused(lab, claim)
        assert "has a share of gpu-0 that is none" in why
        assert lab.journal() == []
        # More than there is means all of it, for one claim alone.
        whole = lab.share("whole", "gpu-0", "1e30")
        (device,) = await lab.kubelet.prepare(whole)
        assert len(device.cdi) == 2
        await lab.kubelet.unprepare(whole)


@pytest.mark.parametrize("shares", ["uniform", "mixed"])
async def test_shares_never_have_more_memory_than_the_gpu(lab: Lab, shares: str) -> None:
    lab.shares = shares
    claims = [lab.share(f"part-{n}", "gpu-0", SIZE) for n in range(4)]
    async with lab.agent():
        done = await asyncio.gather(*map(lab.kubelet.prepare, claims), return_exceptions=True)
        (problem,) = [str(one) for one in done if isinstance(one, RefusedError)]
        assert f"the shares of gpu-0 would have 20000Mi, and it has {MOST}" in problem
        late = claims[[isinstance(one, RefusedError) for one in done].index(True)]
        first, *rest = [one for one in claims if one is not late]
    async with lab.agent():  # killed meanwhile
        assert "would have 20000Mi" in await refused(lab, late)
        twice = lab.share("twice", "gpu-1", SIZE)
        found = results(lab, "twice")
        found += [{**found[0], "request": f"req-{n}"} for n in (1, 2, 3)]
        for number, one in enumerate(found):
            one["shareID"] = f"id-{number}"
        assert "would have 20000Mi" in await refused(lab, twice)
        await lab.kubelet.unprepare(first)
        await lab.kubelet.prepare(late)
        for claim in (late, *rest):
            await lab.kubelet.unprepare(claim)
        assert lab.journal() == []


async def test_the_kubelet_is_told_the_id_of_each_share(lab: Lab) -> None:
    lab.shares = "uniform"
    async with lab.agent():
        pair = lab.share("pair", "gpu-0", SIZE)
        found = results(lab, "pair")
        found.append({**found[0], "request": "b/large"})
        for number, one in enumerate(found):
            one["shareID"] = f"0000000{number}-1111-4222-8333-444444444444"
        devices = await lab.kubelet.prepare(pair)
        assert [(one.requests, one.device, one.share) for one in devices] == [
            (("req-0",), "gpu-0", "00000000-1111-4222-8333-444444444444"),
            (("b",), "gpu-0", "00000001-1111-4222-8333-444444444444"),
        ]
        assert devices[0].cdi == devices[1].cdi
    async with lab.agent():
        assert await lab.kubelet.prepare(pair) == devices
        # A journal of an earlier version has no ids: the daemon of the running pods stays.
        await lab.kubelet.unprepare(pair)
        await lab.kubelet.prepare(pair)
    path = lab.folder / f"plugins/{DRIVER}/{FILE}"
    document = json.loads(path.read_text())
    del document["claims"][0]["entries"][0]["shares"]
    path.write_text(json.dumps(document))
    async with lab.agent():
        (older,) = await lab.kubelet.prepare(pair)
        assert (older.requests, older.share) == (("req-0", "b"), "")
        await lab.kubelet.unprepare(pair)
        whole = lab.share("whole", "gpu-0", MOST)
        (all_of_it,) = await lab.kubelet.prepare(whole)
        assert all_of_it.share == ""
        await lab.kubelet.unprepare(whole)


async def test_after_a_change_of_the_setting_shares_of_both_kinds_do_not_meet(lab: Lab) -> None:
    for lab.shares, other in (("uniform", "mixed"), ("mixed", "uniform")):
        async with lab.agent():
            first = lab.share("first", "gpu-0", SIZE)
            await lab.kubelet.prepare(first)
        lab.shares = other
        async with lab.agent():
            second = lab.share("second", "gpu-0", SIZE)
            why = await refused(lab, second)
            assert "has shares of another setting of MEMORY_SHARES for claim ns/first" in why
            await lab.kubelet.unprepare(first)
            await lab.kubelet.prepare(second)
            await lab.kubelet.unprepare(second)


async def test_a_daemon_that_a_client_has_ended_is_back_with_its_limit(lab: Lab) -> None:
    lab.shares = "uniform"
    async with lab.agent():
        claim = lab.share("part", "gpu-0", SIZE)
        await lab.kubelet.prepare(claim)
        name = resource(lab)
        before = pid(lab, name)
        lab.say(name, "set_default_device_pinned_mem_limit 0 15G\nquit")
        await until(lambda: lab.say(name, PERCENTAGE) == "100.0")
        assert pid(lab, name) != before
        # A process that comes in the moment before the limit keeps what it has got: docs/dra.md.
        await until(lambda: "G" in lab.say(name, f"{LIMIT} 0"))
        assert allocate(lab, "part", "5001M") == "out of memory: limit 5000M"
        assert lab.modes()[0] == "E"
        await lab.kubelet.unprepare(claim)


@pytest.mark.parametrize("named", ["../../../etc", "A", "a" * 300, "a/b", "a\nb"])
async def test_an_annotation_of_a_users_claim_is_no_path(lab: Lab, named: str) -> None:
    """Whoever makes a claim can write what the controller writes on claims of templates."""
    async with lab.agent() as made:
        known = made._preparer._settings
        made._preparer._settings = replace(known, device_metadata=True)
        claim = lab.allocate("odd", "gpu-0", sharing=config())
        metadata = lab.api.objects[CLAIM.plural, "ns", "odd"]["metadata"]
        metadata["annotations"] = {"resource.kubernetes.io/pod-claim-name": named}
        await lab.kubelet.prepare(claim)
        (path,) = [
            mount["containerPath"] for edits in lab.spec("odd").values()
            for mount in edits.get("mounts", ())
        ]  # fmt: skip
        assert path == (
            "/var/run/kubernetes.io/dra-device-attributes/resourceclaims/odd/req-0/"
            "gpu.nvidia.com-metadata.json"
        )
        await lab.kubelet.unprepare(claim)


async def test_a_claim_that_cannot_be_written_stops_no_other_one(lab: Lab) -> None:
    """Such as one that an earlier version has in its journal."""
    async with lab.agent():
        claim = lab.allocate("odd", "gpu-0", sharing=config())
        await lab.kubelet.prepare(claim)
    path = lab.folder / f"plugins/{DRIVER}/{FILE}"
    path.write_text(path.read_text().replace('"pod_claim": ""', '"pod_claim": "../../etc"'))
    async with lab.agent() as made:
        await made._preparer.reconcile()
        other = lab.allocate("other", "gpu-1", sharing=config())
        await lab.kubelet.prepare(other)
        await made._preparer.reconcile()
        assert "claim ns/odd cannot be written" in await refused(lab, claim)
        for one in (claim, other):
            await lab.kubelet.unprepare(one)
        assert lab.journal() == []
