# SPDX-License-Identifier: Apache-2.0
"""Who holds a GPU: found by device numbers below /proc, named with command, container and pod."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from nvct.errors import HostError
from nvct.host.roots import Roots
from nvct.mig import holders as module
from nvct.mig.apply import Machine, apply
from tests.unit.mig.test_apply import SMALL, layouts, resolve, spec

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


@pytest.mark.parametrize("number", range(7))
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
