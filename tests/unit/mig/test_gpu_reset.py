# SPDX-License-Identifier: Apache-2.0
"""nvct reset: GPUs are paused and closed first, and one that is in use is not reset."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from click.testing import CliRunner

from nvct.cli.mig.commands import reset
from nvct.errors import HostError, UsageError
from nvct.linux import files
from nvct.mig import smi
from nvct.mig.apply import Machine
from nvct.mig.pause import Paused
from nvct.mig.smi import reset_gpus
from nvct_sim import tree


def test_gpus_are_paused_and_nvml_is_closed_while_they_are_reset(
    node: tree.Node, machine: Machine
) -> None:
    steps: list[object] = []
    uuids = [tree.gpu_uuid(node.name, index) for index in (3, 5)]

    @contextlib.contextmanager
    def pause(paused: Paused) -> Iterator[None]:
        with pytest.raises(HostError), files.Lock(f"{machine.journal.folder}/mig.lock", 0.0):
            pass  # no change of MIG is at the same time
        steps.append(dict(paused))
        yield
        steps.append("given again")

    def smi(bus_ids: Sequence[str]) -> None:
        steps.append((*bus_ids, machine.session.pid))

    made = replace(machine, pause=pause, reset=smi)

    assert [gpu.index for gpu in reset_gpus(made, ["3", uuids[1], "3"])] == [3, 5]

    buses = [machine.session.mig().gpus[index].bus_id for index in (3, 5)]
    assert steps == [dict.fromkeys(uuids, frozenset()), (*buses, None), "given again"]


@pytest.mark.parametrize("name", ["8", "-1", "GPU-0", ""])
def test_a_gpu_that_does_not_exist_is_named(name: str, machine: Machine) -> None:
    with pytest.raises(UsageError, match=f"there is no GPU '{name}'"):
        reset_gpus(machine, ["0", name])


def test_a_gpu_in_use_is_not_reset(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:

    monkeypatch.setattr(smi, "holders", lambda *_, **__: ["process 7 (cuda) holds GPU 0"])

    with pytest.raises(HostError, match=r"a GPU is in use: process 7 \(cuda\) holds GPU 0"):
        reset_gpus(machine, ["0"], wait_s=0.0)

    assert machine.reset.bus_ids == []  # type: ignore[attr-defined]


def test_the_command_says_what_it_has_reset(node: tree.Node, machine: Machine) -> None:
    result = CliRunner().invoke(reset, ["0"], obj=machine, catch_exceptions=False)

    assert result.output == f"reset GPU 0, {tree.gpu_uuid(node.name, 0)}\n"
