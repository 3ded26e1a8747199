# SPDX-License-Identifier: Apache-2.0
"""A GPU instance is destroyed and made again at its place; nothing else changes."""

import os
import signal
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from nvct.errors import HostError
from nvct.host.nvml import mig_model
from nvct.host.nvml.mig_model import GpuInstance, MigChange
from nvct.host.nvml.session import NvmlSession
from nvct.mig.apply import HeldError, Machine, apply, recover, renew
from nvct.mig.holders import Holder
from nvct_sim import tree
from tests.unit.mig.conftest import library_of
from tests.unit.mig.test_apply import BALANCED, FailingSession, layouts, refuse, resolve, spec

CHANGES = 4
"""Two instances are destroyed, and two made."""


@pytest.fixture
def divided(machine: Machine) -> Machine:
    apply(machine, resolve(spec(BALANCED, 0), spec({"1c.3g.40gb": 3}, 1)))
    return machine


def instances(machine: Machine, index: int = 0) -> dict[int, GpuInstance]:
    return {one.id: one for one in machine.session.mig().gpus[index].instances}


def uuid(machine: Machine, index: int = 0) -> str:
    return machine.session.mig().gpus[index].uuid


def test_what_is_not_there_is_not_made(divided: Machine) -> None:
    before = layouts(divided)
    assert not renew(divided, uuid(divided), 99)
    assert not renew(divided, uuid(divided, 2), 1)
    assert not renew(divided, "GPU-0", 1)
    assert layouts(divided) == before


@pytest.mark.parametrize("index", [0, 1])
def test_the_others_stay(divided: Machine, index: int) -> None:
    calls: list[str] = []

    class Recorded(NvmlSession):
        def change_mig(self, change: MigChange) -> Any:
            verb, _ = mig_model.CHANGES[type(change)]
            calls.append(f"{verb} {getattr(change, 'gi', '')}".strip())
            return super().change_mig(change)

    assert isinstance(divided.session, NvmlSession)
    before = layouts(divided)
    for gi, instance in instances(divided, index).items():
        calls.clear()
        recorded = replace(divided, session=Recorded(divided.session.path))
        assert renew(recorded, uuid(divided, index), gi)
        recorded.session.close()
        number = len(instance.compute)
        assert calls[: number + 1] == [
            *[f"mig_destroy_compute {gi}"] * number,
            f"mig_destroy {gi}",
        ]
        assert len(calls) == 2 * (number + 1)
        assert layouts(divided) == before
    assert not os.path.exists(divided.journal.path)


def test_one_in_use_is_left_alone(divided: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, (gi, other, *_) = uuid(divided), instances(divided)
    holder = Holder(
        pid=7, command="cuda", container="", pod="", unit="", device="GPU 0", instance=(gpu, gi, 0)
    )

    def find(_gpus: object, asked: object) -> list[Holder]:
        assert isinstance(asked, set)
        return [holder] if holder.instance in asked else []

    held = replace(divided, find_holders=find)
    with pytest.raises(HeldError, match=r"process 7 \(cuda\) holds GPU 0"):
        renew(held, gpu, gi)
    assert renew(held, gpu, other)


def test_a_refusal_at_any_change_restores_the_instance(node: tree.Node, divided: Machine) -> None:
    before, gi = layouts(divided), next(iter(instances(divided)))
    for at in range(1, CHANGES + 1):
        failing = replace(divided, session=FailingSession(library_of(node), at, refuse))
        with pytest.raises(HostError, match="the former layout is restored"):
            renew(failing, uuid(divided), gi)
        failing.session.close()
        assert layouts(divided) == before, at
        assert not os.path.exists(divided.journal.path)


def test_a_kill_at_any_change_ends_with_the_instance(node: tree.Node, divided: Machine) -> None:
    before, (gi, *_), gpu = layouts(divided), instances(divided), uuid(divided)
    for at in range(1, CHANGES + 1):
        divided.session.close()
        child = os.fork()
        if not child:
            kill = partial(os.kill, os.getpid(), signal.SIGKILL)
            renew(replace(divided, session=FailingSession(library_of(node), at, kill)), gpu, gi)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        assert recover(divided)
        assert layouts(divided) == before, at
