# SPDX-License-Identifier: Apache-2.0
"""What the farm's integration tests do inside a simulated node, each in a process of its own."""

import sys
from pathlib import Path
from typing import Any

from nvct import paths
from nvct.container.plan.store import Store
from nvct_sim import node_changes, tree
from tests.integration.inside import UUID, configure, generate, make, run
from tests.support.processes import captured

OLD, NEW = "580.159.04", "590.48.01"
ASKS = ["NVIDIA_VISIBLE_DEVICES=0"]
SHOW = (
    "for d in /usr/lib/*-linux-gnu /usr/local/nvidia/lib64; do ls $d; done 2>&1; "
    "ldconfig -p | grep libcuda.so.1; nvidia-smi -L"
)


def table() -> dict[str, Any]:
    """Return the table of the plan in force."""
    plan = Store(paths.RUN_DIR).read_json(paths.OWN_PLAN)
    assert plan is not None
    farm = plan["farm"]
    assert isinstance(farm, dict)
    return farm


def an_upgrade_is_survived(work: Path) -> None:
    """A package upgrade, containers before the next boot, and the boot; nobody runs a command."""
    configure(work, f'[nvct]\nlayout = "farm"\nfarm-dir = "{work}/farm"\n')
    (node,) = tree.list_nodes(work / "nodes")
    before = run(work, make(work, "f-before", SHOW, env=ASKS))
    assert before.returncode == 0, before
    assert f"libcuda.so.{OLD}" in before.stdout, before
    assert (table()["why"], table()["version"]) == ("", OLD)
    generate()

    upgraded = node_changes.upgrade(node, NEW)  # on disk; the old module is still loaded
    between = run(work, make(work, "f-between", SHOW, env=ASKS))
    assert between.returncode == 0, between
    assert f"libcuda.so.{OLD}" in between.stdout, between
    assert NEW not in between.stdout
    assert len(UUID.findall(between.stdout)) == 1, between
    assert (table()["why"], table()["version"]) == ("", OLD)
    said = captured([Path(sys.executable).with_name("nvidia-ctk"), "cdi", "check"])
    assert said.returncode == 1, said
    assert OLD in said.stderr, said
    assert NEW in said.stderr, said

    node_changes.reload_module(upgraded)
    after = run(work, make(work, "f-after", SHOW, env=ASKS))
    assert after.returncode == 0, after
    assert f"libcuda.so.{NEW}" in after.stdout, after
    assert len(UUID.findall(after.stdout)) == 1, after
    assert table()["version"] == NEW
