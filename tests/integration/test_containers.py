# SPDX-License-Identifier: Apache-2.0
"""Real containers on a simulated node."""

from __future__ import annotations

import os

import pytest

from tests.integration import inside
from tests.integration.conftest import SimulatedNode


@pytest.mark.engine
@pytest.mark.slow
def test_200_containers_at_once_hold_exactly_their_own(simulated: SimulatedNode) -> None:
    simulated.run(inside.parallel)


@pytest.mark.engine
def test_a_node_without_device_rule_is_not_listed(simulated: SimulatedNode) -> None:
    simulated.run(inside.missing_rule)


@pytest.mark.engine
def test_changes_are_seen_by_the_next_create(simulated: SimulatedNode) -> None:
    simulated.run(inside.changes_are_seen)


@pytest.mark.engine
def test_changes_of_the_node_are_seen_by_the_next_create(simulated: SimulatedNode) -> None:
    simulated.run(inside.node_changes_are_seen)


@pytest.mark.engine
def test_what_cannot_be_had_fails_with_one_line(simulated: SimulatedNode) -> None:
    simulated.run(inside.refusals)


def test_crun_gives_the_same(simulated: SimulatedNode) -> None:
    simulated.run(
        inside.crun
    )  # no engine test: crun 1.8 refuses hybrid cgroups, other hosts lack it


@pytest.mark.engine
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the calls' numbers are of x86_64")
def test_system_calls_of_linux_3_10_are_enough(simulated: SimulatedNode) -> None:
    simulated.run(inside.old_kernel)
