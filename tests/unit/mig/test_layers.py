# SPDX-License-Identifier: Apache-2.0
"""Named configurations: of the tables, of the hardware, of the user's file."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nvct.errors import DocumentError
from nvct.host.nvml.mig_model import MigState
from nvct.mig import export, plan, tables

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
