# SPDX-License-Identifier: Apache-2.0
"""The engine between NVML and the tasks: what they are told, and what the next process knows."""

import asyncio
import contextlib
import io
import json
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from nvct.agent.core.context import Context
from nvct.agent.core.logs import Log
from nvct.agent.health import engine as module
from nvct.agent.health.board import Change
from nvct.agent.health.engine import HealthEngine
from nvct.agent.health.settings import resolve
from nvct.agent.health.store import NAME, Store
from nvct.agent.nvml.client import NvmlClient, SupervisorEndedError
from nvct.agent.web import exposition
from nvct.host.nvml.model import NvmlEvents, XidEvent
from nvct.host.nvml.sample_model import GpuCondition, MigInstance, NvmlConditions
from tests.unit.agent.device_plugin.fake_kubelet import until
from tests.unit.agent.health.engines import engine

GPU, SPLIT = "GPU-0", "GPU-1"
MIG = (MigInstance(uuid="MIG-a", gi=7, ci=0), MigInstance(uuid="MIG-b", gi=8, ci=0))
ASKS_RESET = {"recovery_action": 1.0}


class Nvml:
    """Stands for a client: GPU-0, and GPU-1 with two MIG devices."""

    busy_s = 0.0

    def __init__(self) -> None:
        self.xids: list[XidEvent] = []
        self.values: dict[str, float] = {}
        self.hanging: dict[str, str] = {}
        self.lost = False
        self.delay_s = 0.0
        self.asked = 0
        self.failure: Exception | None = None
        self.mig: tuple[MigInstance, ...] = MIG

    async def events(self) -> NvmlEvents:
        self.asked += 1
        if self.failure:
            raise self.failure
        await asyncio.sleep(self.delay_s)
        taken, self.xids = tuple(self.xids), []
        return NvmlEvents(watch=1, events=taken, unanswered=self.hanging)

    async def conditions(self) -> NvmlConditions:
        whole = GpuCondition(uuid=GPU, values=dict(self.values))
        if self.lost:
            whole = GpuCondition(uuid=GPU, error="nvmlDeviceGetUUID: gpu is lost", code=15)
        gpus = (whole, GpuCondition(uuid=SPLIT, mig=self.mig))
        return NvmlConditions(gpus=tuple(gpu for gpu in gpus if gpu.uuid not in self.hanging))


class Task:
    """A task that offers devices."""

    def __init__(self, health: HealthEngine, nvml: Nvml | None) -> None:
        self.health, self.nvml = health, nvml
        self.changes: list[Change] = []
        self.calls = 0

    def client(self) -> NvmlClient | None:
        return cast("NvmlClient | None", self.nvml)

    def changed(self, changes: Iterable[Change]) -> None:
        self.calls += 1
        self.changes += changes

    def states(self) -> list[str]:
        return [change.after.state for change in self.changes]

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        runs = asyncio.create_task(self.health.run(self.client, self.changed))
        try:
            yield
        finally:
            runs.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await runs


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("EVENTS_S", 0.01), ("LOOK_S", 0.02), ("LOOK_SOON_S", 0.02)):
        monkeypatch.setattr(module, name, value)


@contextlib.asynccontextmanager
async def watched(
    health: HealthEngine, nvml: Nvml | None = None
) -> AsyncIterator[tuple[Task, Nvml]]:
    """Yield a task and its NVML while the engine watches."""
    source = nvml or Nvml()
    task = Task(health, source)
    async with task.running():
        await until(lambda: source.asked > 0)
        yield task, source


async def test_a_double_bit_error_and_a_reset() -> None:
    async with watched(engine()) as (task, nvml):
        nvml.values = {"ecc_uncorrected": 2.0}
        nvml.xids.append(XidEvent(uuid=GPU, xid=48))
        await until(lambda: task.health.problem(GPU) != "")
        assert task.health.problem(GPU) == "XID 48 (double-bit ECC error); reset the GPU"
        assert task.health.problem(SPLIT) == ""
        await asyncio.sleep(0.05)
        nvml.values = {"ecc_uncorrected": 0.0}
        assert not task.health.is_passing(GPU)
        await until(lambda: task.health.problem(GPU).startswith("on probation after XID 48"))
        assert task.health.is_passing(GPU)
        await until(lambda: task.health.problem(GPU) == "")
    assert task.states()[-3:] == ["unhealthy", "probation", "healthy"]
    described = task.health.describe()
    assert described["devices"] == []
    notices = cast("list[dict[str, Any]]", described["notices"])
    assert [notice["reason"] for notice in notices][-3:] == [
        "GPUUnhealthy", "GPUProbation", "GPUHealthy",
    ]  # fmt: skip
    assert notices[-3]["devices"] == [GPU]
    metrics = exposition.text(task.health.metrics())
    labels = f'{{UUID="{GPU}",GPU_I_ID="",GPU_CI_ID=""'
    assert f'nvct_health_state{labels},state="healthy"}} 1\n' in metrics
    assert f"nvct_health_failures_total{labels}}} 1\n" in metrics
    assert f"nvct_health_returns_total{labels}}} 1\n" in metrics


async def test_an_instance_that_fails_as_soon_as_it_is_made_is_no_failure_of_its_gpu() -> None:
    async with watched(engine()) as (task, nvml):
        nvml.mig = ()
        await until(lambda: nvml.asked > 2)
        nvml.mig = MIG
        nvml.xids.append(XidEvent(uuid=SPLIT, xid=48, gi=7, ci=0))
        await until(lambda: task.health.problem(SPLIT, (7, 0)) != "")
        assert task.health.problem(SPLIT, (8, 0)) == ""
    (change,) = task.changes
    assert change.devices == ("MIG-a",)


async def test_an_application_takes_no_gpu_away_but_is_told() -> None:
    async with watched(engine()) as (task, nvml):
        nvml.xids += [XidEvent(uuid=GPU, xid=31), XidEvent(uuid=GPU, xid=63)]
        await until(lambda: task.health.describe()["notices"] != [])
    assert task.changes == []
    (notice,) = cast("list[dict[str, Any]]", task.health.describe()["notices"])
    message = f"{GPU} reported XID 31 (GPU memory page fault); the GPU still works"
    assert notice["message"] == message
    assert notice["devices"] == [GPU]
    assert task.health.problem(GPU) == ""
    assert task.health.application_xid(GPU) == 31  # the driver's own note 63 is none of it
    assert task.health.application_xid("GPU-other") == 0


async def test_a_lost_gpu_stays_out_until_the_node_boots() -> None:
    async with watched(engine()) as (task, nvml):
        nvml.lost = True
        await until(lambda: task.health.problem(GPU).endswith("; reboot the node"))
        nvml.lost = False
        await asyncio.sleep(0.3)
        assert task.health.problem(GPU)
        task.health.forget()
        assert task.health.problem(GPU) == ""


async def test_a_gpu_that_hangs_for_a_moment_is_back_at_once() -> None:
    async with watched(engine()) as (task, nvml):
        task.health.use(resolve("auto", "0.2", "", {"DP_DISABLE_HEALTHCHECKS": "all"}))
        nvml.hanging = {GPU: "no answer within 0.8 s"}
        await until(lambda: "does not answer: no answer" in task.health.problem(GPU))
        nvml.hanging = {}
        await until(lambda: task.health.problem(GPU) == "")
    assert task.states() == []


async def test_a_gpu_that_hangs_for_long_is_on_probation_afterwards() -> None:
    async with watched(engine()) as (task, nvml):
        nvml.hanging = {GPU: "no answer within 0.8 s"}
        await until(lambda: "unhealthy" in task.states())
        nvml.hanging = {}
        await until(lambda: task.health.problem(GPU).startswith("on probation"))
        await until(lambda: task.health.problem(GPU) == "")


@pytest.mark.parametrize(("busy_s", "problems"), [(0.0, True), (30.0, False)])
async def test_the_limit_of_a_call_in_progress_counts(
    busy_s: float, *, problems: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SUSPECT_S", 0.1)
    log = io.StringIO()
    nvml = Nvml()
    nvml.busy_s, nvml.delay_s = busy_s, 0.3

    async with watched(engine(log=Log(target=log)), nvml) as (_task, nvml):
        await until(lambda: nvml.asked > 1)
    assert ("does not answer within" in log.getvalue()) is problems


async def test_two_tasks_share_the_watch_and_the_second_goes_on_alone() -> None:
    health, nvml = engine(), Nvml()
    first, second = Task(health, None), Task(health, nvml)
    async with second.running():
        async with first.running():
            await until(lambda: nvml.asked > 0)
            nvml.xids.append(XidEvent(uuid=GPU, xid=48))
            await until(lambda: first.calls > 0 and second.calls > 0)
        asked = nvml.asked
        await until(lambda: nvml.asked > asked)


async def test_without_a_supervisor_the_task_ends() -> None:
    nvml = Nvml()
    nvml.failure = SupervisorEndedError("it has ended")
    task = Task(engine(), nvml)
    with pytest.raises(SupervisorEndedError):
        await task.health.run(task.client, task.changed)


async def test_never_is_the_incumbents_behavior() -> None:
    async with watched(engine(recovery="never")) as (task, nvml):
        nvml.lost = True
        nvml.values = ASKS_RESET
        await asyncio.sleep(0.1)
        assert task.states() == []
        nvml.lost = False
        nvml.values = {}
        nvml.xids.append(XidEvent(uuid=GPU, xid=94))
        await until(lambda: task.health.problem(GPU) != "")
        await asyncio.sleep(0.3)
        assert task.health.problem(GPU) != ""
        task.health.forget()
        assert task.health.problem(GPU) == ""


def store(folder: Path, boot: str = "boot-1") -> Store:
    file = folder / "boot_id"
    file.write_text(f"{boot}\n")
    return Store(str(folder), str(file))


async def fails(task: Task, nvml: Nvml) -> None:
    nvml.xids.append(XidEvent(uuid=GPU, xid=48))
    await until(lambda: task.health.problem(GPU) != "")


async def fails_in(folder: Path, nvml: Nvml | None = None) -> None:
    """Let a GPU fail under an engine that keeps its state in a folder."""
    async with watched(engine(store=store(folder)), nvml) as (task, source):
        await fails(task, source)


async def test_notices_survive_a_restart_of_the_agent(tmp_path: Path) -> None:
    await fails_in(tmp_path)

    later = engine(store=store(tmp_path))
    notices: Any = later.describe()["notices"]
    assert [(one["number"], one["reason"]) for one in notices] == [(1, "GPUUnhealthy")]
    later._notices.add("GPUHealthy", "again", 1.0, ["GPU-0"], is_warning=False)
    notices = later.describe()["notices"]
    assert [one["number"] for one in notices] == [1, 2]


async def test_health_survives_a_restart_of_the_agent_and_not_a_boot(tmp_path: Path) -> None:
    nvml = Nvml()
    nvml.values = {"energy": 5000.0}
    await fails_in(tmp_path, nvml)

    again = engine(store=store(tmp_path))
    assert "XID 48" in again.problem(GPU)
    async with watched(engine(store=store(tmp_path))) as (task, source):
        assert task.health.problem(GPU)
        source.values = {"energy": 10.0}
        await until(lambda: task.health.problem(GPU) == "")
    assert engine(store=store(tmp_path)).problem(GPU) == ""
    await fails_in(tmp_path)
    assert engine(store=store(tmp_path, "boot-2")).problem(GPU) == ""
    assert engine(store=store(tmp_path), recovery="never").problem(GPU) == ""


@pytest.mark.parametrize("damage", ["text", "mode", "link", "type"])
async def test_a_file_that_is_damaged_or_not_safe_counts_as_none(
    damage: str, tmp_path: Path
) -> None:
    await fails_in(tmp_path)
    file = tmp_path / NAME
    if damage == "text":
        file.write_bytes(file.read_bytes()[:-9])
    elif damage == "mode":
        file.chmod(0o666)
    elif damage == "link":
        file.rename(tmp_path / "other")
        file.symlink_to("other")
    else:
        document = json.loads(file.read_text())
        document["devices"][0]["state"] = "well"
        file.write_text(json.dumps(document))

    log = io.StringIO()
    assert engine(store=store(tmp_path), log=Log(target=log)).problem(GPU) == ""
    assert ("is unknown" in log.getvalue()) is (damage == "type")


async def test_a_folder_that_cannot_be_written_is_told_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    log = io.StringIO()
    boot = tmp_path / "boot_id"
    boot.write_text("boot-1")
    health = engine(log=Log(target=log), store=Store(str(tmp_path / "file"), str(boot)))

    async with watched(health) as (task, nvml):
        await fails(task, nvml)
        nvml.xids.append(XidEvent(uuid=SPLIT, xid=48))
        await until(lambda: task.health.problem(SPLIT) != "")
    assert log.getvalue().count("a restart will forget which") == 1
    assert "file is not a folder" in str(health.describe()["problem"])


def test_the_tasks_of_a_process_share_one_engine(tmp_path: Path) -> None:
    log = io.StringIO()
    settings = resolve("auto", "5", "", {"DP_DISABLE_HEALTHCHECKS": "48,many"})
    env = {"NVCT_AGENT_SOCKET": f"{tmp_path}/agent.sock"}
    context = Context(env=env, client=cast("NvmlClient", Nvml()), journal=Log(target=log))
    other = replace(context, env={**env, "NODE_NAME": "node-1"})

    assert other.health(settings) is context.health(settings) is context.shared.health
    assert Context(env=env, client=context.client, journal=Log()).shared.health is None
    assert log.getvalue().count("'many' is not an XID") == 1
