# SPDX-License-Identifier: Apache-2.0
"""Placements where NVML names none, and named configurations: of tables, hardware or a file."""

from dataclasses import replace

import pytest

from nvct.errors import DocumentError, UsageError
from nvct.host.nvml.mig_model import MigGpu, MigState
from nvct.mig import config, export, plan, tables

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


# Named configurations: of the tables, of the hardware, of the user's file.


OWN = """
version: v1
mig-configs:
  all-1g.10gb: [{devices: all, mig-enabled: false, mig-devices: {}}]
  mine: [{devices: [0], mig-enabled: true, mig-devices: {1g.10gb: 2}}]
"""
H100 = tables.gpu_of(tables.of_name("H100-80GB"))
NODE = MigState(gpus=(H100,))


def test_the_tables_have_names_for_gpus_that_are_not_here() -> None:
    found = export.configs(MigState())
    assert found["all-1g.5gb"].layer == "table"
    assert {"all-disabled", "all-enabled", "all-balanced"} <= found.keys()
    assert not plan.is_applied(NODE, found["all-1g.5gb"].specs)


@pytest.mark.parametrize("number", tables.of_name("A100-40GB").ids)
def test_every_gpu_of_a_table_is_in_its_configurations(number: int) -> None:
    gpu = replace(tables.gpu_of(tables.of_name("A100-40GB")), device=number << 16 | tables.NVIDIA)
    specs = export.configs(MigState())["all-balanced"].specs
    made = plan.make(MigState(gpus=(gpu,)), specs)
    assert len(made.layouts[gpu.uuid].parts) == 4


def test_a_file_counts_more_than_the_hardware_and_that_more_than_the_tables() -> None:
    found = export.configs(NODE, OWN)
    assert [found[name].layer for name in ("all-1g.10gb", "mine", "all-7g.80gb", "all-1g.5gb")] == [
        "file", "file", "hardware", "table",
    ]  # fmt: skip
    assert not found["all-1g.10gb"].specs[0].enabled
    assert list(found)[:2] == ["all-1g.5gb", "all-1g.5gb.me"]


def test_a_malformed_file_is_refused() -> None:
    with pytest.raises(DocumentError, match="unknown version: v2"):
        export.configs(NODE, "version: v2\nmig-configs: {}\n")
