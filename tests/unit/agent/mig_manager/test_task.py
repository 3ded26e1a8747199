# SPDX-License-Identifier: Apache-2.0
"""A simulated node follows its label; whatever fails ends as failed with a reason, and unpaused."""

import asyncio
import contextlib
import copy
import io
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from nvct.agent.core.logs import Log
from nvct.agent.health.engine import HealthEngine
from nvct.agent.kubernetes.cluster import EVENT, NODE, ClusterError, Kind, Object
from nvct.agent.kubernetes.node_pods import PodDevice
from nvct.agent.mig_manager import task
from nvct.agent.mig_manager.node_labels import CONFIG, PAUSED, REASON, STATE
from nvct.agent.mig_manager.settings import Settings
from nvct.agent.mig_manager.users import HostServices
from nvct.agent.mig_manager.work import AgentSession, Work
from nvct.agent.nvml.client import NvmlClient, SupervisorEndedError
from nvct.errors import HostError
from nvct.host.nvml.mig_model import MigState
from nvct.mig import journal, pause, plan, smi
from nvct.mig.apply import Machine
from nvct.mig.config import Spec
from nvct.mig.holders import Holder
from nvct.mig.journal import Journal
from nvct_sim import node_changes, tree
from tests.unit.agent.device_plugin.fake_kubelet import until
from tests.unit.agent.dra.fake_api import NAME, FakeApi
from tests.unit.agent.machines import Supervisor, roots_of
from tests.unit.mig.conftest import node  # noqa: F401 - a fixture

PLUGIN = "nvidia.com/gpu.deploy.device-plugin"


class FakeCluster(FakeApi):
    """A cluster of one Node.

    Attributes:
        states: that the Node has shown.
        paused: how often a DaemonSet was paused.
    """

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Object] = []
        self.states: list[str] = []
        self.paused = 0
        self.put(NODE, {"metadata": {"name": NAME, "labels": {}, "annotations": {}}})

    @property
    def node(self) -> Object:
        return self.objects[NODE.plural, "", NAME]

    @property
    def labels(self) -> dict[str, str]:
        found: dict[str, str] = self.node["metadata"]["labels"]
        return found

    @property
    def reason(self) -> str:
        return str(self.node["metadata"]["annotations"].get(REASON, ""))

    def label(self, **labels: str) -> None:
        """Change labels as a user does."""
        names = {"config": CONFIG, "plugin": PLUGIN, "state": STATE}
        changed = {**self.labels, **{names[key]: value for key, value in labels.items()}}
        self.put(NODE, {"metadata": {**self.node["metadata"], "labels": changed}})

    async def merge(self, kind: Kind, manifest: Object, manager: str) -> Object:
        written = await super().merge(kind, manifest, manager)
        labels = manifest["metadata"].get("labels", {})
        if STATE in labels:
            self.states.append(labels[STATE])
        self.paused += labels.get(PLUGIN) == PAUSED
        return written

    async def create(self, kind: Kind, manifest: Object) -> Object:
        assert kind == EVENT
        self.events.append(manifest)
        return manifest


class FakePods:
    """Pods that have devices; one that is evicted is gone."""

    def __init__(self) -> None:
        self.found: list[PodDevice] = []
        self.failure: ClusterError | None = None

    async def devices(self) -> list[PodDevice]:
        return self.found

    async def evict(self, pods: list[PodDevice]) -> None:
        if self.failure:
            raise self.failure
        self.found = [each for each in self.found if each not in pods]

    async def close(self) -> None:
        pass


class Lab:
    """A node, its cluster, and the manager between them."""

    def __init__(self, simulated: tree.Node, folder: str) -> None:
        self.tree, self.folder = simulated, folder
        self.cluster = FakeCluster()
        self.pods = FakePods()
        self.settings = Settings(node_name=NAME)
        self.config = ""
        self.log = io.StringIO()
        self.paused: list[object] = []
        self.health: HealthEngine | None = None
        self.strategy = ""

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[task.MigManager]:
        supervisor = Supervisor(NVCT_SIM_DEV=str(self.tree.dev))
        client = NvmlClient(supervisor.connection)
        roots = roots_of(self.tree)
        session = AgentSession(client, roots)
        machine = Machine(
            session=session, roots=roots, journal=Journal(self.folder), reset=session.reset,
            pause=self._pause,
        )  # fmt: skip
        work = task.MigManager(
            self.settings,
            cluster=self.cluster,  # type: ignore[arg-type]
            work=Work(
                machine=machine,
                config_file=self.config,
                state_file=f"{self.folder}/drop",
                strategy=lambda: self.strategy,
            ),
            session=session,
            services=HostServices("/", "", self.folder),
            pods=self.pods,  # type: ignore[arg-type]
            log=Log(target=self.log),
            health=lambda: self.health,
        )
        self.client = client
        runs = asyncio.create_task(work.run())
        self.machine, self.session, self.supervisor = machine, session, supervisor
        try:
            yield work
        finally:
            runs.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await runs
            client.disconnect()
            assert supervisor.ended() == 0

    @contextlib.contextmanager
    def _pause(self, paused: pause.Paused) -> Iterator[None]:
        self.paused.append(paused)
        with pause.announce(self.folder, paused):
            yield

    async def asked(
        self, config: str, state: str = "success", reason: str = "", **labels: str
    ) -> None:
        """Ask for a configuration by the Node's label, and wait for its state."""
        self.cluster.label(config=config, **labels)
        await self.shows(state, reason)

    async def shows(self, state: str, reason: str = "") -> None:
        def holds() -> bool:
            cluster = self.cluster
            return cluster.labels.get(STATE) == state and reason in cluster.reason

        try:
            await until(holds)
        except BaseException:
            print(self.cluster.node, self.log.getvalue())
            raise

    async def occupied(self) -> str:
        """Return the UUID of a GPU that a pod has from now on."""
        self.session.begin()
        gpu = (await self.state()).gpus[2].uuid
        self.pods.found = [PodDevice("default", "train", gpu, None, gpu)]
        return gpu

    async def state(self) -> MigState:
        return await asyncio.to_thread(self.machine.session.mig)

    async def devices(self) -> int:
        return sum(len(gpu.instances) for gpu in (await self.state()).gpus)


@pytest.fixture
def lab(node: tree.Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:  # noqa: F811
    monkeypatch.setattr(task, "PERIOD_S", 0.2)
    monkeypatch.setattr(task, "LOOK_S", 0.05)
    monkeypatch.setattr(task, "CLEAR_S", 0.3)
    monkeypatch.setattr(task, "RETRY_S", (0.3,))
    monkeypatch.setattr("nvct.agent.core.waiting.DELAYS_S", (0.05,))
    return Lab(node, str(tmp_path))


async def test_the_gpus_follow_the_label(lab: Lab) -> None:
    async with lab.running():
        await asyncio.sleep(0.1)
        assert lab.cluster.states == []
        await lab.asked("all-1g.10gb")
        assert await lab.devices() == 56
        assert PLUGIN not in lab.cluster.labels
        lab.cluster.label(config="all-disabled", plugin="true")
        await until(lambda: len(lab.cluster.states) == 4)
        assert await lab.devices() == 0
    assert lab.cluster.states == ["pending", "success"] * 2
    # DaemonSets of the operator go and come back.
    assert (lab.cluster.paused, lab.cluster.labels[PLUGIN]) == (1, "true")
    assert len(lab.paused) >= 2
    assert pause.read(lab.folder) == {}
    assert [event["message"] for event in lab.cluster.events] == [
        "MIG configuration all-1g.10gb is applied", "MIG configuration all-disabled is applied",
    ]  # fmt: skip


async def test_nothing_changes_and_nothing_fails_while_the_driver_is_replaced(lab: Lab) -> None:
    async with lab.running():
        await lab.client.let_go("the driver is being replaced")
        lab.cluster.label(config="all-1g.10gb")
        await asyncio.sleep(0.5)
        assert lab.cluster.states == []
        lab.client.refusal = ""
        await lab.shows("success")
    assert lab.cluster.states == ["pending", "success"]


async def test_mig_is_refused_where_the_plugin_offers_whole_gpus(lab: Lab) -> None:
    async with lab.running():
        lab.strategy = "none"
        await lab.asked("all-1g.10gb", "failed", "set mig.strategy=single or mixed")
        assert await lab.devices() == 0
        assert not lab.paused
        lab.strategy = "single"
        await lab.asked("all-2g.20gb")
        lab.strategy = "none"
        lab.cluster.label(config="all-disabled")  # the way back
        await until(lambda: lab.cluster.states[-1:] == ["success"])
        await until(lambda: len(lab.cluster.states) == 5)
        assert await lab.devices() == 0
    assert lab.cluster.states == ["failed", *["pending", "success"] * 2]
    assert len(lab.paused) >= 2  # a busy machine may have ended a change, which was made again


async def test_a_label_that_changes_as_the_state_is_written_is_seen(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task, "PERIOD_S", 60.0)
    merge = FakeCluster.merge

    async def merge_and_label(cluster: FakeCluster, *arguments: Any) -> Object:
        await merge(cluster, *arguments)
        if cluster.states == ["pending"]:
            cluster.label(config="all-3g.40gb")
        return copy.deepcopy(cluster.node)

    monkeypatch.setattr(FakeCluster, "merge", merge_and_label)

    async with lab.running():
        await lab.asked("all-7g.80gb")
        assert await lab.devices() == 16
    # No success of the first configuration beside the label of the second.
    assert lab.cluster.states == ["pending", "success"]


async def test_what_the_gpus_have_is_a_success_and_a_change_by_somebody_else_is_undone(
    lab: Lab,
) -> None:
    async with lab.running():
        await lab.asked("all-disabled")
        assert lab.cluster.states == ["success"]
        assert lab.paused == lab.cluster.events == []
        node_changes.set_mig_mode(lab.tree, 0, on=True)
        await until(lambda: len(lab.cluster.states) == 3)
        assert not (await lab.state()).gpus[0].enabled


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("all-9g.99gb", "all-9g.99gb: there is no MIG configuration 'all-9g.99gb'"),
        ("all-1g.5gb", "no GPU of this machine is in the configuration"),
    ],
)
async def test_what_the_gpus_cannot_have_fails_and_touches_nothing(
    lab: Lab, name: str, reason: str
) -> None:
    async with lab.running():
        await lab.asked(name, "failed", reason, plugin="true")
        await lab.asked("all-disabled")
    assert lab.paused == []
    assert lab.cluster.paused == 0
    assert lab.cluster.reason == ""
    assert [event["reason"] for event in lab.cluster.events] == [
        "MigConfigFailed", "MigConfigApplied",
    ]  # fmt: skip


async def test_a_users_file_is_read_again_at_each_look(lab: Lab, tmp_path: Path) -> None:
    lab.config = str(tmp_path / "configs.yaml")

    async with lab.running():
        await lab.asked("mine", "failed", "configs.yaml cannot be read")
        await asyncio.to_thread((tmp_path / "configs.yaml").write_text, "version: v7")
        await lab.shows("failed", "unknown version: v7")
        text = "version: v1\nmig-configs: {mine: [{devices: [1], mig-enabled: true, mig-devices: {3g.40gb: 2}}]}"
        await asyncio.to_thread((tmp_path / "configs.yaml").write_text, text)
        await lab.shows("success")
        assert await lab.devices() == 2


async def test_after_a_failure_on_the_gpus_they_are_as_before_and_it_is_tried_again(
    lab: Lab,
) -> None:
    node_changes.set_process(lab.tree, 3, 4242, {})
    node_changes.set_gpu(lab.tree, 3, migreset="1")

    async with lab.running():
        await lab.asked("all-7g.80gb", "failed", "the former layout is restored", plugin="true")
        assert lab.cluster.labels[PLUGIN] == "true"
        assert not any(gpu.enabled or gpu.pending for gpu in (await lab.state()).gpus)
        node_changes.end_process(lab.tree, 3, 4242)
        node_changes.set_gpu(lab.tree, 3, migreset="0")
        await lab.shows("success")
    assert lab.cluster.paused >= 2


async def test_a_mode_that_needs_a_reset_gets_it_while_nvml_is_closed(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    node_changes.set_gpu(lab.tree, 0, migreset="1")
    called: list[str] = []

    def reset(bus_ids: list[str], program: smi.Smi, limit_s: float) -> None:
        assert program.env is not None
        assert os.access(program.command[0], os.X_OK)
        assert os.path.isdir(program.env["LD_LIBRARY_PATH"])
        assert 0 < limit_s <= 300
        called.extend(bus_ids)
        node_changes.reset_gpu(lab.tree, 0)

    monkeypatch.setattr(smi, "reset", reset)

    async with lab.running():
        await lab.asked("all-7g.80gb")
        assert called == [(await lab.state()).gpus[0].bus_id]


def test_the_end_of_nvmls_supervisor_ends_the_task(lab: Lab) -> None:
    async def whole() -> None:
        lab.cluster.label(config="all-disabled")
        async with lab.running() as manager:
            await lab.shows("success")
            lab.supervisor.process.kill()
            with pytest.raises(SupervisorEndedError):
                await manager.run()

    with pytest.raises((AssertionError, SupervisorEndedError)):  # of the one that ran before
        asyncio.run(whole())


POD = "pod default/train has"


async def test_a_pod_that_has_a_device_which_changes_is_named(lab: Lab) -> None:
    async with lab.running():
        gpu = await lab.occupied()
        why = f"{POD} {gpu} (delete these pods, or set migManager.evictPods"
        await lab.asked("all-7g.80gb", "failed", why, plugin="true")
        assert lab.cluster.states == ["failed"]
        lab.pods.found = []
        await lab.shows("success")


async def test_pods_are_evicted_if_that_is_allowed(lab: Lab) -> None:
    lab.settings = Settings(node_name=NAME, evicts_pods=True)

    async with lab.running():
        await lab.occupied()
        lab.pods.failure = ClusterError("Cannot evict pod as it would violate its budget")
        why = "all-7g.80gb: Cannot evict pod as it would violate its budget"
        await lab.asked("all-7g.80gb", "failed", why, plugin="true")
        assert lab.cluster.labels[PLUGIN] == "true"
        lab.pods.failure = None
        await lab.shows("success")
        assert lab.pods.found == []


async def test_while_the_api_server_is_away_the_change_goes_on_and_is_shown_later(
    lab: Lab,
) -> None:
    async with lab.running():
        lab.cluster.label(config="all-7g.80gb", plugin="true")
        await until(lambda: lab.cluster.states == ["pending"])
        lab.cluster.refuses = ClusterError("the API server does not answer")
        lab.session.begin()
        await until(lambda: bool(lab.paused) and pause.read(lab.folder) == {})
        await asyncio.sleep(0.2)
        assert lab.cluster.labels[PLUGIN] == PAUSED
        lab.cluster.refuses = None
        await lab.shows("success")
        assert lab.cluster.labels[PLUGIN] == "true"


async def test_a_change_is_ended_before_the_task_ends(lab: Lab) -> None:
    async with lab.running():
        lab.cluster.label(config="all-7g.80gb", plugin="true")
        await until(lambda: bool(lab.paused))
    assert lab.cluster.labels[PLUGIN] == "true"
    assert "mig-journal.json" not in os.listdir(lab.folder)

    lab.cluster = FakeCluster()
    async with lab.running():
        await lab.asked("all-7g.80gb")
        assert await lab.devices() == 8


async def test_what_a_killed_manager_left_is_put_right(lab: Lab) -> None:
    async with lab.running():
        lab.session.begin()
        state = await lab.state()
        specs = [Spec(devices=None, enabled=True, wish={"7g.80gb": 1})]
        after = plan.make(state, specs)
        before = journal.plan_of(journal.of_state(state)["MigState"])
        node_changes.set_mig_mode(lab.tree, 0, on=True)  # half of the change
        lab.machine.journal.open(before, after)
        lab.cluster.label(config="all-disabled", plugin=PAUSED, state="pending")
        await lab.shows("success")
        assert lab.cluster.labels[PLUGIN] == "true"
        assert not any(gpu.enabled for gpu in (await lab.state()).gpus)
    assert "mig-journal.json" not in os.listdir(lab.folder)


async def test_the_hosts_unit_gets_the_name_if_it_has_a_drop_in(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "drop").write_text("")

    async with lab.running():
        await lab.asked("all-disabled")
    line = 'Environment="MIG_PARTED_SELECTED_CONFIG=all-disabled"'
    assert (tmp_path / "drop").read_text() == f"[Service]\n{line}\n"


class FakeServices(HostServices):
    """A host whose reboot does nothing yet."""

    def __init__(self, lab: Lab) -> None:
        super().__init__("/", "", lab.folder)
        self.reboots = 0

    def reboot(self) -> None:
        self.reboots += 1


async def test_a_mode_that_needs_a_reboot_gets_one_and_only_one(lab: Lab) -> None:
    lab.settings = Settings(node_name=NAME, reboots=True)
    node_changes.set_gpu(lab.tree, 0, migreset="1")
    nvidia_smi = lab.tree.driver_root / "usr/bin/nvidia-smi"
    nvidia_smi.unlink()
    nvidia_smi.write_text(
        "#!/bin/sh\n"
        "echo 'GPU Reset could not be run because GPU 00000000:07:00.0 is the primary GPU.'\n"
        "exit 1\n"
    )
    nvidia_smi.chmod(0o755)

    async with lab.running() as manager:
        manager._services = services = FakeServices(lab)
        lab.cluster.label(config="all-7g.80gb")
        await lab.shows("rebooting")
        await asyncio.sleep(0.5)
        assert services.reboots == 1
        assert (await lab.state()).gpus[0].pending
    async with lab.running() as manager:  # after a reboot that did not help
        manager._services = services = FakeServices(lab)
        await lab.shows("failed", "the MIG mode is not in force after a reboot")
        await asyncio.sleep(2.5 * task.PERIOD_S)
        assert services.reboots == 0
    node_changes.reset_gpu(lab.tree, 0)
    lab.cluster.label(state="rebooting")
    async with lab.running():
        await lab.shows("success")


async def test_a_service_that_does_not_start_keeps_no_change_back(lab: Lab) -> None:
    class Services(HostServices):
        def start(self) -> None:
            raise HostError("Unit nvsm.service not found")

    async with lab.running() as manager:
        manager._services = Services("/", "", lab.folder)
        await lab.asked("all-1g.10gb")
    assert "Unit nvsm.service not found" in lab.log.getvalue()


HOLDER = Holder(pid=42, command="python3", container="", pod="", unit="", device="GPU 1")


async def _held(_manager: object) -> list[Holder]:
    return [HOLDER]


def _fail(*_: object) -> None:
    raise HostError("a drive has failed")


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ((task.MigManager, "_left", _held), "process 42 (python3) holds GPU 1"),
        ((task, "DEADLINE_S", 0.0),
         "the change of MIG takes too long; the former layout is restored"),
        ((Journal, "open", _fail), "a drive has failed"),
    ],
    ids=["in-use", "too-long", "a-drive"],
)  # fmt: skip
async def test_a_change_that_fails_is_taken_back_and_nothing_stays_paused(
    fault: tuple[object, str, object], reason: str, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*fault)

    async with lab.running():
        await lab.asked("all-7g.80gb", "failed", reason, plugin="true")
        assert not any(gpu.enabled for gpu in (await lab.state()).gpus)
    assert lab.cluster.labels[PLUGIN] == "true"
    assert pause.read(lab.folder) == {}
