# SPDX-License-Identifier: Apache-2.0
"""Claims that share by MPS, on a simulated node with the stand-in for nvidia-cuda-mps-control."""

import asyncio
import contextlib
import json
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from nvct.agent.dra.claim_specs import FILES
from nvct.agent.dra.devices import DRIVER
from nvct.agent.dra.journal import FILE, Journal
from nvct.agent.dra.task import DraDriver
from nvct.agent.kubelet.dra_service import ClaimRef
from nvct.agent.machine.discovery import Discovery
from nvct.agent.mps.daemons import Daemon
from nvct.agent.mps.place import Place
from nvct.agent.nvml.client import NvmlClient
from nvct.host.gpu.nodes import named_nodes
from nvct_sim import tree
from nvct_sim.tree import Node
from tests.support.cpu import Limit
from tests.support.nvml_node import CACHE
from tests.support.processes import captured
from tests.unit.agent.device_plugin.fake_kubelet import until
from tests.unit.agent.dra.fake_api import FakeApi
from tests.unit.agent.dra.fake_kubelet import FakeKubelet, RefusedError
from tests.unit.agent.dra.test_prepare import CLAIM, allocation, uid_of
from tests.unit.agent.dra.test_sharing import config
from tests.unit.agent.dra.test_task import driver
from tests.unit.agent.machines import Supervisor, roots_of

GPU = "nvidia.com/gpu"
PERCENTAGE = "get_default_active_thread_percentage"
LIMIT = "get_default_device_pinned_mem_limit"
MEMORY = {"defaultPinnedDeviceMemoryLimit": "3Gi"}
LIMITS = {"defaultActiveThreadPercentage": 30, **MEMORY}


class Lab:
    """A node whose agents have MPS, an API server, and a kubelet."""

    def __init__(self, node: Node, folder: Path) -> None:
        self.node, self.folder = node, folder
        self.shares = ""
        self.mps = folder / "mps"
        self.mps.mkdir()
        (self.mps / "shm").symlink_to("/dev/shm")  # no mount namespace is needed then
        self.api = FakeApi()
        self.kubelet = FakeKubelet(f"{folder}/registry")
        (library,) = node.driver_root.rglob("libnvidia-simstate.so.1")
        self.env = {
            "NVCT_SIM_DEV": str(node.dev), "MPS_ROOT": str(self.mps),
            "PATH": f"{node.driver_root}/usr/bin:{os.environ['PATH']}",
            "LD_LIBRARY_PATH": str(library.parent),
        }  # fmt: skip

    @contextlib.asynccontextmanager
    async def worker(self) -> AsyncIterator[Discovery]:
        """Run what has NVML and MPS, for one agent or more."""
        supervisor = Supervisor(**self.env)
        client = NvmlClient(supervisor.connection)
        roots = roots_of(self.node)
        try:
            yield Discovery(roots, client, named_nodes(roots))
        finally:
            client.disconnect()
            assert await asyncio.to_thread(supervisor.ended) == 0

    @contextlib.asynccontextmanager
    async def agent(self, worker: Discovery | None = None) -> AsyncIterator[DraDriver]:
        """Run an agent; with a worker of its own, the keeper ends with it."""
        async with contextlib.AsyncExitStack() as stack:
            machine = worker
            if machine is None:
                machine = await stack.enter_async_context(self.worker())
            async with driver(self.api, machine, self.folder, "uid-1", shares=self.shares) as made:
                await self.kubelet.register()
                yield made

    def allocate(self, name: str, *devices: str, sharing: object = None, **more: Any) -> ClaimRef:
        from nvct.agent.kubelet.dra_service import ClaimRef

        ref = ClaimRef("ns", name, uid_of(name))
        status = allocation(*devices, **more)
        status["allocation"]["devices"]["config"] = [
            {"opaque": {"driver": DRIVER, "parameters": sharing or by_mps()}}
        ]
        metadata = {"name": name, "namespace": "ns", "uid": ref.uid}
        self.api.put(CLAIM, {"metadata": metadata, "status": status})
        return ref

    def share(self, name: str, device: str, memory: str, cores: int = 0) -> ClaimRef:
        """Allocate a part of a GPU, as the scheduler does."""
        consumed = {"memory": memory, "cores": str(cores)}
        ref = self.allocate(name, device, consumedCapacity=consumed)
        found = self.api.objects[CLAIM.plural, "ns", name]
        del found["status"]["allocation"]["devices"]["config"]
        return ref

    def say(self, name: str, command: str) -> str:
        """Return what the daemon of a claim, or of a resource, answers."""
        resource = name if "/" in name else f"gpu.nvidia.com/{uid_of(name)}"
        done = subprocess.run(
            ["nvidia-cuda-mps-control"], input=f"{command}\n", text=True, check=False, timeout=10,
            env={**self.env, **Place(str(self.mps)).environment(resource)} | {
                "PATH": self.env["PATH"]
            },
            stdout=subprocess.PIPE,
        )  # fmt: skip
        return done.stdout.strip()

    def runs(self, name: str) -> bool:
        return not self.say(name, PERCENTAGE).startswith("Cannot find")

    def pid(self, name: str) -> str:
        """Return the number of the process of a claim's daemon."""
        self.say(name, PERCENTAGE)  # it has written its number before it answers
        path = self.mps / f"gpu.nvidia.com/{uid_of(name)}/pipe/nvidia-cuda-mps-control.pid"
        return path.read_text().split()[-1]

    def modes(self) -> list[str]:
        words = ["nvidia-smi", "--query-gpu=compute_mode", "--format=csv,noheader"]
        env = {**os.environ, **self.env}
        done = captured(words, env=env, check=True)
        return [line[0] for line in done.stdout.splitlines()]

    def journal(self) -> list[str]:
        return [claim.name for claim in Journal(f"{self.folder}/plugins/{DRIVER}").load().values()]

    def spec(self, name: str) -> dict[str, Any]:
        path = self.folder / f"cdi/k8s.gpu.nvidia.com-claim_{uid_of(name)}.json"
        devices = json.loads(path.read_text())["devices"]
        return {device["name"]: device["containerEdits"] for device in devices}


def by_mps(**limits: object) -> dict[str, object]:
    return config(strategy="MPS", mpsConfig=limits or LIMITS)


@pytest.fixture
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Node]:
    """Yield a node of the profile that a test names, else one of four T4."""
    profile = getattr(request, "param", "t4-4")
    made = tree.create("mps", profile, tmp_path, nodes="plain", native_cache=CACHE)
    yield made
    tree.destroy(made)


@pytest.fixture
def lab(node: Node, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    made = Lab(node, folder)
    monkeypatch.setenv("PATH", made.env["PATH"])
    yield made
    left = [path.name for path in made.mps.glob("gpu.nvidia.com/*")]
    for name in left:  # not beyond a test that fails
        made.say(f"gpu.nvidia.com/{name}", "quit")
    assert left == []
    assert set(made.modes()) == {"D"}


async def test_a_claim_has_a_daemon_with_its_limits_until_it_is_unprepared(lab: Lab) -> None:
    async with lab.agent() as made:
        pair = lab.allocate("pair", "gpu-1", "gpu-3")
        one, two = await lab.kubelet.prepare(pair)
        # The limits are there when prepare has answered.
        assert lab.say("pair", PERCENTAGE) == "30.0"
        limits = [lab.say("pair", f"{LIMIT} {n}") for n in range(3)]
        assert limits == ["3G", "3G", ""]
        assert lab.modes() == ["D", "E", "D", "E"]
        kind = f"k8s.gpu.nvidia.com/claim={pair.uid}"
        assert one.cdi == (FILES, f"{kind}-gpu-1", f"{kind}-mps")
        assert two.cdi == (FILES, f"{kind}-gpu-3", f"{kind}-mps")
        path = f"gpu.nvidia.com/{pair.uid}"
        root = f"/run/nvidia/mps/{path}"
        options = ["nosuid", "nodev", "bind"]
        assert lab.spec("pair")[f"{pair.uid}-mps"] == {
            "env": [f"CUDA_MPS_PIPE_DIRECTORY=/mps/{path}/pipe"],
            "mounts": [
                {
                    "hostPath": f"{root}/pipe",
                    "containerPath": f"/mps/{path}/pipe",
                    "options": ["ro", *options],
                },
                {
                    "hostPath": f"{root}/shm",
                    "containerPath": "/dev/shm",
                    "options": ["rw", *options],
                },
            ],
        }
        assert visible(lab, "pair") == sorted(uuids(lab, "gpu-1", "gpu-3"))
        assert await lab.kubelet.prepare(pair) == [one, two]

        other = lab.allocate("other", "gpu-0", sharing=by_mps(**MEMORY))
        await lab.kubelet.prepare(other)
        assert (lab.say("other", PERCENTAGE), lab.say("other", f"{LIMIT} 0")) == ("100.0", "3G")
        watches = lab.allocate("watches", "gpu-0", adminAccess=True)
        (shown,) = await lab.kubelet.prepare(watches)
        assert len(shown.cdi) == 2
        assert not lab.runs("watches")

        assert made.describe()[0]["mps"] == dict.fromkeys(
            (f"gpu.nvidia.com/{claim.uid}" for claim in (pair, other)), ""
        )
        await lab.kubelet.unprepare(pair)
        await lab.kubelet.unprepare(pair)
        assert not lab.runs("pair")
        assert lab.modes() == ["E", "D", "D", "D"]
        assert lab.say("other", f"{LIMIT} 0") == "3G"
        await lab.kubelet.unprepare(other)


@pytest.mark.parametrize("node", ["mixed"], indirect=True)
async def test_a_mig_device_that_exists_is_shared_without_a_compute_mode(lab: Lab) -> None:
    async with lab.agent():
        name = "gpu-0-mig-3g40gb-9-0"
        sharing = config("MigDeviceConfig", strategy="MPS", mpsConfig=MEMORY)
        half = lab.allocate("half", name, sharing=sharing)
        (device,) = await lab.kubelet.prepare(half)
        assert device.cdi[-1] == f"k8s.gpu.nvidia.com/claim={uid_of('half')}-mps"
        assert lab.say("half", f"{LIMIT} 0") == "3G"
        assert visible(lab, "half") == uuids(lab, name)
        assert visible(lab, "half")[0].startswith("MIG-")
        assert set(lab.modes()) == {"D"}
        await lab.kubelet.unprepare(half)
        assert not lab.runs("half")


async def test_daemons_of_claims_and_of_the_device_plugin_do_not_stop_each_other(lab: Lab) -> None:
    async with lab.worker() as worker, lab.agent(worker):
        client = worker.nvml
        inventory = {gpu.index: gpu.uuid for gpu in (await client.report()).gpus}
        plugins = Daemon(resource=GPU, uuids=(inventory[2],), percentage=50)

        async def ready(*daemons: Daemon) -> dict[str, str]:
            limit = Limit(20)
            while any((state := await client.mps(daemons, starts=True)).values()):
                assert not limit.is_over, state
                await asyncio.sleep(0.02)
            return state

        assert await ready(plugins) == {GPU: ""}
        claim = lab.allocate("claim", "gpu-0")
        asked = asyncio.create_task(lab.kubelet.prepare(claim))
        while not asked.done():  # its devices would be unhealthy
            assert await client.mps([plugins], starts=True) == {GPU: ""}
            await asyncio.sleep(0.01)
        await asked
        assert lab.say(GPU, PERCENTAGE) == "50.0"
        assert lab.modes() == ["E", "D", "E", "D"]
        assert await ready() == {}
        await until(lambda: not lab.runs(GPU))
        assert lab.runs("claim")
        assert await ready(plugins) == {GPU: ""}
        await lab.kubelet.unprepare(claim)
        assert not lab.runs("claim")
        assert lab.say(GPU, PERCENTAGE) == "50.0"


async def test_after_a_restart_the_daemons_are_back_and_those_of_gone_claims_end(lab: Lab) -> None:
    async with lab.agent():
        kept, gone = lab.allocate("kept", "gpu-0"), lab.allocate("gone", "gpu-1")
        await lab.kubelet.prepare(kept)
        await lab.kubelet.prepare(gone)
        pipes = lab.mps / f"gpu.nvidia.com/{uid_of('kept')}/pipe"
        mounted = pipes.stat().st_ino  # by a pod that still runs
    assert not lab.runs("kept")
    assert lab.modes() == ["D"] * 4
    # As if the agent had been killed with all its processes but one daemon.
    left(lab, "gone", 1)
    lab.api.remove(CLAIM, "gone", "ns")

    async with lab.agent():
        await until(lambda: lab.say("kept", f"{LIMIT} 0") == "3G")
        await until(lambda: lab.journal() == ["kept"])
        assert not lab.runs("gone")
        await until(lambda: lab.modes() == ["E", "D", "D", "D"])
        assert len(await lab.kubelet.prepare(kept)) == 1
        assert pipes.stat().st_ino == mounted
    left(lab, "kept", 0)

    async with lab.agent():
        await lab.kubelet.unprepare(kept)
        assert not lab.runs("kept")
        assert lab.journal() == []


async def test_a_new_agent_of_the_same_worker_leaves_the_daemons_running(lab: Lab) -> None:
    async with lab.worker() as worker:
        async with lab.agent(worker):
            kept, gone = lab.allocate("kept", "gpu-0"), lab.allocate("gone", "gpu-1")
            await lab.kubelet.prepare(kept)
            await lab.kubelet.prepare(gone)
        pid = lab.pid("kept")
        lab.api.remove(CLAIM, "gone", "ns")
        # The device plugin of the new agent may ask before its DRA driver does.
        assert await worker.nvml.mps((), starts=True) == {}

        async with lab.agent(worker):
            await until(lambda: lab.journal() == ["kept"])
            assert not lab.runs("gone")
            assert lab.pid("kept") == pid
            await lab.kubelet.unprepare(kept)
            assert not lab.runs("kept")


async def test_what_cannot_be_done_is_refused_and_leaves_nothing(lab: Lab) -> None:
    programs, _, lab.env["PATH"] = lab.env["PATH"].partition(":")
    async with lab.agent():
        why = r"the MPS control daemon of the claim is not ready: .* cannot be started"
        with pytest.raises(RefusedError, match=why):
            await lab.kubelet.prepare(lab.allocate("without-programs", "gpu-0"))
        assert lab.journal() == []

    lab.env["PATH"] = f"{programs}:{lab.env['PATH']}"


def uuids(lab: Lab, *names: str) -> list[str]:
    document = json.loads((lab.folder / f"plugins/{DRIVER}/{FILE}").read_text())
    entries = [entry for claim in document["claims"] for entry in claim["entries"]]
    return [entry["uuid"] for entry in entries if entry["device"] in names]


def visible(lab: Lab, name: str) -> list[str]:
    """Return the GPUs that the daemon of a claim sees."""
    lines = Path("/proc", lab.pid(name), "environ").read_text().split("\0")
    variables = dict(line.split("=", 1) for line in lines if line)
    return variables["CUDA_VISIBLE_DEVICES"].split(",")


def left(lab: Lab, name: str, index: int) -> None:
    """Leave a daemon without a keeper, on a GPU in exclusive mode."""
    place = Place(str(lab.mps))
    pipe, log = place.folders(f"gpu.nvidia.com/{uid_of(name)}")
    for path in (pipe, log):
        Path(path).mkdir(parents=True, exist_ok=True)
    env = {**os.environ, **lab.env, **place.environment(f"gpu.nvidia.com/{uid_of(name)}")}
    env["PATH"] = lab.env["PATH"]
    for words in (
        ["nvidia-cuda-mps-control", "-d"],
        ["nvidia-smi", "-i", str(index), "-c", "EXCLUSIVE_PROCESS"],
    ):
        subprocess.run(words, env=env, check=True, stdout=subprocess.DEVNULL)
    assert lab.modes()[index] == "E"
