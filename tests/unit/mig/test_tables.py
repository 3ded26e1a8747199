# SPDX-License-Identifier: Apache-2.0
"""Placements where NVML names none: of the GPU's table, or of one with as many slices."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nvct.errors import UsageError
from nvct.host.nvml.mig_model import MigGpu, MigState
from nvct.mig import config, plan, tables

UNKNOWN = 0x29FF10DE


def silent(name: str, device: int, rename: tuple[str, str] = ("", "")) -> MigGpu:
    """Return a GPU whose NVML names no placements, as while MIG mode is off."""
    gpu = tables.gpu_of(tables.of_name(name))
    profiles = (replace(p, placements=(), name=p.name.replace(*rename)) for p in gpu.profiles)
    return replace(gpu, device=device, name="GPU of tomorrow", profiles=tuple(profiles))


@pytest.mark.parametrize("name", ["A100 80GB", "A30", "RTX PRO 6000 Blackwell"])
def test_a_gpu_without_a_table_has_the_placements_of_one_with_as_many_slices(name: str) -> None:
    known = tables.gpu_of(tables.of_name(name))

    found = tables.with_placements(silent(name, UNKNOWN))

    assert [p.placements for p in found.profiles] == [p.placements for p in known.profiles]


def test_names_of_profiles_may_differ_from_the_tables() -> None:
    gpu = tables.with_placements(silent("GB200", 0x294110DE, ("3g.93gb", "3g.95gb")))

    made = plan.make(
        MigState(gpus=(gpu,)), [config.Spec(devices=None, enabled=True, wish={"3g.95gb": 2})]
    )

    assert [part.placement.start for part in made.layouts[gpu.uuid].parts] == [0, 4]


def test_a_gpu_like_no_other_needs_its_mode_first() -> None:
    eight = silent("A100 80GB", UNKNOWN)
    eight = replace(eight, profiles=tuple(replace(p, slices=8) for p in eight.profiles))
    wish = [config.Spec(devices=None, enabled=True, wish={eight.profiles[0].name: 1})]

    with pytest.raises(UsageError, match="NVML does not say where GPU 0") as caught:
        plan.make(MigState(gpus=(eight,)), wish)

    assert "--mode-only" in caught.value.hint
    assert plan.make(MigState(gpus=(eight,)), wish, mode_only=True).layouts[eight.uuid].enabled
