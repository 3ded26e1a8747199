# SPDX-License-Identifier: Apache-2.0
"""Claims are prepared once, unprepared, and never leak: with an API server and a folder of files."""

import asyncio
import io
import json
import os
import random
import shutil
import uuid
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nvct.agent.core.logs import Log
from nvct.agent.core.resources_mode import DRA, ResourcesMode
from nvct.agent.dra import claims
from nvct.agent.dra.claim_specs import FILES, ClaimSpecs
from nvct.agent.dra.classic import Classic
from nvct.agent.dra.devices import DRIVER, Device, Place, Value, Version
from nvct.agent.dra.instances import Instances
from nvct.agent.dra.journal import Journal
from nvct.agent.dra.mps_claims import ClaimDaemons
from nvct.agent.dra.prepare import Preparer
from nvct.agent.dra.settings import Settings
from nvct.agent.dra.specs import edits_of
from nvct.agent.kubelet.dra_service import ClaimRef
from nvct.agent.kubernetes.cluster import ClusterError, Object
from nvct.agent.mps.daemons import Daemon
from nvct.agent.nvml.client import NvmlClient
from nvct.cdi.types import Spec
from nvct.errors import DocumentError, HostError, NvctError, RequestError
from nvct.host.roots import Roots
from tests.unit.agent.dra.fake_api import NAME, FakeApi

CLAIM = claims.kind("v1")
GPUS = 4


def device(number: int) -> Device:
    uuid = f"GPU-{number}"
    return Device(name=f"gpu-{number}", uuid=uuid, gpu=uuid, attributes={}, capacity={})


def spec_of_all() -> Spec:
    return {
        "cdiVersion": "",
        "kind": "k8s.device-plugin.nvidia.com/gpu",
        "devices": [
            {"name": f"GPU-{n}", "containerEdits": {"deviceNodes": [{"path": f"/dev/nvidia{n}"}]}}
            for n in range(GPUS)
        ],
        "containerEdits": {"env": ["NVIDIA_VISIBLE_DEVICES=void"]},
    }


def uid_of(name: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_DNS, name))


def ref(name: str, uid: str = "") -> ClaimRef:
    return ClaimRef("ns", name, uid or uid_of(name))


def allocation(*devices: str, pool: str = NAME, driver: str = DRIVER, **more: Any) -> Object:
    results = [
        {"request": f"req-{n}", "driver": driver, "pool": pool, "device": name, **more}
        for n, name in enumerate(devices)
    ]
    return {"allocation": {"devices": {"results": results}}}


async def no_devices() -> dict[tuple[str, int], str]:
    return {}


class Node:
    """An API server, a folder, and what prepares claims; `restart` is a new process."""

    def __init__(self, folder: Path) -> None:
        self.api = FakeApi()
        self.folder = folder
        self.restart()

    def restart(self, *, is_boot: bool = False) -> None:
        if is_boot:
            shutil.rmtree(self.folder / "cdi", ignore_errors=True)
            (self.folder / "cdi").mkdir()
        self.journal = Journal(str(self.folder / "plugins"))
        machine: Any = SimpleNamespace(nvml=NvmlClient(None), roots=Roots(), stat_node=None)
        self.settings = Settings(cdi_root=str(self.folder / "cdi"), node_name=NAME)
        self.specs = ClaimSpecs(self.settings, machine)
        self.specs.is_known = True
        self.know(edits_of(spec_of_all()))
        self.log = io.StringIO()
        log = Log(target=self.log)
        self.preparer = Preparer(
            settings=self.settings, journal=self.journal, specs=self.specs, find=self.find,
            agent_log=log, instances=Instances(machine.nvml, no_devices, log),
            mps=ClaimDaemons(machine.nvml, log), classic=Classic(str(self.folder / "kubelet.sock")),
            mode=ResourcesMode(DRA, is_alone=True),
        )  # fmt: skip
        self.preparer.devices = {f"gpu-{n}": device(n) for n in range(GPUS)}

    def know(self, edits: Any) -> None:
        self.specs._files._side.edits = edits

    async def find(self, claim: ClaimRef) -> Object | None:
        found = await self.api.find(CLAIM, claim.name, claim.namespace)
        return found if found and found["metadata"]["uid"] == claim.uid else None

    def allocate(self, name: str, *devices: str, uid: str = "", **more: Any) -> ClaimRef:
        claim = ref(name, uid)
        metadata = {"name": name, "namespace": "ns", "uid": claim.uid}
        self.api.put(CLAIM, {"metadata": metadata, "status": allocation(*devices, **more)})
        return claim

    def delete(self, claim: ClaimRef) -> None:
        self.api.remove(CLAIM, claim.name, claim.namespace)

    def files(self) -> list[str]:
        prefix, ending = "k8s.gpu.nvidia.com-claim_", ".json"
        names = [path.name for path in (self.folder / "cdi").glob(f"{prefix}*")]
        return sorted(name.removeprefix(prefix).removesuffix(ending) for name in names)

    def spec(self, claim: ClaimRef) -> Any:
        path = self.folder / f"cdi/k8s.gpu.nvidia.com-claim_{claim.uid}.json"
        return json.loads(path.read_text())


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_a_claim_gets_the_nodes_of_its_devices_and_the_drivers_files(node: Node) -> None:
    claim = node.allocate("two", "gpu-1", "gpu-3")

    one, two = asyncio.run(node.preparer.prepare(claim))

    assert one.cdi == (FILES, f"k8s.gpu.nvidia.com/claim={claim.uid}-gpu-1")
    assert (one.requests, two.requests) == (("req-0",), ("req-1",))
    assert (two.pool, two.device) == (NAME, "gpu-3")
    spec = node.spec(claim)
    assert spec["kind"] == "k8s.gpu.nvidia.com/claim"
    assert [one["name"] for one in spec["devices"]] == [f"{claim.uid}-gpu-1", f"{claim.uid}-gpu-3"]
    assert spec["devices"][1]["containerEdits"] == {"deviceNodes": [{"path": "/dev/nvidia3"}]}


def test_the_same_question_has_the_same_answer_and_writes_nothing(node: Node) -> None:
    claim = node.allocate("one", "gpu-0")
    first = asyncio.run(node.preparer.prepare(claim))
    before = os.stat(node.journal.path).st_mtime_ns

    node.restart()

    assert asyncio.run(node.preparer.prepare(claim)) == first
    assert os.stat(node.journal.path).st_mtime_ns == before


def test_devices_of_other_drivers_and_nodes_are_not_ours(node: Node) -> None:
    claim = node.allocate("other", "gpu-0", driver="other.example.com")

    assert asyncio.run(node.preparer.prepare(claim)) == []
    assert asyncio.run(node.preparer.prepare(node.allocate("far", "gpu-0", pool="far"))) == []
    assert node.files() == []


@pytest.mark.parametrize("uid", ["", "../../etc/cron.d/x", "a/b", "x" * 70, "-a"])
def test_a_uid_that_is_none_is_refused(node: Node, uid: str) -> None:
    for work in (node.preparer.prepare, node.preparer.unprepare):
        with pytest.raises(RequestError, match="is not the uid"):
            asyncio.run(work(ClaimRef("ns", "x", uid)))


def test_claims_that_are_not_as_the_kubelet_says_are_refused(node: Node) -> None:
    node.allocate("other-uid", "gpu-0", uid=uid_of("newer"))
    node.api.put(CLAIM, {"metadata": {"name": "no", "namespace": "ns", "uid": uid_of("no")}})

    for name, message in (
        ("missing", "no ResourceClaim ns/missing"),
        ("other-uid", f"with uid {uid_of('other-uid')}"),
        ("no", "is not allocated"),
    ):
        with pytest.raises(RequestError, match=message):
            asyncio.run(node.preparer.prepare(ref(name)))
    with pytest.raises(HostError, match="has no device gpu-9"):
        asyncio.run(node.preparer.prepare(node.allocate("gone", "gpu-9")))
    assert node.journal.load() == {}
    assert node.files() == []


def test_a_claim_that_cannot_be_prepared_is_logged_once(node: Node) -> None:
    far = node.allocate("far", "gpu-9")
    why = f"claim ns/far cannot be prepared: Node {NAME} has no device gpu-9 now"

    def fails() -> int:
        with pytest.raises(HostError):
            asyncio.run(node.preparer.prepare(far))
        return node.log.getvalue().count(why)

    assert [fails(), fails()] == [1, 1]
    node.preparer.devices = {"gpu-9": device(9), **node.preparer.devices}
    node.know({"GPU-9": {"env": ["A=1"]}})
    asyncio.run(node.preparer.prepare(far))
    asyncio.run(node.preparer.unprepare(far))
    del node.preparer.devices["gpu-9"]
    assert fails() == 2


async def test_a_device_is_not_given_twice_while_its_claim_exists(node: Node) -> None:
    first = node.allocate("first", "gpu-0")
    second = node.allocate("second", "gpu-0")
    await node.preparer.prepare(first)
    with pytest.raises(HostError, match="GPU-0 is prepared for claim ns/first"):
        await node.preparer.prepare(second)
    watches = node.allocate("watches", "gpu-0", adminAccess=True)
    assert len(await node.preparer.prepare(watches)) == 1
    node.delete(first)  # while nobody told the driver
    await node.preparer.prepare(second)
    assert node.files() == sorted(map(uid_of, ("second", "watches")))


@pytest.mark.parametrize("held", ["GPU-1", "MIG-1"])
def test_a_gpu_that_a_pod_has_by_a_device_plugin_is_not_given(node: Node, held: str) -> None:
    mig = Device(name="gpu-1-mig", uuid="MIG-1", gpu="GPU-1", attributes={}, capacity={})
    node.preparer.devices = {**node.preparer.devices, mig.name: mig}
    pods = {held: "ns/old"}

    async def holders() -> dict[str, str]:
        return pods

    node.preparer.classic.holders = holders  # type: ignore[method-assign]
    claim = node.allocate("one", "gpu-1")

    with pytest.raises(HostError, match=rf"pod ns/old has {held} by the device plugin"):
        asyncio.run(node.preparer.prepare(claim))
    assert (node.files(), node.journal.load()) == ([], {})
    asyncio.run(node.preparer.prepare(node.allocate("two", "gpu-0")))
    asyncio.run(node.preparer.prepare(node.allocate("sees", "gpu-1", adminAccess=True)))
    pods.clear()
    asyncio.run(node.preparer.prepare(claim))


async def test_unprepare_can_be_repeated_and_a_claim_prepared_again(node: Node) -> None:
    claim = node.allocate("one", "gpu-0")
    await node.preparer.prepare(claim)
    await node.preparer.unprepare(claim)
    await node.preparer.unprepare(claim)
    assert (node.files(), node.journal.load()) == ([], {})
    node.delete(claim)
    with pytest.raises(RequestError):  # a late retry
        await node.preparer.prepare(claim)
    assert node.files() == []
    await node.preparer.prepare(node.allocate("one", "gpu-0"))
    assert node.files() == [uid_of("one")]


async def test_what_is_gone_is_unprepared_at_the_start_and_what_exists_is_written_again(
    node: Node,
) -> None:
    stays, goes, freed, older = (
        node.allocate(name, f"gpu-{n}")
        for n, name in enumerate(("stays", "goes", "freed", "older"))
    )
    for claim in (stays, goes, freed, older):
        await node.preparer.prepare(claim)
    node.delete(goes)
    metadata = {"name": "freed", "namespace": "ns", "uid": freed.uid}
    node.api.put(CLAIM, {"metadata": metadata, "status": {}})
    node.allocate("older", "gpu-3", uid=uid_of("newer"))
    (node.folder / "cdi/k8s.gpu.nvidia.com-claim_unknown.json").write_text("{}")
    node.restart(is_boot=True)
    (node.folder / "cdi/k8s.gpu.nvidia.com-claim_unknown.json").write_text("{}")
    await node.preparer.reconcile()
    assert node.files() == [stays.uid] == list(node.journal.load())
    assert node.spec(stays)["devices"][0]["name"] == f"{stays.uid}-gpu-0"


async def test_while_the_api_server_is_away_nothing_is_forgotten(node: Node) -> None:
    claim, new = node.allocate("one", "gpu-0"), node.allocate("new", "gpu-1")
    first = await node.preparer.prepare(claim)
    node.restart()
    node.api.refuses = ClusterError("the API server does not answer")
    await node.preparer.reconcile()
    assert await node.preparer.prepare(claim) == first
    with pytest.raises(ClusterError):
        await node.preparer.prepare(new)
    await node.preparer.unprepare(claim)
    assert node.files() == []


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"version": 2}', '{"version": 1, "claims": [{"uid": "x"}]}',
             '{"version": 1, "claims": 5}', "[" * 100_000,
             '{"version": 1, "claims": [{"uid": "x", "namespace": "", "name": "", "entries": [""]}]}'],
)  # fmt: skip
def test_a_damaged_journal_is_told_and_kept(node: Node, text: str) -> None:
    with open(node.journal.path, "w", encoding="utf-8") as file:
        file.write(text)

    with pytest.raises(DocumentError, match=r"nvct-claims\.json is malformed"):
        asyncio.run(node.preparer.prepare(node.allocate("one", "gpu-0")))
    with open(node.journal.path, encoding="utf-8") as file:
        assert file.read() == text


def test_a_folder_that_is_gone_is_told(node: Node) -> None:
    claim = node.allocate("one", "gpu-0")
    shutil.rmtree(node.folder / "plugins")

    for work in (node.preparer.prepare(claim), node.preparer.unprepare(claim)):
        with pytest.raises(HostError, match=r"nvct-claims\.lock cannot be opened: No such file"):
            asyncio.run(work)


def test_a_claim_whose_spec_cannot_be_written_is_not_in_the_journal(node: Node) -> None:
    claim = node.allocate("one", "gpu-0")
    node.know({})

    with pytest.raises(HostError, match="is not on this node"):
        asyncio.run(node.preparer.prepare(claim))

    assert node.journal.load() == {}


def test_a_journal_of_the_version_before_is_read_and_written_so_that_that_one_reads_it(
    node: Node,
) -> None:
    entry = {
        "device": "gpu-0", "uuid": "GPU-0", "gpu": "GPU-0", "requests": ["gpu"], "is_admin": False,
        "place": None,
    }  # fmt: skip
    uuid = "GPU-00000000-1111-5222-8333-000000000000"
    daemon = {"resource": "gpu.nvidia.com/x", "uuids": [uuid], "limits": {}, "percentage": 5}
    claim = {"namespace": "ns", "name": "x", "uid": uid_of("x"), "entries": [entry]}
    document = {"version": 1, "claims": [{**claim, "daemon": daemon}]}
    Path(node.journal.path).write_text(json.dumps(document))

    (known,) = node.journal.load().values()

    assert (known.entries[0].device, known.share, known.has_metadata) == ("gpu-0", None, False)
    assert known.daemon == Daemon(resource="gpu.nvidia.com/x", uuids=(uuid,), percentage=5)
    more = replace(
        known.entries[0], share_mib=1024, cores=50, alternatives=("a/b",), shares=(("a", "id"),)
    )
    many_users = replace(known.daemon, multi_user=True, time_slice=1)
    for wanted in (replace(known, entries=(more,), daemon=many_users), known):
        node.journal.save({known.uid: wanted})
        assert node.journal.load() == {known.uid: wanted}
    (written,) = json.loads(Path(node.journal.path).read_text())["claims"]
    assert (written["entries"], written["daemon"]) == ([entry], daemon)


def test_containers_can_read_what_their_devices_are(node: Node) -> None:
    node.preparer.settings = replace(node.settings, device_metadata=True)
    attributes: dict[str, Value] = {
        "uuid": "GPU-1",
        "numaNode": 1,
        "driverVersion": Version("580.65.6"),
    }
    node.preparer.devices = {"gpu-1": replace(device(1), attributes=attributes)}
    claim = node.allocate("one", "gpu-1")
    found = node.api.objects[CLAIM.plural, "ns", "one"]
    found["metadata"]["annotations"] = {"resource.kubernetes.io/pod-claim-name": "gpu"}
    found["status"]["allocation"]["devices"]["results"][0]["request"] = "main/large"

    (prepared,) = asyncio.run(node.preparer.prepare(claim))

    name = f"{claim.uid}-main-metadata"
    assert prepared.cdi[-1] == f"k8s.gpu.nvidia.com/claim={name}"
    edits = {one["name"]: one["containerEdits"] for one in node.spec(claim)["devices"]}
    (mount,) = edits[name]["mounts"]
    assert mount["options"][0] == "ro"
    assert mount["containerPath"] == (
        "/var/run/kubernetes.io/dra-device-attributes/resourceclaimtemplates/gpu/main/"
        "gpu.nvidia.com-metadata.json"
    )
    path = Path(mount["hostPath"])
    assert path.stat().st_mode & 0o777 == 0o644
    assert json.loads(path.read_text()) == {
        "apiVersion": "metadata.resource.k8s.io/v1alpha1", "kind": "DeviceMetadata",
        "metadata": {"name": "one", "namespace": "ns", "uid": claim.uid, "generation": 1},
        "podClaimName": "gpu",
        "requests": [{"name": "main/large", "devices": [{
            "driver": DRIVER, "pool": NAME, "name": "gpu-1", "attributes": {
                "uuid": {"string": "GPU-1"}, "numaNode": {"int": 1},
                "driverVersion": {"version": "580.65.6"},
            },
        }]}],
    }  # fmt: skip

    node.restart(is_boot=True)  # with the setting off: the kubelet names the CDI device still
    asyncio.run(node.preparer.reconcile())
    assert path.exists()
    assert asyncio.run(node.preparer.prepare(claim))[0].cdi == prepared.cdi
    asyncio.run(node.preparer.unprepare(claim))
    assert not path.exists()
    path.write_text("of a claim that another agent has forgotten")
    asyncio.run(node.preparer.reconcile())
    assert not path.exists()


async def test_a_thousand_random_lifecycles_leave_nothing_behind(tmp_path: Path) -> None:
    """What exists is prepared, what was deleted is not, and no device has two claims."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    dice, node = random.Random(seed), Node(tmp_path)

    live: dict[str, ClaimRef] = {}
    for number in range(1000):
        free = [f"gpu-{n}" for n in range(GPUS) if f"gpu-{n}" not in live]
        action = dice.choice(("new", "new", "end", "lose", "restart", "again", "away"))
        if action == "new" and free:
            gpu = dice.choice(free)
            live[gpu] = node.allocate(f"c{number}", gpu)
            await node.preparer.prepare(live[gpu])
        elif action == "end" and live:
            claim = live.pop(dice.choice(sorted(live)))
            await node.preparer.unprepare(claim)
            node.delete(claim)
        elif action == "lose" and live:
            node.delete(live.pop(dice.choice(sorted(live))))
            node.restart()
        elif action == "restart":
            node.restart(is_boot=dice.random() < 0.3)
            await node.preparer.reconcile()
        elif action == "again" and live:
            await asyncio.gather(*(node.preparer.prepare(one) for one in live.values()))
        elif action == "away" and live:
            node.api.refuses = ClusterError("away")
            try:
                await node.preparer.reconcile()
                await node.preparer.prepare(live[dice.choice(sorted(live))])
            except NvctError as error:
                raise AssertionError(seed) from error
            finally:
                node.api.refuses = None
        held = [e.uuid for claim in node.journal.load().values() for e in claim.entries]
        assert {claim.uid for claim in live.values()} <= set(node.journal.load()), seed
        assert len(held) == len(set(held)), seed
    await node.preparer.reconcile()
    assert set(node.files()) == {claim.uid for claim in live.values()}, seed


async def test_two_instances_share_the_journal(tmp_path: Path) -> None:
    older, newer = Node(tmp_path), Node(tmp_path)
    newer.api = older.api
    ones = [older.allocate(f"c{n}", f"gpu-{n}") for n in range(GPUS)]
    await asyncio.gather(
        *((older, newer)[n % 2].preparer.prepare(claim) for n, claim in enumerate(ones))
    )
    assert sorted(newer.journal.load()) == sorted(claim.uid for claim in ones)


SLICE = "gpu-0-mig-1g10gb-19-0"


class FakeInstances:
    """MIG devices that are made on demand; all have the UUID of GPU 0."""

    def __init__(self) -> None:
        self.made: set[Place] = set()
        self.is_busy = False

    async def make(self, _gpu: str, place: Place) -> None:
        self.made.add(place)

    async def uuids(self) -> dict[tuple[str, int, int, int], str]:
        return {("GPU-0", *place[:3]): "GPU-0" for place in self.made}

    async def destroy(self, gpu: str, place: Place) -> None:
        if self.is_busy:
            raise HostError(f"a MIG device of {gpu} is in use")
        self.made.discard(place)


@pytest.fixture
def on_demand(node: Node) -> FakeInstances:
    made = FakeInstances()
    node.preparer.instances = made  # type: ignore[assignment]
    mig = Device(
        name=SLICE, uuid="", gpu="GPU-0", attributes={}, capacity={}, place=Place(0, 0, 1, 0)
    )
    node.preparer.devices = {**node.preparer.devices, SLICE: mig}
    return made


async def test_admin_access_neither_makes_nor_destroys_a_mig_device(
    node: Node, on_demand: FakeInstances
) -> None:
    watches = node.allocate("watches", SLICE, adminAccess=True)
    with pytest.raises(HostError, match="has no MIG device with device nodes"):
        await node.preparer.prepare(watches)
    assert not on_demand.made
    await node.preparer.prepare(node.allocate("uses", SLICE))
    await node.preparer.prepare(watches)
    await node.preparer.unprepare(watches)
    assert len(on_demand.made) == 1
    assert list(node.journal.load()) == [uid_of("uses")]


def test_a_device_with_and_without_admin_access_has_two_names(node: Node) -> None:
    claim = node.allocate("both", "gpu-1")
    found = node.api.objects[CLAIM.plural, "ns", "both"]
    results = found["status"]["allocation"]["devices"]["results"]
    results.append({**results[0], "request": "admin", "adminAccess": True})

    asyncio.run(node.preparer.prepare(claim))

    names = [one["name"] for one in node.spec(claim)["devices"]]
    assert names == [f"{claim.uid}-gpu-1", f"{claim.uid}-gpu-1-admin"]


async def test_a_claim_whose_device_is_busy_does_not_keep_others(
    node: Node, on_demand: FakeInstances
) -> None:
    busy, other = node.allocate("busy", SLICE), node.allocate("other", "gpu-1")
    for claim in (busy, other):
        await node.preparer.prepare(claim)
        node.delete(claim)
    node.preparer.classic.claims = frozenset({"ns/busy", "ns/other"})
    await node.preparer.reconcile()
    assert len(node.journal.load()) == 2
    node.preparer.classic.claims = frozenset()  # the kubelet names them no longer
    on_demand.is_busy = True
    await node.preparer.reconcile()
    assert list(node.journal.load()) == [uid_of("busy")]
    on_demand.is_busy = False
    await node.preparer.reconcile()
    assert node.journal.load() == {}
