# SPDX-License-Identifier: Apache-2.0
"""Claims with a part of a GPU's memory or a time slice, on a simulated node with the stand-in for MPS."""

import asyncio
import subprocess
from pathlib import Path
from typing import Any, cast

import pytest

from nvct.agent.dra import slices
from nvct.agent.dra.devices import MIB, Device, Offer
from nvct.agent.kubernetes.cluster import Object
from nvct.agent.mps.daemons import of_shares
from tests.unit.agent.device_plugin.fake_kubelet import until
from tests.unit.agent.dra.fake_api import FakeApi
from tests.unit.agent.dra.fake_kubelet import RefusedError
from tests.unit.agent.dra.test_mps import Lab, lab, node, uuids
from tests.unit.agent.dra.test_prepare import CLAIM
from tests.unit.agent.dra.test_sharing import config
from tests.unit.agent.dra.test_slices import publishing
from tests.unit.agent.dra.test_task import SLICES

__all__ = ["lab", "node"]
SIZE, WHOLE = "5000Mi", "15Gi"
OWN = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"


def policy(lab: Lab, device: str = "gpu-0") -> Any:
    """Return what the slice says about parts of a GPU's memory."""
    (found,) = [
        one for each in lab.api.all(SLICES) for one in each["spec"]["devices"]
        if one["name"] == device
    ]  # fmt: skip
    return found["capacity"]["memory"].get("requestPolicy")


def resource(lab: Lab) -> str:
    """Return the daemon of the shares of the first GPU."""
    return of_shares(uuids(lab, "gpu-0")[0])


def allocate(lab: Lab, claim: str, amount: str, **env: str) -> str:
    """Return what a program of a claim's pod is told that allocates memory."""
    (found,) = [edits for name, edits in lab.spec(claim).items() if name.endswith("-mps")]
    variables = dict(one.split("=", 1) for one in found["env"])
    (pipes,) = [one["hostPath"] for one in found["mounts"] if one["hostPath"].endswith("/pipe")]
    done = subprocess.run(
        ["nvidia-cuda-mps-control", "--sim-client", amount], text=True, check=False, timeout=10,
        env={
            **variables, "PATH": lab.env["PATH"], "LD_LIBRARY_PATH": lab.env["LD_LIBRARY_PATH"],
            **env, "CUDA_MPS_PIPE_DIRECTORY": pipes.replace("/run/nvidia/mps", str(lab.mps)),
        },
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
    )  # fmt: skip
    return done.stdout.strip()


def pid(lab: Lab, name: str) -> str:
    return (lab.mps / name / "pipe/nvidia-cuda-mps-control.pid").read_text().split()[-1]


def options_of(pid: str) -> list[str]:
    return Path("/proc", pid, "cmdline").read_text().split("\0")[1:-1]


async def test_claims_share_the_memory_of_a_gpu_by_one_daemon_that_enforces_it(lab: Lab) -> None:
    lab.shares = "uniform"
    async with lab.agent():
        assert policy(lab) == {"default": WHOLE, "validRange": {"min": "320Mi", "step": "1Mi"}}
        claims = [lab.share(f"part-{n}", "gpu-0", SIZE) for n in range(3)]
        devices = await asyncio.gather(*map(lab.kubelet.prepare, claims))
        name = resource(lab)

        assert {one.device for (one,) in devices} == {"gpu-0"}
        assert devices[0][0].cdi[-1] == f"k8s.gpu.nvidia.com/claim={claims[0].uid}-mps"
        assert lab.spec("part-0")[f"{claims[0].uid}-mps"]["env"] == [
            f"CUDA_MPS_PIPE_DIRECTORY=/mps/{name}/pipe", f"{OWN}=0=5000M"
        ]  # fmt: skip
        assert lab.modes() == ["E", "D", "D", "D"]
        assert [one.name for one in lab.mps.glob("gpu.nvidia.com/*")] == [name.split("/")[1]]
        for n in range(3):
            assert allocate(lab, f"part-{n}", "5000M") == "allocated: limit 5000M"
            # A program may clear or change its variables.
            for own in ("", "0=14G"):
                told = allocate(lab, f"part-{n}", "5001M", **{OWN: own})
                assert told == "out of memory: limit 5000M"
        # The slice shows the size, so that others come here or find another GPU.
        await until(lambda: policy(lab) == {"default": WHOLE, "validValues": [SIZE, WHOLE]})
        assert policy(lab, "gpu-1") == {
            "default": WHOLE, "validRange": {"min": "320Mi", "step": "1Mi"}
        }  # fmt: skip

        daemon = pid(lab, name)
        await lab.kubelet.unprepare(claims[0])
        assert (pid(lab, name), lab.modes()[0]) == (daemon, "E")
        assert allocate(lab, "part-1", "5000M") == "allocated: limit 5000M"
        await asyncio.gather(*map(lab.kubelet.unprepare, claims[1:]))
        assert lab.modes() == ["D"] * 4
        assert lab.journal() == []
        await until(lambda: "validRange" in policy(lab))

        whole = lab.share("whole", "gpu-0", WHOLE)  # nobody has a part of it
        (device,) = await lab.kubelet.prepare(whole)
        assert len(device.cdi) == 2
        assert lab.modes() == ["D"] * 4
        await lab.kubelet.unprepare(whole)


async def test_mixed_sizes_are_limits_of_the_clients_variables(lab: Lab) -> None:
    lab.shares = "mixed"
    async with lab.agent():
        claims = [
            lab.share(name, "gpu-0", memory, cores)
            for name, memory, cores in (("small", "1Gi", 0), ("large", "8Gi", 50))
        ]
        await asyncio.gather(*map(lab.kubelet.prepare, claims))

        assert lab.spec("large")[f"{claims[1].uid}-mps"]["env"][1:] == [
            f"{OWN}=0=8192M", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50"
        ]  # fmt: skip
        assert allocate(lab, "small", "2G") == "out of memory: limit 1024M"
        assert allocate(lab, "large", "8G") == "allocated: limit 8192M"
        assert allocate(lab, "small", "2G", **{OWN: ""}) == "allocated: no limit"
        assert "validRange" in policy(lab)
        await asyncio.gather(*map(lab.kubelet.unprepare, claims))
        assert lab.journal() == []


@pytest.mark.parametrize("is_old", [False, True])
async def test_the_daemon_serves_several_users_where_the_program_can(
    lab: Lab, *, is_old: bool
) -> None:
    lab.shares = "uniform"
    if is_old:
        lab.env["NVCT_SIM_MPS_OLD"] = "1"
    async with lab.agent():
        claim = lab.share("part", "gpu-0", SIZE)
        await lab.kubelet.prepare(claim)
        assert options_of(pid(lab, resource(lab))) == (["-f"] if is_old else ["-f", "-M"])
        assert allocate(lab, "part", "5001M") == "out of memory: limit 5000M"
        await lab.kubelet.unprepare(claim)


async def test_after_a_restart_shares_are_as_they_were_also_with_other_settings(lab: Lab) -> None:
    lab.shares = "uniform"
    async with lab.agent():
        claims = [lab.share(f"part-{n}", "gpu-0", SIZE) for n in range(2)]
        for claim in claims:
            await lab.kubelet.prepare(claim)

    for lab.shares in ("mixed", ""):
        async with lab.agent():
            await lab.kubelet.prepare(claims[0])
            assert allocate(lab, "part-1", "5001M", **{OWN: ""}) == "out of memory: limit 5000M"
            assert (policy(lab) is None) == (not lab.shares)
    async with lab.agent():
        for claim in claims:
            await lab.kubelet.unprepare(claim)
        assert lab.journal() == []


def shared_device(compute: tuple[int, int] = (9, 0)) -> Device:
    return Device(
        name="gpu-0", uuid="GPU-0", gpu="GPU-0", capacity={"memory": 81559 * MIB}, attributes={},
        compute=compute,
    )  # fmt: skip


def test_a_shared_device_has_the_form_of_the_api() -> None:
    def shown(compute: tuple[int, int], sizes: dict[str, int]) -> Object:
        offer = Offer(devices=(shared_device(compute),)).with_shares(sizes)
        (content,) = slices.contents(offer, "v1")
        (device,) = content["devices"]
        return cast("Object", device)

    device = shown((9, 0), {})
    assert device["allowMultipleAllocations"] is True
    assert device["capacity"]["memory"] == {
        "value": "81559Mi",
        "requestPolicy": {"default": "81559Mi", "validRange": {"min": "1700Mi", "step": "1Mi"}},
    }
    assert device["capacity"]["cores"] == {
        "value": "100",
        "requestPolicy": {"default": "0", "validRange": {"min": "0", "step": "1"}},
    }
    narrow = shown((9, 0), {"GPU-0": 20000})["capacity"]["memory"]["requestPolicy"]
    assert narrow == {"default": "81559Mi", "validValues": ["20000Mi", "81559Mi"]}
    # Before Volta, MPS has no limits; nobody knows of a GPU that does not tell what it is.
    for compute in ((6, 1), (0, 0)):
        assert "allowMultipleAllocations" not in shown(compute, {})
        assert shown(compute, {})["capacity"] == {"memory": {"value": "81559Mi"}}


async def test_an_api_server_without_shares_gets_devices_for_one_claim_each() -> None:
    api = FakeApi()
    api.drops = {"allowMultipleAllocations"}
    async with publishing(api) as publisher:
        publisher.offer(Offer(devices=(shared_device(),)).with_shares({}))
        await until(lambda: publisher.lacks_shares)
        assert "does not let several claims share a device" in publisher.problem.text
        publisher.offer(Offer(devices=(shared_device(),)))
        await until(lambda: publisher.is_current)


class Smi:
    """An nvidia-smi that notes how it was called, before the simulated one; or that refuses."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.path = folder / "bin/nvidia-smi"
        self.path.parent.mkdir()
        self.calls = folder / "calls"
        self.calls.touch()
        real = lab.node.driver_root / "usr/bin/nvidia-smi"
        self.script = f'#!/bin/sh\n[ "$1" = compute-policy ] && echo "$*" >> {self.calls}\n'
        self.real = f'exec {real} "$@"\n'
        self.allow()
        lab.env["PATH"] = f"{self.path.parent}:{lab.env['PATH']}"

    def allow(self) -> None:
        self.path.write_text(self.script + self.real)
        self.path.chmod(0o755)

    def refuse(self) -> None:
        refuses = "echo Not Supported; exit 3\n"
        self.path.write_text(
            f'{self.script}[ "$1" = compute-policy ] && {{ {refuses}}}\n{self.real}'
        )

    def slices(self) -> list[tuple[str, str]]:
        lines = [line.split() for line in self.calls.read_text().splitlines()]
        return [(uuid, number) for _, _, uuid, _, number in lines]


def sliced(interval: str) -> Any:
    return config(strategy="TimeSlicing", timeSlicingConfig={"interval": interval})


async def test_a_claim_has_its_time_slice_until_it_ends(lab: Lab, tmp_path: Path) -> None:
    smi = Smi(lab, tmp_path)
    async with lab.agent():
        claim = lab.allocate("long", "gpu-1", "gpu-3", sharing=sliced("Long"))
        plain = lab.allocate("plain", "gpu-0", sharing=sliced("Default"))
        devices = await lab.kubelet.prepare(claim)
        await lab.kubelet.prepare(plain)
        gpus = sorted(uuids(lab, "gpu-1", "gpu-3"))
        assert smi.slices() == [(uuid, "3") for uuid in gpus]
        assert [len(one.cdi) for one in devices] == [2, 2]  # no daemon, and no pipes
        assert not [name for name in lab.spec("long") if name.endswith("-mps")]
        assert lab.modes() == ["D"] * 4
        assert await lab.kubelet.prepare(claim) == devices
        assert len(smi.slices()) == 2
    async with lab.agent():  # after a boot the driver has none
        await until(lambda: [number for _, number in smi.slices()[-2:]] == ["3", "3"])
        await lab.kubelet.unprepare(claim)
        assert smi.slices()[-2:] == [(uuid, "0") for uuid in gpus]
        await lab.kubelet.unprepare(plain)
        assert lab.journal() == []


async def test_where_the_driver_refuses_the_claim_waits(lab: Lab, tmp_path: Path) -> None:
    smi = Smi(lab, tmp_path)
    smi.refuse()
    async with lab.agent():
        claim = lab.allocate("short", "gpu-0", sharing=sliced("Short"))
        why = "(?s)the time slice of the claim is not ready.*Not Supported"
        with pytest.raises(RefusedError, match=why):
            await lab.kubelet.prepare(claim)
        assert lab.journal() == []
        smi.allow()
        await lab.kubelet.prepare(claim)
        await lab.kubelet.unprepare(claim)


@pytest.mark.parametrize("is_gone", [False, True])
async def test_a_killed_agent_leaves_no_time_slice(
    lab: Lab, tmp_path: Path, *, is_gone: bool
) -> None:
    smi = Smi(lab, tmp_path)
    async with lab.agent():
        claim = lab.allocate("long", "gpu-0", sharing=sliced("Long"))
        await lab.kubelet.prepare(claim)
    if is_gone:
        lab.api.remove(CLAIM, "long", "ns")
    smi.calls.write_text("")
    async with lab.agent():
        if not is_gone:
            await lab.kubelet.unprepare(claim)
        await until(lambda: lab.journal() == [])
        assert smi.slices()[-1][1] == "0"
