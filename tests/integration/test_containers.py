# SPDX-License-Identifier: Apache-2.0
"""Real containers on a simulated node."""

from __future__ import annotations

import pytest

from tests.integration import inside

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tests.integration.conftest import SimulatedNode

pytestmark = pytest.mark.engine


@pytest.mark.slow
def test_200_containers_at_once_hold_exactly_their_own(simulated: SimulatedNode) -> None:
    simulated.run(inside.parallel)


def test_a_node_without_device_rule_is_not_listed(simulated: SimulatedNode) -> None:
    simulated.run(inside.missing_rule)


def test_changes_are_seen_by_the_next_create(simulated: SimulatedNode) -> None:
    simulated.run(inside.changes_are_seen)


def test_what_cannot_be_had_fails_with_one_line(simulated: SimulatedNode) -> None:
    simulated.run(inside.refusals)
