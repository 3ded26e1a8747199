# SPDX-License-Identifier: Apache-2.0
"""A GPU on its way from an error to healthy, or to somebody who has to act; the real health."""

import asyncio
import contextlib
import io
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from nvct.agent.core.context import SOCKET_ENV, Context, Shared
from nvct.agent.core.logs import Log
from nvct.agent.heal import task
from nvct.agent.heal.brakes import RESETS, Brakes
from nvct.agent.heal.machine import Rules
from nvct.agent.heal.node import REBOOT, REQUEST, TAINT
from nvct.agent.heal.settings import LEVEL_ENV, resolve
from nvct.agent.heal.task import Healing
from nvct.agent.health import engine as health_engine
from nvct.agent.health.store import Store
from nvct.agent.kubernetes.cluster import NODE, ClusterError, Kind, Object
from nvct.agent.kubernetes.node_pods import MIRROR, PROTECTED, PodDevice
from nvct.agent.nvml.client import NvmlClient
from nvct.agent.web import exposition
from nvct.errors import HostError, UsageError
from nvct.host.nvml.model import XidEvent
from nvct.mig.holders import Holder
from nvct.mig.smi import IN_USE, blocking
from tests.unit.agent.device_plugin.fake_kubelet import until
from tests.unit.agent.health.engines import engine
from tests.unit.agent.health.test_engine import GPU, SPLIT, Nvml, Task

NAME = "node-1"


class FakeCluster:
    """A cluster of one Node; `failure` is raised by each request."""

    def __init__(self) -> None:
        taints = [{"key": "dedicated", "effect": "NoSchedule"}]
        self.node: Object = {
            "metadata": {"name": NAME, "resourceVersion": "1", "labels": {}},
            "spec": {"taints": taints},
            "status": {"nodeInfo": {"bootID": "b00t"}},
        }
        self.created: list[Object] = []
        self.refusal: ClusterError | None = None
        self.failure: ClusterError | None = None
        self.writes = self.asked = 0

    def share(self) -> bool:
        return True

    async def find(self, kind: Kind, name: str) -> Object:
        assert (kind, name) == (NODE, NAME)
        self.asked += 1
        if self.failure:
            raise self.failure
        return self.node

    async def merge(self, kind: Kind, manifest: Object, manager: str) -> Object:
        assert (kind, manager, manifest["metadata"]["name"]) == (NODE, "nvct-heal", NAME)
        assert manifest["metadata"]["resourceVersion"] == "1"
        self.writes += 1
        for key, value in manifest["metadata"].get("labels", {}).items():
            self.node["metadata"]["labels"].pop(key, None)
            if value is not None:
                self.node["metadata"]["labels"][key] = value
        self.node["spec"] |= manifest.get("spec", {})
        return self.node

    async def create(self, kind: Kind, manifest: Object) -> Object:
        assert kind == REBOOT
        if self.refusal:
            raise self.refusal
        self.created.append(manifest)
        return manifest

    async def close(self) -> None:
        pass

    @property
    def request(self) -> str:
        return str(self.node["metadata"]["labels"].get(REQUEST, ""))

    @property
    def taints(self) -> list[str]:
        return [taint["key"] for taint in self.node["spec"]["taints"]]


class FakePods:
    """Pods that have a GPU each; one that is evicted is gone, unless a refusal keeps it."""

    def __init__(self) -> None:
        self.pods = {"train": GPU, "other": SPLIT}
        self.labels: dict[str, str] | None = {}  # None: the pods may not be read
        self.refusals: dict[str, ClusterError] = {}
        self.annotations: dict[str, str] = {}
        self.failure: HostError | None = None

    async def devices(self, gpus: Collection[str]) -> list[PodDevice]:
        if self.failure:
            raise self.failure
        metadata = {"labels": self.labels, "annotations": self.annotations, "uid": "1"}
        found = None if self.labels is None else {"metadata": metadata}
        return [
            PodDevice("default", name, gpu, None, gpu, found)
            for name, gpu in self.pods.items() if gpu in gpus
        ]  # fmt: skip

    async def evict(self, pods: Sequence[PodDevice]) -> None:
        for each in pods:
            if each.pod in self.refusals:
                raise self.refusals[each.pod]
            del self.pods[each.pod]

    async def close(self) -> None:
        pass


AWAY = HostError("NVML's worker (container nvml-worker) does not answer")


def held_by(command: str) -> Holder:
    return Holder(pid=7, command=command, container="", pod="", unit="", device="GPU 0")


class FakeGpus:
    """The GPUs; a reset sets back NVML's counters."""

    groups = True

    def __init__(self, nvml: Nvml) -> None:
        self.nvml = nvml
        self.group: tuple[str, ...] = (GPU,)
        self.refusal = ""
        self.held: tuple[Holder, ...] | None = ()
        self.failure: HostError | None = None
        self.is_away = False
        self.resets: list[tuple[str, ...]] = []

    async def together(self, gpu: str) -> tuple[tuple[str, ...], str]:
        assert gpu in self.group
        return self.group, self.refusal

    async def holders(
        self, gpus: Sequence[str], which: Callable[[list[Holder]], list[Holder]] = blocking
    ) -> tuple[str, ...] | None:
        assert gpus == self.group
        if self.is_away:
            raise AWAY
        return None if self.held is None else tuple(map(str, which(list(self.held))))

    async def reset(self, gpus: Sequence[str]) -> None:
        self.resets.append(tuple(gpus))
        if self.is_away:
            raise AWAY
        if self.failure:
            raise self.failure
        self.nvml.values = {}


class FakeBrake:
    def __init__(self, reason: str = "") -> None:
        self.reason, self.refusal = reason, ""
        self.is_taken = self.is_closed = False
        self.counted = 0

    async def take(self) -> str:
        self.is_taken = not self.reason
        return self.reason

    async def keep(self) -> None:
        await self.take()

    async def release(self) -> None:
        self.is_taken = False

    async def close(self) -> None:
        self.is_closed = True

    def count_reset(self, gpus: Sequence[str]) -> str:
        assert self.is_taken
        assert GPU in gpus
        self.counted += not self.refusal
        return self.refusal

    def uncount_reset(self, gpus: Sequence[str]) -> None:
        assert GPU in gpus
        self.counted -= 1


class Lab:
    """A node with two GPUs."""

    def __init__(self, folder: Path, level: str = "reboot-request", **rules: float) -> None:
        self.log = io.StringIO()
        self.nvml = Nvml()
        self.health = engine(log=Log(target=self.log))
        self.cluster, self.pods, self.gpus = FakeCluster(), FakePods(), FakeGpus(self.nvml)
        self.brake, self.folder = FakeBrake(), folder
        short = {"quarantine_s": 0.02, "let_go_s": 0.0, "release_s": 0.1, "check_s": 0.3}
        self.rules = Rules(level=level, **{**short, **rules})
        self.seen: list[str] = []

    def healing(self) -> Healing:
        fakes: Any = {"cluster": self.cluster, "pods": self.pods, "gpus": self.gpus,
                      "brake": self.brake}  # fmt: skip
        return Healing(
            self.rules, node=NAME, health=lambda: self.health, store=Store(str(self.folder)),
            log=Log(target=self.log), **fakes,
        )  # fmt: skip

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Healing]:
        work = self.healing()
        offers = Task(self.health, self.nvml)
        async with offers.running():
            await until(lambda: self.nvml.asked > 1)
            runs = asyncio.create_task(work.run())
            try:
                yield work
            finally:
                runs.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await runs

    @contextlib.asynccontextmanager
    async def failing(self) -> AsyncIterator[Healing]:
        async with self.running() as work:
            self.fail()
            yield work

    def fail(self) -> None:
        """Let GPU-0 have a double-bit error."""
        self.nvml.values = {"ecc_uncorrected": 1.0, "recovery_action": 1.0}
        self.nvml.xids.append(XidEvent(uuid=GPU, xid=48))

    def notices(self) -> list[str]:
        return [each["reason"] for each in self._notices()]

    def events_of_pods(self) -> list[str]:
        return [each["reason"] for each in self._notices() if each["devices"]]

    def _notices(self) -> list[dict[str, Any]]:
        found = cast("list[dict[str, Any]]", self.health.describe()["notices"])
        return [each for each in found if each["reason"] in dict(task.EVENTS.values())]


def state(work: Healing) -> str:
    """Return the step of GPU-0, with what is requested."""
    gpus = cast("list[dict[str, str]]", work.describe()[0]["gpus"])
    return " ".join(f"{gpu['step']} {gpu['action']}".strip() for gpu in gpus)


def reason(work: Healing) -> str:
    gpus = cast("list[dict[str, str]]", work.describe()[0]["gpus"])
    return "".join(gpu["reason"] for gpu in gpus)


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("EVENTS_S", "LOOK_S", "LOOK_SOON_S"):
        monkeypatch.setattr(health_engine, name, 0.01)
    monkeypatch.setattr(task, "LOOK_S", 0.01)
    monkeypatch.setattr(task, "RETRY_S", 0.01)


async def test_from_an_xid_to_healthy(lab: Lab) -> None:
    async with lab.failing() as work:
        await until(lambda: "GPUHealed" in lab.notices() and state(work) == "")
        assert lab.notices() == [
            "GPUQuarantined", "GPUEvicting", "GPUReleasing", "GPUResetting", "GPUChecking",
            "GPUHealed",
        ]  # fmt: skip
        assert lab.health.problem(GPU) == ""
        assert lab.gpus.resets == [(GPU,)]
        assert lab.pods.pods == {"other": SPLIT}
        assert not lab.brake.is_taken
        assert (lab.cluster.writes, lab.cluster.asked) == (0, 1)
        lines = exposition.text(work.metrics()).splitlines()
        assert f'nvct_heal_steps_total{{UUID="{GPU}",step="resetting"}} 1' in lines


@pytest.mark.parametrize(
    ("level", "refusal", "is_asked"),
    [
        ("reboot-request", None, True),
        ("reboot-request", ClusterError("no such kind", status=404), False),
        ("reboot-request", ClusterError("it exists", status=409), False),
        ("reset", None, False),
    ],
)
async def test_nvsentinel_is_asked_once_where_the_level_says_so(
    tmp_path: Path, level: str, refusal: ClusterError | None, *, is_asked: bool
) -> None:
    lab = Lab(tmp_path, level)
    lab.cluster.refusal = refusal
    async with lab.running() as work:
        lab.nvml.lost = True
        await until(lambda: lab.cluster.request == "reboot")
        await asyncio.sleep(0.05)
        assert work.problem.text == ""
    spec = {"nodeName": NAME, "force": False}
    asked = [{"metadata": {"name": "nvct-b00t"}, "spec": spec}]
    assert lab.cluster.created == (asked if is_asked else [])


async def test_a_reset_that_fails_asks_for_a_reboot(lab: Lab) -> None:
    lab.gpus.failure = HostError("nvidia-smi -r failed")
    async with lab.failing() as work:
        await until(lambda: lab.cluster.request == "reboot")
        assert reason(work).endswith("; no reset: nvidia-smi -r failed")
        assert len(lab.gpus.resets) == 1


async def test_who_does_not_let_go_is_named_and_the_gpu_is_not_reset(lab: Lab) -> None:
    lab.gpus.held = (held_by("dcgm"),)
    async with lab.failing() as work:
        await until(lambda: state(work) == "failed")
        assert reason(work) == "the GPU is in use: process 7 (dcgm) holds GPU 0"
        assert lab.events_of_pods() == ["GPUEvicting"], "pods learn of no process of others"
        assert lab.gpus.resets == []
        assert not lab.brake.is_taken


PERSISTENCED = "nvidia-persiste"
BUDGET = ClusterError("the budget of train allows none", status=429)


async def test_nvidia_persistenced_keeps_no_gpu_from_its_reset(lab: Lab) -> None:
    lab.gpus.held = (held_by(PERSISTENCED),)
    async with lab.failing() as work:
        await until(lambda: state(work) == "" and lab.gpus.resets == [(GPU,)])


@pytest.mark.parametrize(
    ("refusal", "ends"),
    [("GPU 0000:01: In use by another client", "failed"), ("No permission", "requested reboot")],
)
async def test_who_takes_the_name_of_nvidia_persistenced_causes_no_reboot(
    lab: Lab, refusal: str, ends: str
) -> None:
    lab.gpus.held, lab.gpus.failure = (held_by(PERSISTENCED),), HostError(refusal)
    async with lab.failing() as work:
        await until(lambda: state(work) == ends)
        named = f"the GPU is in use: {held_by(PERSISTENCED)}"
        assert (reason(work) == named) == (ends == "failed")
        assert (lab.brake.counted == 0) == (ends == "failed")


async def test_an_mps_server_of_the_agents_own_is_named(lab: Lab) -> None:
    # Only the worker's check before a reset counts its own container's.
    server = "process 9 (nvidia-cuda-mps) holds GPU 0"
    lab.gpus.failure = HostError(f"{IN_USE}{server}")
    async with lab.failing() as work:
        await until(lambda: state(work) == "failed")
        assert (reason(work), lab.brake.counted) == (f"the GPU is in use: {server}", 0)


@pytest.mark.parametrize(
    ("label", "annotation", "says"),
    [
        ({PROTECTED: "never"}, {}, f"and label {PROTECTED} forbids its eviction"),
        (None, {}, "and it is not known whether it may be evicted"),
        ({}, {MIRROR: "hash"}, "and it is a static pod, which no eviction ends"),
    ],
)
async def test_for_a_pod_that_must_not_be_evicted_no_other_is_and_no_brake_is_taken(
    lab: Lab, label: dict[str, str] | None, annotation: dict[str, str], says: str
) -> None:
    lab.pods.labels, lab.pods.annotations = label, annotation
    async with lab.failing() as work:
        await until(lambda: reason(work).endswith(f"pod default/train has {GPU}, {says}"))
        assert (state(work), lab.brake.is_taken) == ("quarantined", False)
        lab.pods.labels, lab.pods.annotations = {}, {}
        await until(lambda: state(work) == "evicting" or len(lab.pods.pods) == 1)


async def test_one_that_comes_later_ends_the_evictions(tmp_path: Path) -> None:
    lab = Lab(tmp_path, evict_s=60.0)
    lab.pods.pods["second"] = GPU
    lab.pods.refusals = dict.fromkeys(("train", "second"), BUDGET)
    async with lab.failing() as work:
        await until(lambda: "allows none" in reason(work))
        lab.pods.labels, lab.pods.refusals = {PROTECTED: "never"}, {}
        await until(lambda: "forbids its eviction" in reason(work))
        assert len(lab.pods.pods) == 3


async def test_while_the_kubelet_is_silent_no_gpu_is_taken_for_unused_and_the_brake_is_given_back(
    tmp_path: Path,
) -> None:
    lab = Lab(tmp_path, evict_s=0.5)
    silent = lab.pods.failure = HostError("the kubelet does not answer")
    lab.pods.refusals = {"train": BUDGET}
    async with lab.failing() as work:
        await until(lambda: reason(work) == silent.message)
        assert (state(work), lab.brake.is_taken) == ("quarantined", False)
        lab.pods.failure = None
        await until(lambda: state(work) == "evicting" and lab.brake.is_taken)
        lab.pods.failure = silent
        await until(lambda: state(work) == "failed" and not lab.brake.is_taken)
        assert reason(work).endswith("the kubelet does not answer")
        assert (len(lab.pods.pods), lab.gpus.resets) == (2, [])


async def test_a_worker_that_ends_while_it_resets_is_asked_again(tmp_path: Path) -> None:
    lab = Lab(tmp_path, release_s=60.0)
    lab.gpus.held = (held_by("cuda"),)
    async with lab.failing() as work:
        await until(lambda: state(work) == "releasing")
        reset = lab.gpus.reset

        async def ending(gpus: Sequence[str]) -> None:
            lab.gpus.is_away = True
            await reset(gpus)

        lab.gpus.reset = ending  # type: ignore[method-assign]
        lab.gpus.held = ()
        await until(lambda: lab.gpus.is_away and state(work) == "releasing")
        lab.gpus.reset = reset  # type: ignore[method-assign]
        lab.gpus.is_away = False
        await until(lambda: state(work) == "")
        assert lab.gpus.resets == [(GPU,), (GPU,)]


async def test_the_taint_of_a_node_whose_gpus_have_all_failed(tmp_path: Path) -> None:
    lab = Lab(tmp_path, "quarantine")
    async with lab.failing() as work:
        await until(lambda: state(work) == "quarantined")
        assert lab.cluster.taints == ["dedicated"]
        lab.nvml.xids.append(XidEvent(uuid=SPLIT, xid=48))
        await until(lambda: TAINT in lab.cluster.taints)
        assert lab.cluster.taints == ["dedicated", TAINT]
        lab.nvml.values = {}
        lab.health.note_reset([GPU])
        await until(lambda: TAINT not in lab.cluster.taints)


async def test_the_taint_of_a_former_boot_is_removed(lab: Lab) -> None:
    lab.cluster.node["spec"]["taints"].append({"key": TAINT, "effect": "NoSchedule"})
    lab.cluster.node["metadata"]["labels"][REQUEST] = "reboot"
    async with lab.running():
        await until(lambda: (lab.cluster.taints, lab.cluster.request) == (["dedicated"], ""))


async def test_what_a_node_has_lost_is_shown_again_and_no_second_reboot_is_asked_for(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task, "SHOW_S", 0.05)
    async with lab.running():
        lab.nvml.lost = True
        await until(lambda: lab.cluster.request == "reboot")
        lab.cluster.node["metadata"]["labels"] = {}
        await until(lambda: lab.cluster.request == "reboot")
    assert len(lab.cluster.created) == 1


async def test_the_whole_group_is_emptied_and_offered_to_nobody(lab: Lab) -> None:
    lab.gpus.group = (GPU, SPLIT)
    lab.pods.refusals = {"other": BUDGET}
    async with lab.failing() as work:
        await until(lambda: lab.pods.pods == {"other": SPLIT})
        await until(lambda: lab.health.problem(SPLIT) == f"it will be reset together with {GPU}")
        assert lab.gpus.resets == []
        lab.pods.refusals = {}
        await until(lambda: state(work) == "" and lab.gpus.resets == [lab.gpus.group])
        await until(lambda: lab.health.problem(SPLIT) == "")


async def test_a_gpu_of_the_group_that_recovers_alone_is_not_offered_before_the_reset(
    tmp_path: Path,
) -> None:
    lab = Lab(tmp_path, release_s=60.0)
    lab.gpus.group, lab.gpus.held = (GPU, SPLIT), (held_by("cuda"),)
    offered: list[str] = []
    async with lab.failing() as work:
        lab.nvml.xids.append(XidEvent(uuid=SPLIT, xid=48))
        await until(lambda: state(work) == "releasing releasing")
        keep = work._keep

        def kept(*words: Any) -> None:
            keep(*words)
            offered.append(lab.health.problem(SPLIT))

        work._keep = kept  # type: ignore[method-assign, assignment]
        lab.health.note_reset([SPLIT])  # somebody has reset this one
        await until(lambda: state(work) == "releasing")
        assert "" not in offered
        assert lab.health.problem(SPLIT) == f"it will be reset together with {GPU}"


async def test_a_reset_that_is_refused_is_asked_for(lab: Lab) -> None:
    lab.gpus.refusal = "it is in MIG mode"
    async with lab.failing() as work:
        await until(lambda: lab.cluster.request == "reset")
        assert reason(work).endswith("; it is in MIG mode")
        assert lab.gpus.resets == []


async def test_without_the_brake_nothing_begins(lab: Lab) -> None:
    lab.brake.reason = "2 nodes heal already"
    async with lab.failing() as work:
        await until(lambda: reason(work) == lab.brake.reason)
        await asyncio.sleep(0.1)
        assert (state(work), len(lab.pods.pods)) == ("quarantined", 2)
        lab.brake.reason = ""
        await until(lambda: state(work) == "" and lab.gpus.resets == [(GPU,)])


@pytest.mark.parametrize(("level", "brakes"), [("quarantine", False), ("evict", True)])
async def test_the_task_has_its_brakes_where_pods_are_evicted(
    level: str, *, brakes: bool, tmp_path: Path
) -> None:
    env = {LEVEL_ENV: level, "NODE_NAME": NAME, SOCKET_ENV: f"{tmp_path}/agent.sock"}
    cluster: Any = FakeCluster()
    shared = Shared(clusters={"": cluster})
    made = task.make(Context(env=env, client=NvmlClient(None), journal=Log(), shared=shared))
    found = made._brake
    assert isinstance(found, Brakes) == brakes
    if found:
        assert found.count_reset([GPU]) == ""
        assert (tmp_path / RESETS).exists()


async def test_another_process_takes_the_brake_over_and_its_end_keeps_it(lab: Lab) -> None:
    lab.gpus.held = (held_by("cuda"),)
    async with lab.failing() as work:
        await until(lambda: state(work) == "releasing")
        lab.brake.is_taken = False
        await until(lambda: lab.brake.is_taken)
    assert (lab.brake.is_taken, lab.brake.is_closed) == (True, True)


async def test_a_gpu_that_was_reset_too_often_needs_more(lab: Lab) -> None:
    lab.brake.refusal = "it was reset 2 times within an hour"
    async with lab.failing() as work:
        await until(lambda: lab.cluster.request == "reboot")
        assert reason(work).endswith("; no reset: it was reset 2 times within an hour")
        assert lab.gpus.resets == []


async def test_an_api_server_that_is_away_stops_no_reset(lab: Lab) -> None:
    lab.gpus.held = (held_by("cuda"),)
    async with lab.failing() as work:
        await until(lambda: state(work) == "releasing")
        lab.cluster.failure = ClusterError("the API server does not answer")
        lab.gpus.held = ()
        await until(lambda: state(work) == "" and lab.gpus.resets == [(GPU,)])


@pytest.mark.parametrize("step", ["quarantined", "evicting", "releasing", "resetting", "checking"])
async def test_killed_at_any_step_the_next_agent_ends_it(tmp_path: Path, step: str) -> None:
    lab = Lab(tmp_path, check_s=60.0)
    lab.health = engine(log=Log(target=lab.log), store=Store(str(tmp_path), name="health.json"))
    began = asyncio.Event()
    former = lab.healing()
    advance = former._advance

    async def stopping(*words: Any) -> None:
        if state(former) == step:
            began.set()
            await asyncio.Event().wait()
        await advance(*words)

    former._advance = stopping  # type: ignore[method-assign, assignment]
    offers = Task(lab.health, lab.nvml)
    async with offers.running():
        await until(lambda: lab.nvml.asked > 1)
        runs = asyncio.create_task(former.run())
        lab.fail()
        await began.wait()
        runs.cancel()
        await asyncio.gather(runs, return_exceptions=True)
    lab.health = engine(log=Log(target=lab.log), store=Store(str(tmp_path), name="health.json"))
    async with lab.running() as work:
        await until(lambda: state(work) == "" and lab.health.problem(GPU) == "")
        assert lab.gpus.resets[:1] == [(GPU,)]
        assert lab.pods.pods == {"other": SPLIT}


async def test_a_file_that_is_malformed_heals_nothing_it_names(tmp_path: Path) -> None:
    Store(str(tmp_path)).write({"gpus": [{"gpu": GPU, "record": {"step": "exploding"}}]})
    lab = Lab(tmp_path)
    async with lab.running() as work:
        await until(lambda: "it is not known which GPUs were being healed" in lab.log.getvalue())
        assert state(work) == ""


def test_settings() -> None:
    known, _ = resolve((), {"NVCT_REMEDIATION": "reset", "NVCT_REMEDIATION_EVICT_S": "60"})
    assert (known.rules.level, known.rules.evict_s, known.group) == ("reset", 60.0, False)
    for env in ({}, {"NVCT_REMEDIATION": "none"}, {"NVCT_REMEDIATION": "sometimes"}):
        with pytest.raises(UsageError):
            resolve((), env)
    with pytest.raises(UsageError, match="'-1' is not a number of seconds"):
        resolve((), {"NVCT_REMEDIATION": "evict", "NVCT_REMEDIATION_EVICT_S": "-1"})
