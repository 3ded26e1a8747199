# SPDX-License-Identifier: Apache-2.0
"""The rules of [nvct.policy] and real containers on a simulated node."""

import pytest

from tests.integration import policy_inside
from tests.integration.conftest import SimulatedNode


@pytest.mark.engine
def test_rules_decide_who_gets_a_gpu(simulated: SimulatedNode) -> None:
    simulated.run(policy_inside.rules_hold)
