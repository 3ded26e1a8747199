# SPDX-License-Identifier: Apache-2.0
"""CDI specifications that NVML's worker writes for an agent which cannot: what they say, and to
whom. The worker chooses every path; the agent names devices, a claim and words of a list.
"""

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nvct import typed
from nvct.agent.device_plugin.settings import Settings
from nvct.agent.device_plugin.spec_files import PluginFiles, request_of
from nvct.agent.dra.claim_specs import ClaimSpecs
from nvct.agent.dra.journal import Entry, Prepared
from nvct.agent.dra.settings import Settings as DraSettings
from nvct.agent.host_side import Host, in_child
from nvct.agent.machine.discovery import SAME_S, Discovery
from nvct.agent.machine.inventory import Inventory
from nvct.agent.machine.place import Place
from nvct.agent.mps.daemons import Daemon
from nvct.agent.nvml import client as nvml_client
from nvct.agent.nvml import host_verbs
from nvct.agent.nvml.client import NvmlClient
from nvct.agent.nvml.host_verbs import NodeNames, ProcessContainers, Published
from nvct.agent.nvml.worker_client import NvmlWorkerClient
from nvct.errors import HostError, NvctError, NvmlError
from nvct.host.model import HostWarning
from nvct.host.roots import Roots
from nvct_sim import node_changes, tree
from tests.support.processes import captured
from tests.unit.agent import machines
from tests.unit.agent.nvml.test_worker import Worker, ask, connected, run, started

UID = "7e4b7a12-5b0c-4a6e-9d2f-0c1d2e3f4a5b"
OTHER = "11111111-2222-3333-4444-555555555555"
ELSEWHERE = "/tmp/elsewhere"
"""What the agent's own settings say, to which the worker pays no attention."""
PROGRAM = """
import json, os
from dataclasses import replace
from types import SimpleNamespace
from nvct.agent import host_side
from nvct.agent.nvml import worker
from nvct.host.gpu.nodes import named_nodes
from nvct.host.model import HostWarning
from nvct.host.roots import Roots
roots, found = Roots(**json.loads(os.environ["ROOTS"])), host_side.of_environment
host_side.of_environment = lambda env: replace(
    found(env), roots=roots, stat_node=named_nodes(roots)
)
worker.main()
"""
"""The worker, but the machine's folders are those of a node of plain files."""


class SpecWorker(Worker):
    words = ("-c", PROGRAM)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    with started(tmp_path_factory.mktemp("worker"), SpecWorker) as made:
        yield made


@pytest.fixture
def worker(shared: Worker) -> Iterator[Worker]:
    """The worker of all tests of this file, on a node that is as it was."""
    yield shared
    node_changes.set_fault(shared.node, "hang", 0)
    node_changes.set_gpu(shared.node, 1, hang=0)
    (shared.node.dev / "nvidia1").touch()
    for path in shared.specs.iterdir():
        if path.name != "k8s.gpu.nvidia.com-driver.json":  # which the worker writes once
            path.unlink()
    shared.until(lambda: not shared.children())  # no test has left it a connection


class Log:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def info(self, line: str) -> None:
        self.lines.append(line)

    warning = info


class Machine:
    """What the agent knows of the machine that it cannot see."""

    def __init__(self, client: NvmlWorkerClient) -> None:
        self.nvml = client
        self.roots = Roots(driver_root=ELSEWHERE)
        self.stat_node = lambda _: None


def plugin_files(client: NvmlWorkerClient, **settings: Any) -> Awaitable[tuple[str, ...]]:
    known = Settings(device_list_strategy=("cdi-cri",), hook_path=f"{ELSEWHERE}/hook", **settings)
    files = PluginFiles(ELSEWHERE, cast("Any", Log()))
    return files.write(known, cast("Any", Machine(client)), ())


def claim_specs(client: NvmlWorkerClient) -> ClaimSpecs:
    settings = DraSettings(cdi_root=ELSEWHERE, hook_path=f"{ELSEWHERE}/hook", mps_root=ELSEWHERE)
    return ClaimSpecs(settings, cast("Any", Machine(client)))


def claim(*uuids: str, uid: str = UID, mps: bool = False) -> Prepared:
    entries = tuple(
        Entry(device=f"gpu-{n}", uuid=uuid, gpu=uuid, requests=("r",))
        for n, uuid in enumerate(uuids)
    )
    daemon = Daemon(resource=f"gpu.nvidia.com/{uid}", uuids=uuids) if mps else None
    return Prepared(namespace="ns", name="c", uid=uid, entries=entries, daemon=daemon)


def files(worker: Worker) -> dict[str, Any]:
    """Return the specifications that are there, by name."""
    return {path.name: json.loads(path.read_text()) for path in worker.specs.glob("*.json")}


def uuid(worker: Worker, index: int) -> str:
    return tree.gpu_uuid(worker.node.name, index)


def test_the_plugins_specification_has_the_workers_paths(worker: Worker) -> None:
    run(worker, plugin_files)

    spec = files(worker)["k8s.device-plugin.nvidia.com-gpu.json"]
    assert {device["name"] for device in spec["devices"]} == {uuid(worker, n) for n in range(4)}
    assert {hook["path"] for hook in spec["containerEdits"]["hooks"]} == {
        "/usr/bin/nvidia-cdi-hook"
    }
    assert ELSEWHERE not in json.dumps(spec)


async def test_a_claim_has_the_devices_of_the_workers_own_inventory(worker: Worker) -> None:
    async with connected(worker) as client:
        specs = claim_specs(client)
        assert await specs.update() == ()
        await specs.write(claim(uuid(worker, 2)), {})
        await specs.write(claim(uuid(worker, 1), uid=OTHER, mps=True), {})
        with pytest.raises(HostError, match="is not on this node"):
            await specs.write(claim("GPU-0"), {})

    written = files(worker)
    assert set(written) == {
        "k8s.gpu.nvidia.com-driver.json",
        f"k8s.gpu.nvidia.com-claim_{UID}.json",
        f"k8s.gpu.nvidia.com-claim_{OTHER}.json",
    }
    (device,) = written[f"k8s.gpu.nvidia.com-claim_{UID}.json"]["devices"]
    assert device["name"] == f"{UID}-gpu-0"
    assert "/dev/nvidia2" in json.dumps(device)
    _, mps = written[f"k8s.gpu.nvidia.com-claim_{OTHER}.json"]["devices"]
    sources = [mount["hostPath"] for mount in mps["containerEdits"]["mounts"]]
    assert sources[0] == f"/run/nvidia/mps/gpu.nvidia.com/{OTHER}/pipe"
    assert ELSEWHERE not in json.dumps(written)


async def test_a_worker_that_has_started_again_knows_the_devices_of_claims(worker: Worker) -> None:
    """The agent, which has told it of the driver before, writes a claim."""

    async with connected(worker) as client:
        specs = claim_specs(client)
        await specs.update()
        worker.process.kill()
        worker.process.wait()
        worker.start()
        await specs.write(claim(uuid(worker, 0)), {})
    assert f"k8s.gpu.nvidia.com-claim_{UID}.json" in files(worker)


async def test_claims_are_removed_one_by_one_or_all_but_some(worker: Worker) -> None:
    for name in ("nvidia.json", "k8s.device-plugin.nvidia.com-gpu.json"):
        (worker.specs / name).write_text("{}")

    async with connected(worker) as client:
        specs = claim_specs(client)
        for uid in (UID, OTHER):
            await specs.write(claim(uuid(worker, 0), uid=uid), {})
        await specs.remove(UID)
        await specs.remove(UID)
        assert f"k8s.gpu.nvidia.com-claim_{OTHER}.json" in files(worker)
        await specs.remove_others([])
    assert [name for name in files(worker) if "claim" in name] == []
    assert len(files(worker)) == 3  # those of others, and the driver's files


async def test_a_claim_has_one_file_though_nvidias_driver_left_its_own(worker: Worker) -> None:
    """Two files with the same device are a conflict: no engine gives such a device."""
    theirs = [worker.specs / f"k8s.gpu.nvidia.com-claim_{uid}.yaml" for uid in (UID, OTHER)]
    for path in theirs:
        path.write_text("")

    async with connected(worker) as client:
        specs = claim_specs(client)
        await specs.write(claim(uuid(worker, 0)), {})
        assert [path.exists() for path in theirs] == [False, True]  # the other's pod may run on
        await specs.remove_others([UID])
        assert theirs[1].exists()
        await specs.remove(OTHER)
    assert not theirs[1].exists()


async def test_nvml_that_hangs_is_told_as_soon_as_of_other_requests(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvml_client, "CALL_S", 1)

    async with connected(worker) as client:
        await client.report()
        node_changes.set_fault(worker.node, "hang", 600)
        with pytest.raises(NvmlError, match="does not answer within 1 s"):
            await plugin_files(client)


async def test_a_gpu_that_hangs_stays_in_the_specification(worker: Worker) -> None:
    async with connected(worker) as client:
        await plugin_files(client)
        node_changes.set_gpu(worker.node, 1, hang=600)
        await plugin_files(client)
    spec = files(worker)["k8s.device-plugin.nvidia.com-gpu.json"]
    assert uuid(worker, 1) in [device["name"] for device in spec["devices"]]


async def test_the_agent_finds_its_gpus_by_what_the_worker_sees(worker: Worker) -> None:
    """The agent's container has procfs and sysfs, but neither /dev nor the driver's root."""
    roots = replace(machines.roots_of(worker.node), driver_root=ELSEWHERE, dev_root=ELSEWHERE)
    looks: list[Inventory] = []
    signatures: list[object] = []

    async with connected(worker) as client:
        machine = Discovery(roots, client)
        signatures.append(await machine.signature())
        looks.append(await machine.inventory())
        (worker.node.dev / "nvidia1").unlink()
        await asyncio.sleep(2 * SAME_S)
        signatures.append(await machine.signature())
        looks.append(await machine.inventory())
        seen = await machine.machine()
        assert seen.mode == "nvml"
        assert "nvidia0" in seen.nodes
    assert [len(look.gpus) for look in looks] == [4, 3]
    assert looks[0].control_nodes
    assert signatures[0] != signatures[1]


async def test_tasks_that_wake_together_look_at_the_machine_once(worker: Worker) -> None:
    """Each of them asked the worker: the first had no answer yet when the next one looked."""
    looks: list[object] = []

    async with connected(worker) as client:
        machines_seen = [Discovery(machines.roots_of(worker.node), client) for _ in range(3)]
        signatures = await asyncio.gather(*(each.signature() for each in machines_seen))
        looks.append(client._requests)
        assert len(set(signatures)) == 1
        await asyncio.sleep(2 * SAME_S)
        await machines_seen[0].signature()
        looks.append(client._requests)
    assert looks == [1, 2]


async def test_containers_are_told_of_processes_that_use_a_gpu_alone(worker: Worker) -> None:
    own = os.getpid()

    async with connected(worker) as client:
        host = Host(client, lambda: Place(roots=Roots()))
        call = ProcessContainers(pids=(own, 1))
        assert await host.ask(call, dict[str, dict[str, str]]) == {}
        node_changes.apply(worker.node, "process", ("0", str(own)))
        await client.samples()
        assert await host.ask(call, dict[str, dict[str, str]]) == {str(own): {}}


PLAIN: dict[str, Any] = {
    "uid": UID, "devices": [], "mps": False, "shared_gpu": "", "memory_mib": 0, "cores": 0,
    "metadata": [], "name": "x.y", "pod_claim": "gpu",
}  # fmt: skip
"""A request that is carried out."""
PLUGIN_SPEC: dict[str, Any] = {
    "ids": "uuid", "flags": [], "disabled_hooks": [], "features": [], "imex_channels": [],
}  # fmt: skip
HOSTILE: dict[str, tuple[str, dict[str, Any]]] = {
    "uid with a path": ("spec_claim", {**PLAIN, "uid": "../../etc/x"}),
    "uid that is none": ("spec_remove_claim", {"uid": "*"}),
    "uid with a line": ("spec_remove_claim", {"uid": f"{UID}\n"}),
    "kept uid with a path": ("spec_keep_claims", {"uids": [UID, "../x"]}),
    "name of a device": (
        "spec_claim", {**PLAIN, "devices": [{"name": "a/b", "uuid": "GPU-0", "is_admin": False}]}
    ),
    "edits of its own": ("spec_claim", {**PLAIN, "containerEdits": {"hooks": []}}),
    "name of a claim": ("spec_claim", {**PLAIN, "name": "../x"}),
    "name in a pod": ("spec_claim", {**PLAIN, "pod_claim": "a/b"}),
    "shared GPU": ("spec_claim", {**PLAIN, "shared_gpu": "GPU-../x"}),
    "request of a file": (
        "spec_claim", {**PLAIN, "metadata": [{"request": "../x", "document": "{}"}]}
    ),
    "long file": (
        "spec_claim", {**PLAIN, "metadata": [{"request": "x", "document": " " * (1 << 19)}]}
    ),
    "a path": ("spec_driver", {"folder": "/etc"}),
    "hook": ("spec_plugin", {**PLUGIN_SPEC, "disabled_hooks": ["/bin/sh"]}),
    "feature": ("spec_plugin", {**PLUGIN_SPEC, "features": ["management"]}),
    "channel": ("spec_plugin", {**PLUGIN_SPEC, "imex_channels": [-1]}),
}  # fmt: skip


def test_what_is_no_request_writes_nothing(worker: Worker) -> None:
    before = files(worker)
    with worker.connect() as connection:
        for name, (verb, call) in HOSTILE.items():
            answer = ask(connection, verb, **call)
            assert isinstance(answer, dict)
            assert "malformed request" in json.dumps(answer["error"]), name
            assert files(worker) == before, name
        assert worker.children() == []
        device = {"name": "gpu-0", "uuid": uuid(worker, 0), "is_admin": False}
        answer = ask(connection, "spec_claim", **{**PLAIN, "devices": [device]})
    assert isinstance(answer, dict)
    assert "error" not in answer
    assert f"k8s.gpu.nvidia.com-claim_{UID}.json" in files(worker)


def test_a_file_of_the_agents_choice_is_not_a_specification_of_others(worker: Worker) -> None:
    """A link in the folder is replaced, as each name there."""
    target = worker.specs.parent / "target"
    target.write_text("kept")
    (worker.specs / "k8s.device-plugin.nvidia.com-gpu.json").symlink_to(target)
    run(worker, plugin_files)
    assert target.read_text() == "kept"
    assert "devices" in files(worker)["k8s.device-plugin.nvidia.com-gpu.json"]


async def test_a_change_of_the_specifications_of_others_is_seen(worker: Worker) -> None:
    seen: list[object] = []

    async with connected(worker) as client:
        specs = claim_specs(client)
        for name in ("", "nvidia.json", "k8s.gpu.nvidia.com-claim_x.json"):
            if name:
                (worker.specs / name).write_text("{}")
            await specs.look()
            seen.append(specs.signature)
    assert seen[0] == ()
    assert seen[1] == seen[2] != ()


def test_a_process_that_fails_is_told() -> None:
    def refuse() -> Any:
        raise HostError("no")

    with pytest.raises(HostError, match="no"):
        in_child(refuse)
    with pytest.raises(NvctError, match="ZeroDivisionError"):
        in_child(lambda: 1 // 0)
    assert in_child(lambda: [1]) == [1]


def test_an_unknown_hook_of_the_settings_is_told_before_anybody_is_asked() -> None:
    with pytest.raises(NvctError, match="disabled_hooks"):
        request_of(Settings(cdi_disable_hooks=("nope",)), ())


def test_each_request_has_a_verb_and_comes_back_as_it_was() -> None:
    calls: list[host_verbs.Call] = [
        request_of(
            Settings(cdi_feature_flags=("disable-ipc-discoverer",), gds_enabled=True), (0,)
        ),
        host_verbs.KeepClaims(uids=(UID,)),
        Published(),
    ]
    for call in calls:
        verb = host_verbs.VERBS[type(call)]
        assert typed.load(host_verbs.CALLS[verb], typed.dump(call)) == call


def test_the_worker_loads_neither_an_event_loop_nor_the_generator() -> None:
    """Its memory is there on each node; asyncio alone takes 3 MB of it."""
    code = "import sys, nvct.agent.nvml.worker; print(*sys.modules)"
    done = captured([sys.executable, "-c", code], check=True)
    loaded = done.stdout.split()
    assert "nvct.agent.host_side" in loaded
    assert not {"asyncio", "nvct.cdi.make.generate", "nvct.cdi.make.store", "json"} & {*loaded}


def test_a_warning_of_this_process_is_read_as_one_of_the_worker() -> None:
    host = Host(NvmlClient(None), lambda: Place(roots=Roots()))
    vars(host)["_side"] = SimpleNamespace(answer=lambda *_: [HostWarning("NVML is missing")])

    assert asyncio.run(host.ask(NodeNames(), tuple[str, ...])) == ("NVML is missing",)
