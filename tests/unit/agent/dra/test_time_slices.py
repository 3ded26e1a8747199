# SPDX-License-Identifier: Apache-2.0
"""Claims that ask for another time slice of their GPUs, which the driver's own program sets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.agent.device_plugin.fake_kubelet import until
from tests.unit.agent.dra.fake_kubelet import RefusedError
from tests.unit.agent.dra.test_mps import Lab, lab, node, uuids
from tests.unit.agent.dra.test_prepare import CLAIM
from tests.unit.agent.dra.test_sharing import config

__all__ = ["lab", "node"]


class Smi:
    """An nvidia-smi that notes how it was called, before the simulated one; or that refuses."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.path = folder / "bin/nvidia-smi"
        self.path.parent.mkdir()
        self.calls = folder / "calls"
        self.calls.touch()
        real = lab.node.driver_root / "usr/bin/nvidia-smi"
        self.script = f'#!/bin/sh\n[ "$1" = compute-policy ] && echo "$*" >> {self.calls}\n'
        self.real = f'exec {real} "$@"\n'
        self.allow()
        lab.env["PATH"] = f"{self.path.parent}:{lab.env['PATH']}"

    def allow(self) -> None:
        self.path.write_text(self.script + self.real)
        self.path.chmod(0o755)

    def refuse(self) -> None:
        refuses = "echo Not Supported; exit 3\n"
        self.path.write_text(
            f'{self.script}[ "$1" = compute-policy ] && {{ {refuses}}}\n{self.real}'
        )

    def slices(self) -> list[tuple[str, str]]:
        lines = [line.split() for line in self.calls.read_text().splitlines()]
        return [(uuid, number) for _, _, uuid, _, number in lines]


def sliced(interval: str) -> Any:
    return config(strategy="TimeSlicing", timeSlicingConfig={"interval": interval})


async def test_a_claim_has_its_time_slice_until_it_ends(lab: Lab, tmp_path: Path) -> None:
    smi = Smi(lab, tmp_path)
    async with lab.agent():
        claim = lab.allocate("long", "gpu-1", "gpu-3", sharing=sliced("Long"))
        plain = lab.allocate("plain", "gpu-0", sharing=sliced("Default"))
        devices = await lab.kubelet.prepare(claim)
        await lab.kubelet.prepare(plain)
        gpus = sorted(uuids(lab, "gpu-1", "gpu-3"))
        assert smi.slices() == [(uuid, "3") for uuid in gpus]
        assert [len(one.cdi) for one in devices] == [2, 2]  # no daemon, and no pipes
        assert not [name for name in lab.spec("long") if name.endswith("-mps")]
        assert lab.modes() == ["D"] * 4
        assert await lab.kubelet.prepare(claim) == devices
        assert len(smi.slices()) == 2
    async with lab.agent():  # after a boot the driver has none
        await until(lambda: [number for _, number in smi.slices()[-2:]] == ["3", "3"])
        await lab.kubelet.unprepare(claim)
        assert smi.slices()[-2:] == [(uuid, "0") for uuid in gpus]
        await lab.kubelet.unprepare(plain)
        assert lab.journal() == []


async def test_where_the_driver_refuses_the_claim_waits(lab: Lab, tmp_path: Path) -> None:
    smi = Smi(lab, tmp_path)
    smi.refuse()
    async with lab.agent():
        claim = lab.allocate("short", "gpu-0", sharing=sliced("Short"))
        why = "(?s)the time slice of the claim is not ready.*Not Supported"
        with pytest.raises(RefusedError, match=why):
            await lab.kubelet.prepare(claim)
        assert lab.journal() == []
        smi.allow()
        await lab.kubelet.prepare(claim)
        await lab.kubelet.unprepare(claim)


@pytest.mark.parametrize("is_gone", [False, True])
async def test_a_killed_agent_leaves_no_time_slice(
    lab: Lab, tmp_path: Path, *, is_gone: bool
) -> None:
    smi = Smi(lab, tmp_path)
    async with lab.agent():
        claim = lab.allocate("long", "gpu-0", sharing=sliced("Long"))
        await lab.kubelet.prepare(claim)
    if is_gone:
        lab.api.remove(CLAIM, "long", "ns")
    smi.calls.write_text("")
    async with lab.agent():
        if not is_gone:
            await lab.kubelet.unprepare(claim)
        await until(lambda: lab.journal() == [])
        assert smi.slices()[-1][1] == "0"
