# SPDX-License-Identifier: Apache-2.0
"""docs/metrics.md says which default metrics each generation has: those of simulated GPUs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from nvct.agent.exporter import series
from nvct.agent.exporter.history import History
from nvct.agent.exporter.settings import Settings
from nvct_sim import node_changes, tree
from tests.support.nvml_node import CACHE
from tests.unit.agent.exporter.test_series import DEFAULT, NOW
from tests.unit.agent.test_samples import ask, twice

DOCUMENT = Path(__file__).parents[4] / "docs/metrics.md"
COLUMNS = {
    "Pascal": ("gtx1080ti-9", "GTX 1080 Ti"),
    "Volta": ("v100-8", "V100"),
    "Turing": ("t4-4", "T4"),
    "Ampere": ("a100-80", "A100"),
    "Ampere vGPU": ("vgpu", "A100D-8C"),
    "Hopper": ("hgx-h100", "H100"),
    "MIG on Hopper": ("hgx-h100", "H100"),
}
"""Profile of a simulated node, and part of the GPU's name."""


def documented() -> dict[str, dict[str, bool]]:
    """Return whether a metric is there, by column and metric."""
    lines = iter(DOCUMENT.read_text(encoding="utf-8").splitlines())
    header = next(line for line in lines if line.startswith("| metric | Pascal "))
    names = [cell.strip() for cell in header.strip("|").split("|")][1:]
    table: dict[str, dict[str, bool]] = {name: {} for name in names}
    next(lines)
    for line in lines:
        if not line.startswith("| `"):
            break
        metrics, *cells = [cell.strip() for cell in line.strip("|").split("|")]
        for name, cell in zip(names, cells, strict=True):
            assert cell in ("yes", "no")
            table[name] |= dict.fromkeys(re.findall(r"`(\w+)`", metrics), cell == "yes")
    return table


@pytest.mark.parametrize("column", COLUMNS)
def test_the_table_is_that_of_simulated_gpus(column: str, tmp_path: Path) -> None:
    profile, model = COLUMNS[column]
    node = tree.create("g", profile, tmp_path, nodes="plain", native_cache=CACHE)
    is_mig = column.startswith("MIG")
    if is_mig:
        node_changes.apply(node, "mig-mode", ["0", "on"])
        node_changes.apply(node, "mig-create", ["0", "1g.10gb"])
    samples = ask(node, twice)
    fitting = [gpu for gpu in samples.gpus if model in gpu.name and bool(gpu.mig) is is_mig]
    alone = type(samples)(gpus=tuple(fitting[:1]))
    history = History()
    for at in (NOW - 1, NOW):
        history.add(alone, at, 300)
    view = series.View(alone, history, Settings(), {}, NOW)

    families = series.families(view, DEFAULT)
    shown = {family.name for family in families if family.samples}

    assert documented().keys() == COLUMNS.keys()
    names = [counter.name for counter in DEFAULT if counter.kind != "label"]
    assert documented()[column] == {name: name in shown for name in names}
