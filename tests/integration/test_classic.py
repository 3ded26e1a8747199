# SPDX-License-Identifier: Apache-2.0
"""Layout classic, with and without its hook."""

import pytest

from tests.integration import classic
from tests.integration.conftest import SimulatedNode


@pytest.mark.engine
def test_a_container_needs_no_hook_at_any_start(simulated: SimulatedNode) -> None:
    simulated.run(classic.no_hook)


@pytest.mark.engine
def test_the_hook_of_who_wants_the_mask_makes_the_root_the_same(simulated: SimulatedNode) -> None:
    simulated.run(classic.hook)
