# SPDX-License-Identifier: Apache-2.0
"""Real containers on a simulated node."""

import os

import pytest

from tests.integration import inside
from tests.integration.conftest import Part, SimulatedNode


@pytest.mark.engine
@pytest.mark.slow
def test_200_containers_at_once_hold_exactly_their_own(simulated: SimulatedNode) -> None:
    simulated.run(inside.parallel)


@pytest.mark.engine
def test_a_node_without_device_rule_is_not_listed(simulated: SimulatedNode) -> None:
    simulated.run(inside.missing_rule)


PARTS = {
    "changes are seen by the next create": inside.changes_are_seen,
    "changes of the node are seen by the next create": inside.node_changes_are_seen,
    "what cannot be had fails with one line": inside.refusals,
}


@pytest.mark.engine
@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
def test_in_the_node(part: Part, simulated: SimulatedNode) -> None:
    simulated.run(part)


def test_crun_gives_the_same(simulated: SimulatedNode) -> None:
    simulated.run(
        inside.crun
    )  # no engine test: crun 1.8 refuses hybrid cgroups, other hosts lack it


@pytest.mark.engine
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the calls' numbers are of x86_64")
def test_system_calls_of_linux_3_10_are_enough(simulated: SimulatedNode) -> None:
    simulated.run(inside.old_kernel)
