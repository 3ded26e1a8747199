# SPDX-License-Identifier: Apache-2.0
"""Containers that get the driver by a CDI specification with a view, on a simulated node."""

from __future__ import annotations

import pytest

from tests.integration import spec_farm

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tests.integration.conftest import SimulatedNode


@pytest.mark.engine
def test_a_container_has_one_mount_and_one_hook(simulated: SimulatedNode) -> None:
    simulated.run(spec_farm.one_mount)
