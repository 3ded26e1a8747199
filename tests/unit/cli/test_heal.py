# SPDX-License-Identifier: Apache-2.0
"""nvct heal plan: what is done if a GPU fails, and to which pods."""

import sys
from typing import Any

import click
import pytest
from click.testing import CliRunner

from nvct.agent.core import instance
from nvct.agent.kubelet.pod_resources import Holding
from nvct.cli import heal
from nvct.errors import HostError, UsageError
from nvct.mig.apply import Machine
from nvct_sim import tree
from tests.unit.mig.conftest import machine, node  # noqa: F401 - fixtures

DETAIL = {"remediation": "reset", "group": False, "evict_s": 60.0}


def status(*details: dict[str, Any]) -> dict[str, Any]:
    return {"tasks": [{"name": "heal", "reason": "", "detail": [each]} for each in details]}


class Kubelet:
    """The kubelet of a node whose pod train has GPU 1."""

    def __init__(self, uuid: str) -> None:
        self.uuid = uuid

    def is_there(self) -> bool:
        return True

    async def holdings(self) -> tuple[Holding, ...]:
        return (Holding("default", "train", "main", "nvidia.com/gpu", (self.uuid,)),)

    async def close(self) -> None:
        pass


def plan(machine: Machine, *words: str) -> list[str]:  # noqa: F811
    command: click.Command = heal.plan_
    done = CliRunner().invoke(command, words, obj=machine, catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout.splitlines()


@pytest.fixture
def uuids(node: tree.Node, monkeypatch: pytest.MonkeyPatch) -> list[str]:  # noqa: F811
    found = [tree.gpu_uuid(node.name, index) for index in range(8)]
    monkeypatch.setattr(heal, "PodResources", lambda _: Kubelet(found[1]))
    monkeypatch.setattr(instance, "status", lambda: status(DETAIL))
    return found


def test_a_reset_and_the_pods_that_it_takes(machine: Machine, uuids: list[str]) -> None:  # noqa: F811
    lines = plan(machine, "1")
    assert lines[0] == f"GPU 1, {uuids[1]}; remediation: reset"
    assert [line.partition(":")[0] for line in lines[1:]] == [
        "quarantined", "evicting", f"  pod default/train has {uuids[1]}", "releasing",
        "resetting", "checking", "probation",
    ]  # fmt: skip
    assert "  no pod uses it" in plan(machine, uuids[2])


def test_an_error_that_no_reset_helps(machine: Machine, uuids: list[str]) -> None:  # noqa: F811
    lines = plan(machine, "1", "--action=reboot")
    assert len(uuids) == 8
    assert lines[-1] == "requested: somebody has to act: reboot the node (its error)"


def test_without_the_task_nothing_is_done(
    machine: Machine,  # noqa: F811
    uuids: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(instance, "status", status)
    assert plan(machine, "1") == [f"GPU 1, {uuids[1]}; remediation: none"]


def test_what_is_wrong_is_named(
    machine: Machine,  # noqa: F811
    uuids: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(UsageError, match="there is no GPU '8'"):
        plan(machine, "8")
    failed = {"tasks": [{"name": "heal", "reason": "it has no token", "detail": None}]}
    for found, says in ((failed, "does not run: it has no token"), ({"tasks": [1]}, "malformed")):
        monkeypatch.setattr(instance, "status", lambda found=found: found)
        with pytest.raises(HostError, match=says):
            plan(machine, uuids[0])


def test_where_the_kubelet_cannot_be_asked_the_plan_says_who_knows(
    machine: Machine,  # noqa: F811
    uuids: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a host with the chart, nvct's Python is the system's, without the agent's modules."""
    monkeypatch.setitem(sys.modules, "nvct.agent.kubernetes.node_pods", None)
    lines = plan(machine, uuids[1])
    assert sum("its pods: see nvct ps" in line for line in lines) == 1
    assert lines[-1].startswith("probation")
