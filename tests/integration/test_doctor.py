# SPDX-License-Identifier: Apache-2.0
"""nvct doctor on a simulated node: it finds what was broken, and mends it."""

from __future__ import annotations

from tests.integration import doctor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tests.integration.conftest import SimulatedNode


def test_missing_device_nodes_are_found_and_made(simulated: SimulatedNode) -> None:
    simulated.run(doctor.heals_what_it_found)


def test_a_stale_specification_is_written_again(simulated: SimulatedNode) -> None:
    simulated.run(doctor.publishes_again)
