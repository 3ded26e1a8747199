# SPDX-License-Identifier: Apache-2.0
"""Containers that get the driver by a CDI specification in layout farm, on a simulated node."""

from __future__ import annotations

import os

import pytest

from tests.integration import spec_farm
from tests.integration.conftest import SimulatedNode


@pytest.mark.engine
def test_a_container_has_one_mount_and_one_hook(simulated: SimulatedNode) -> None:
    simulated.run(spec_farm.one_mount)


@pytest.mark.engine
def test_without_its_view_no_container_starts(simulated: SimulatedNode) -> None:
    simulated.run(spec_farm.a_view_that_is_gone)


@pytest.mark.engine
def test_a_view_stays_while_a_specification_names_it(simulated: SimulatedNode) -> None:
    simulated.run(spec_farm.a_view_stays_while_it_is_named)


@pytest.mark.engine
@pytest.mark.timeout(1500)  # a hundred refreshes, if the environment says so
def test_containers_start_while_the_driver_is_upgraded(simulated: SimulatedNode) -> None:
    name = spec_farm.REFRESHES_ENV
    simulated.run(spec_farm.refreshes_under_load, {name: os.environ.get(name, "8")})


@pytest.mark.engine
def test_a_changed_farm_dir_counts_from_the_next_publish_on(simulated: SimulatedNode) -> None:
    simulated.run(spec_farm.a_farm_dir_that_is_changed)


@pytest.mark.engine
def test_a_farm_on_another_file_system_is_classic_or_a_view_of_mounts(
    simulated: SimulatedNode,
) -> None:
    simulated.run(spec_farm.a_farm_on_another_file_system)


@pytest.mark.engine
def test_containers_start_wherever_a_refresh_was_killed(simulated: SimulatedNode) -> None:
    simulated.run(spec_farm.killed)


@pytest.mark.engine
def test_a_volume_inside_the_view_leaves_nothing_on_the_host(simulated: SimulatedNode) -> None:
    simulated.run(spec_farm.a_volume_inside_the_view)
