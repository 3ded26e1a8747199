# SPDX-License-Identifier: Apache-2.0
"""Plans carried out on a simulated node: whole or not at all, after failures and kills, too."""

import contextlib
import json
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from nvct.errors import DocumentError, HostError, NvmlError, UsageError
from nvct.host.nvml.mig_model import MigChange, MigState
from nvct.host.nvml.session import NvmlSession
from nvct.mig import config, export, journal, plan, tables
from nvct.mig.apply import AGENT, Machine, apply, recover
from nvct.mig.holders import Holder
from nvct.mig.journal import Journal
from nvct.mig.plan import Plan
from nvct_sim import node_changes, tree
from tests.unit.mig.conftest import library_of

BALANCED = {"1g.10gb": 2, "2g.20gb": 1, "3g.40gb": 1}
SMALL = {"1g.10gb": 7}


def spec(wish: dict[str, int] | None, *devices: int) -> config.Spec:
    return config.Spec(devices=devices or None, enabled=wish is not None, wish=wish or {})


def resolve(*specs: config.Spec) -> Callable[..., Plan]:
    return partial(plan.make, specs=specs)


def layouts(machine: Machine) -> dict[str, Any]:
    return journal.of_state(machine.session.mig())


def exported(machine: Machine) -> Any:
    return export.current(machine.session.mig())["current"]


class FailingSession(NvmlSession):
    """Fails, or does something else, instead of one change."""

    def __init__(self, library: str, at: int, instead: Callable[[], None]) -> None:
        super().__init__(library)
        self.left, self.instead = at, instead

    def change_mig(self, change: MigChange) -> Any:
        self.left -= 1
        if self.left == 0:
            self.instead()
        return super().change_mig(change)


def refuse() -> None:
    raise NvmlError("nvmlGpuInstanceDestroy of libnvidia-ml.so.1 failed: in use by another client")


def test_a_configuration_is_applied_once(machine: Machine) -> None:
    assert apply(machine, resolve(spec(None, 0), spec(BALANCED, 1, 2), spec({}, 3)))
    assert not apply(machine, resolve(spec(None, 0), spec(BALANCED, 1, 2), spec({}, 3)))

    assert exported(machine) == [
        {"devices": [0, 4, 5, 6, 7], "mig-enabled": False, "mig-devices": {}},
        {"devices": [1, 2], "mig-enabled": True, "mig-devices": BALANCED},
        {"devices": [3], "mig-enabled": True, "mig-devices": {}},
    ]
    assert not os.path.exists(machine.journal.path)


def test_what_stays_is_not_destroyed(machine: Machine) -> None:
    apply(machine, resolve(spec(SMALL, 0)))
    before = {gi.id: gi for gi in machine.session.mig().gpus[0].instances}
    apply(machine, resolve(spec({"1g.10gb": 3, "3g.40gb": 1}, 0)))

    gpu = machine.session.mig().gpus[0]
    assert len([gi for gi in gpu.instances if before.get(gi.id) == gi]) == 3


def test_devices_that_change_are_paused_while_they_do(machine: Machine) -> None:
    apply(machine, resolve(spec(SMALL, 0), spec(SMALL, 1)))
    announced: list[Any] = []

    @contextlib.contextmanager
    def pause(paused: Any) -> Iterator[None]:
        before = layouts(machine)
        announced.append(paused)
        assert not os.path.exists(machine.journal.path)
        yield
        assert layouts(machine) != before

    wanted = resolve(spec({"1g.10gb": 3, "3g.40gb": 1}, 0), spec(None, 1), spec({}, 2))
    apply(replace(machine, pause=pause), wanted)
    apply(replace(machine, pause=pause), wanted)

    gpus = machine.session.mig().gpus
    stays = {(gi.id, ci.id) for gi in gpus[0].instances for ci in gi.compute if gi.kind == 0}
    assert len(stays) == 3
    assert announced == [{gpus[0].uuid: stays, gpus[1].uuid: set(), gpus[2].uuid: set()}]


def test_an_agents_nvml_may_be_open_until_the_change_is_announced(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = Holder(pid=7, command=AGENT, container="", pod="", unit="", device="GPU 0")
    held = [agent]
    monkeypatch.setattr("nvct.mig.apply.holders", lambda *_: held)

    @contextlib.contextmanager
    def pause(_: Any) -> Iterator[None]:
        held.clear()  # the agent closes its handles
        yield

    with pytest.raises(HostError, match=r"process 7 \(nvct-nvml\) holds GPU 0"):
        apply(machine, resolve(spec(SMALL, 0)))
    assert apply(replace(machine, pause=pause), resolve(spec(SMALL, 0)))


def test_an_impossible_wish_changes_nothing(machine: Machine) -> None:
    apply(machine, resolve(spec(BALANCED)))
    before = layouts(machine)
    for wrong in (spec({"1g.10gb": 8}), spec({"9g.99gb": 1}), spec(SMALL, 42)):
        with pytest.raises(UsageError):
            apply(machine, resolve(spec(SMALL, 0), wrong))
    assert layouts(machine) == before


CHANGES = 29
"""From seven 1g.10gb with their compute instances on two GPUs to the balanced layout."""


def test_a_failure_at_any_change_brings_the_layout_before_back(
    machine: Machine, node: tree.Node
) -> None:
    apply(machine, resolve(spec(SMALL, 0, 1)))
    before = layouts(machine)
    for at in range(1, CHANGES, 3):
        failing = replace(machine, session=FailingSession(library_of(node), at, refuse))
        with pytest.raises(HostError, match="in use by another client; the former layout is rest"):
            apply(failing, resolve(spec(BALANCED, 0), spec(None, 1)))
        failing.session.close()
        assert layouts(machine) == before, at
        assert not os.path.exists(machine.journal.path)


def test_a_gpu_that_is_lost_in_the_middle_is_named(machine: Machine, node: tree.Node) -> None:
    apply(machine, resolve(spec(SMALL, 0, 1)))
    before = exported(machine)
    session = FailingSession(library_of(node), 18, lambda: node_changes.lose_gpu(node, 1))
    with pytest.raises(HostError, match="restored, except on GPU 1, which NVML no longer has"):
        apply(replace(machine, session=session), resolve(spec(BALANCED, 0, 1)))
    session.close()

    assert before[0] == {"devices": [0, 1], "mig-enabled": True, "mig-devices": SMALL}
    assert exported(machine)[0] == {"devices": [0], "mig-enabled": True, "mig-devices": SMALL}


def test_a_kill_at_any_change_ends_in_the_old_or_new_layout(
    machine: Machine, node: tree.Node
) -> None:
    apply(machine, resolve(spec(SMALL, 0, 1)))
    before = layouts(machine)
    for at in range(1, CHANGES, 4):
        pid = os.fork()
        if pid == 0:
            kill = partial(os.kill, os.getpid(), signal.SIGKILL)
            killed = replace(machine, session=FailingSession(library_of(node), at, kill))
            try:
                apply(killed, resolve(spec(BALANCED, 0), spec(None, 1)))
            finally:
                os._exit(1)
        assert os.waitpid(pid, 0)[1] == signal.SIGKILL
        assert os.path.exists(machine.journal.path)
        assert recover(machine)
        assert layouts(machine) == before, at
        assert not recover(machine)


def test_an_agent_offers_nothing_of_an_interrupted_change_while_it_is_taken_back(
    machine: Machine,
) -> None:
    """It also closes its handles of NVML then, without which no mode can be set."""
    apply(machine, resolve(spec(SMALL, 0)))
    before = plan.Plan(layouts=journal.plan_of(layouts(machine)["MigState"]).layouts)
    gpus = machine.session.mig().gpus
    apply(machine, resolve(spec({"1g.10gb": 3, "3g.40gb": 1}, 0), spec({}, 1)))
    stays = {(gi.id, ci.id) for gi in machine.session.mig().gpus[0].instances
             for ci in gi.compute if gi.kind == 0}  # fmt: skip
    after = journal.plan_of(layouts(machine)["MigState"]).layouts
    unfinished = plan.Plan(
        layouts={**after, gpus[2].uuid: replace(after[gpus[2].uuid], enabled=True)}
    )
    machine.journal.open(before, unfinished)
    announced: list[Any] = []

    @contextlib.contextmanager
    def pause(paused: Any) -> Iterator[None]:
        announced.append(paused)
        yield

    assert recover(replace(machine, pause=pause))
    assert announced == [{gpus[0].uuid: stays, gpus[1].uuid: set()}]
    assert exported(machine)[0]["mig-devices"] == SMALL


def test_a_change_that_was_complete_when_killed_stays(machine: Machine) -> None:
    before = layouts(machine)
    apply(machine, resolve(spec(SMALL, 0)))
    after = layouts(machine)
    machine.journal.open(journal.plan_of(before["MigState"]), journal.plan_of(after["MigState"]))

    assert recover(machine)
    assert layouts(machine) == after


DAMAGED = (
    b"", b'{"Version":"v1"', b"[]", b"\xff", b"[" * 100_000,
    b'{"Version":"v1","MigState":{"Devices":null}}',  # without a target
)  # fmt: skip


def test_a_damaged_journal_stops_every_change(machine: Machine) -> None:
    with machine.journal.lock():
        pass
    for data in DAMAGED:
        Path(machine.journal.path).write_bytes(data)
        with pytest.raises(DocumentError, match="the journal of a MIG change is damaged"):
            recover(machine)
        assert os.path.exists(machine.journal.path)


def test_nothing_changes_without_a_journal(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    before = layouts(machine)
    for place in ("file/run", "/proc/none"):
        elsewhere = replace(machine, journal=Journal(str(tmp_path / place)))
        with pytest.raises(HostError, match="a change of MIG cannot be recorded in"):
            apply(elsewhere, resolve(spec(BALANCED)))
        assert layouts(machine) == before


def test_hooks_run_in_their_order(machine: Machine) -> None:
    names: list[str] = []
    hooked = replace(machine, hook=names.append)
    for wish, between in (
        (SMALL, ["pre-apply-mode", "pre-apply-config"]), (BALANCED, ["pre-apply-config"]),
        (BALANCED, []),
    ):  # fmt: skip
        apply(hooked, resolve(spec(wish, 0)))
        assert names == ["apply-start", *between, "apply-exit"]
        names.clear()
    with pytest.raises(UsageError):
        apply(hooked, resolve(spec({"1g.10gb": 9}, 0)))
    assert names == []


def test_a_checkpoint_is_restored_with_its_places(machine: Machine) -> None:
    apply(machine, resolve(spec(BALANCED, 0), spec({"1c.3g.40gb": 2, "2c.3g.40gb": 1}, 1)))
    before = layouts(machine)
    saved = journal.parse(journal.text_of(before))
    apply(machine, resolve(spec(None)))

    def restore(state: MigState, *, held: object) -> Plan:
        journal.check(saved, state)
        return saved

    apply(machine, restore)
    assert layouts(machine) == before


def _instance(kind: int, start: int, size: int, compute: int = 0) -> dict[str, Any]:
    return {
        "ProfileID": kind,
        "Placement": {"Start": start, "Size": size},
        "ComputeInstances": [{"ProfileID": compute, "EngProfileID": 0}],
    }


@pytest.mark.parametrize(
    ("instances", "mode", "problem"),
    [
        ([_instance(0, 0, 1)], 0, "no MIG instances while its MIG mode is off"),
        ([_instance(0, 0, 1), _instance(0, 0, 1)], 1, "no two instances at slice 0"),
        ([_instance(4, 0, 8, 4), _instance(0, 6, 1)], 1, "no two instances at slice 6"),
        ([_instance(0, 0, 1, 4)], 1, "no compute instances of profiles 4 in one of 1g.10gb"),
        ([_instance(0, 0, 1, 99)], 1, "no compute instances of profiles 99 in one of 1g.10gb"),
        ([_instance(2, 1, 4, 2)], 1, "no instance of profile 2 at slice 1 of size 4"),
    ],
)
def test_an_impossible_checkpoint_is_refused_while_mig_mode_is_off(
    instances: Any, mode: int, problem: str
) -> None:
    state = MigState(gpus=(tables.gpu_of(tables.of_name("A100 80GB")),))
    gpu = {"UUID": state.gpus[0].uuid, "MigMode": mode, "GpuInstances": instances}
    saved = journal.parse(json.dumps({"Version": "v1", "MigState": {"Devices": [gpu]}}))
    with pytest.raises(UsageError, match=problem):
        journal.check(saved, state)


@pytest.mark.parametrize("number", ["0.5", "1e999", "-1", "true", '"0"', "1" + "0" * 30])
def test_a_number_of_a_checkpoint_is_one(number: str) -> None:
    gpu = {"UUID": "GPU-0", "MigMode": 1, "GpuInstances": [_instance(0, 0, 1)]}
    text = json.dumps({"Version": "v1", "MigState": {"Devices": [gpu]}})

    with pytest.raises(DocumentError, match="a checkpoint is malformed"):
        journal.parse(text.replace('"Start": 0', f'"Start": {number}'))


def test_gpus_that_need_a_reset_for_their_mode_get_it_once(
    machine: Machine, node: tree.Node
) -> None:
    for index in (0, 1):
        node_changes.set_gpu(node, index, migreset="1")
    by_bus_id = {gpu.bus_id: gpu.index for gpu in machine.session.mig().gpus}
    calls: list[list[int]] = []

    def reset(bus_ids: Sequence[str]) -> None:
        assert machine.session.pid is None  # its handles would be in the way
        calls.append([by_bus_id[bus_id] for bus_id in bus_ids])
        for index in calls[-1]:
            node_changes.reset_gpu(node, index)

    apply(replace(machine, reset=reset), resolve(spec(BALANCED, 0, 1, 2)))

    assert calls == [[0, 1]]
    assert exported(machine)[0]["mig-devices"] == BALANCED


def test_a_reset_that_fails_takes_the_pending_mode_back(machine: Machine, node: tree.Node) -> None:
    node_changes.set_gpu(node, 0, migreset="1")

    def fail(_: Sequence[str]) -> None:
        raise HostError("nvidia-smi -r failed: in use by another client")

    with pytest.raises(HostError, match="in use by another client; the former layout is restored"):
        apply(replace(machine, reset=fail), resolve(spec(BALANCED, 0)))
    gpu = machine.session.mig().gpus[0]
    assert (gpu.enabled, gpu.pending) == (False, False)


def test_without_a_reset_a_mode_may_stay_pending(machine: Machine, node: tree.Node) -> None:
    node_changes.set_gpu(node, 0, migreset="1")
    mode_only = partial(plan.make, specs=[spec({}, 0)], mode_only=True)
    assert apply(replace(machine, skip_reset=True), mode_only)
    gpu = machine.session.mig().gpus[0]
    assert (gpu.enabled, gpu.pending) == (False, True)

    with pytest.raises(HostError, match="the former layout is restored"):
        apply(replace(machine, skip_reset=True), resolve(spec(BALANCED, 0)))


def test_a_device_that_the_driver_says_is_in_use_is_not_lost(
    machine: Machine, node: tree.Node
) -> None:
    apply(machine, resolve(spec(SMALL, 0)))
    gi = machine.session.mig().gpus[0].instances[-1].id
    before = layouts(machine)
    node_changes.set_process(node, 0, 4242, {"gi": str(gi), "ci": "0"})
    with pytest.raises(HostError, match=r"GPU 0: DestroyCompute: .* failed: in use"):
        apply(machine, resolve(spec({"7g.80gb": 1}, 0)))

    assert layouts(machine) == before
    node_changes.end_process(node, 0, 4242)
    apply(machine, resolve(spec({"7g.80gb": 1}, 0)))
