# SPDX-License-Identifier: Apache-2.0
"""Hostile images in real containers."""

import pytest

from tests.hostile import attacks
from tests.integration.conftest import SimulatedNode

pytestmark = pytest.mark.engine


def test_nothing_of_a_container_runs_in_the_hook(simulated: SimulatedNode) -> None:
    simulated.run(attacks.environment)


def test_read_only_roots_run_and_volumes_stay_as_they_are(simulated: SimulatedNode) -> None:
    simulated.run(attacks.read_only_and_volumes)


def test_requests_that_runc_reads_otherwise_are_refused(simulated: SimulatedNode) -> None:
    simulated.run(attacks.requests)
