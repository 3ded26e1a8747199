# SPDX-License-Identifier: Apache-2.0
"""A change is announced while its writer lives; a reset closes the GPU; its holders are named."""

import contextlib
import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from nvct.cli.mig.commands import reset
from nvct.errors import HostError, UsageError
from nvct.host.roots import Roots
from nvct.linux import files
from nvct.mig import holders as module
from nvct.mig import pause
from nvct.mig.apply import Machine, apply
from nvct.mig.holders import Holder
from nvct.mig.pause import Paused
from nvct.mig.smi import reset_gpus
from nvct_sim import tree
from tests.unit.mig.test_apply import SMALL, layouts, resolve, spec

STAYS = {"GPU-1": frozenset({(9, 0)}), "GPU-2": frozenset[tuple[int, int]]()}


def test_a_change_is_announced_while_it_lasts(tmp_path: Path) -> None:
    folder = str(tmp_path / "run")
    assert pause.read(folder) == {}
    with pause.announce(folder, STAYS):
        assert pause.read(folder) == STAYS
    assert pause.read(folder) == {}
    assert os.listdir(folder) == []


def test_a_change_that_fails_ends_its_announcement(tmp_path: Path) -> None:
    with pytest.raises(ValueError), pause.announce(str(tmp_path), STAYS):
        raise ValueError
    assert os.listdir(tmp_path) == []


def test_one_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / pause.FILE).mkdir()
    with (
        pytest.raises(HostError, match=r"cannot be announced in .*: Is a directory"),
        pause.announce(str(tmp_path), STAYS),
    ):
        pass
    assert os.listdir(tmp_path) == [pause.FILE]


def test_one_that_another_has_replaced_ends_without_an_error(tmp_path: Path) -> None:
    with pause.announce(str(tmp_path), {"GPU-0": ()}):  # noqa: SIM117 - the order matters
        with pause.announce(str(tmp_path), {"GPU-1": ()}):
            pass
    assert pause.read(str(tmp_path)) == {}


def test_that_of_a_killed_program_does_not_count(tmp_path: Path) -> None:
    pid = os.fork()
    if pid == 0:
        with pause.announce(str(tmp_path), STAYS):
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    assert os.listdir(tmp_path) == [pause.FILE]
    assert pause.read(str(tmp_path)) == {}

    with pause.announce(str(tmp_path), STAYS):
        assert pause.read(str(tmp_path)) == STAYS


@pytest.mark.parametrize(
    "text", ["", "[]", '{"GPU-1": 7}', '{"GPU-1": [[1]]}', '{"GPU-1": [[1e999, 0]]}', "\x00"]
)
def test_a_malformed_one_pauses_nothing(text: str, tmp_path: Path) -> None:
    with pause.announce(str(tmp_path), STAYS):
        (tmp_path / pause.FILE).write_text(text)
        assert pause.read(str(tmp_path)) == {}


# nvct reset: GPUs are paused and closed first, and one that is in use is not reset.


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


def test_a_gpu_that_does_not_exist_is_named(machine: Machine) -> None:
    for name in ("8", "-1", "GPU-0", ""):
        with pytest.raises(UsageError, match=f"there is no GPU '{name}'"):
            reset_gpus(machine, ["0", name])


def test_a_gpu_in_use_is_not_reset_but_nvidia_smi_sees_to_nvidia_persistenced(
    machine: Machine,
) -> None:
    holder = Holder(pid=7, command="cuda", container="", pod="", unit="", device="GPU 0")
    held = replace(machine, find_holders=lambda *_: [holder])
    with pytest.raises(HostError, match=r"a GPU is in use: process 7 \(cuda\) holds GPU 0"):
        reset_gpus(held, ["0"], wait_s=0.0)
    assert machine.reset.bus_ids == []  # type: ignore[attr-defined]
    holder = replace(holder, command="nvidia-persiste")
    assert [gpu.index for gpu in reset_gpus(held, ["0"], wait_s=0.0)] == [0]


def test_the_command_says_what_it_has_reset(node: tree.Node, machine: Machine) -> None:
    result = CliRunner().invoke(reset, ["0"], obj=machine, catch_exceptions=False)

    assert result.output == f"reset GPU 0, {tree.gpu_uuid(node.name, 0)}\n"


# Who holds a GPU: found by device numbers below /proc, named with command, container and pod.


CONTAINER = "c0ffee" * 10 + "0123"
POD = "0a1b2c3d-0000-1111-2222-333344445555"
NULL = (1, 3)
"""The device that stands for a GPU's: any user may open it."""


@pytest.fixture
def fake_proc(tmp_path: Path) -> Roots:
    """A /proc with this process, which has /dev/null open, in a container of a pod."""
    proc = tmp_path / "proc"
    (proc / "4242/fd").mkdir(parents=True)
    (proc / "4242/fd/7").symlink_to("/dev/null")
    (proc / "4242/comm").write_text("python3\n")
    cgroup = f"0::/kubepods.slice/kubepods-pod{POD.replace('-', '_')}.slice/cri-containerd-{CONTAINER}.scope\n"
    (proc / "4242/cgroup").write_text(cgroup)
    (proc / "devices").write_text("Character devices:\n  1 nvidia\n236 nvidia-caps\n")
    return Roots(proc=str(proc))


def test_a_holder_is_named(machine: Machine, fake_proc: Roots) -> None:
    gpu = replace(machine.session.mig().gpus[0], minor=NULL[1])
    (holder,) = module.holders(fake_proc, [gpu])

    assert str(holder) == (
        f"process 4242 (python3, pod {POD}, container {CONTAINER[:12]}) holds GPU 0"
    )
    assert module.holders(fake_proc, [gpu], ignore=[4242]) == []


def test_a_change_of_a_held_gpu_is_refused_by_name(machine: Machine, fake_proc: Roots) -> None:
    before = layouts(machine)
    held = replace(machine, roots=fake_proc)
    with pytest.raises(HostError, match=r"process 4242 \(python3, pod .*\) holds GPU 3") as caught:
        apply(held, resolve(spec(SMALL, 3)))

    assert "nothing was changed" in caught.value.hint
    assert layouts(machine) == before
    apply(held, resolve(spec(SMALL, 2)))
    (Path(fake_proc.proc) / "4242/comm").write_text("nvidia-persistenced\n"[:15])
    apply(held, resolve(spec(SMALL, 3)))


@pytest.mark.parametrize("number", [0, 3, 6])
def test_a_held_mig_device_may_stay_but_not_go(
    number: int, machine: Machine, fake_proc: Roots
) -> None:
    apply(machine, resolve(spec(SMALL, 0)))
    gpu = machine.session.mig().gpus[0]
    instance = gpu.instances[number]
    table = Path(fake_proc.proc) / "driver/nvidia-caps/mig-minors"
    table.parent.mkdir(parents=True)
    name = f"gpu{gpu.minor}/gi{instance.id}"
    table.write_text(f"{name}/access 2\n{name}/ci0/access 3\n")
    (Path(fake_proc.proc) / "devices").write_text("Character devices:\n  1 nvidia-caps\n")
    held = replace(machine, roots=fake_proc)

    with pytest.raises(HostError, match=f"holds GPU 0, instance {instance.id}/0"):
        apply(held, resolve(spec({"7g.80gb": 1}, 0)))
    apply(held, resolve(spec({"1g.10gb": 3, "3g.40gb": 1}, 0)))
    assert instance in machine.session.mig().gpus[0].instances


def test_this_process_does_not_count(machine: Machine) -> None:
    gpu = machine.session.mig().gpus[0]

    assert module.holders(Roots(), [replace(gpu, minor=9999)], ignore=[os.getpid()]) == []
