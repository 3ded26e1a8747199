# SPDX-License-Identifier: Apache-2.0
"""Containers that get the driver by a CDI specification in layout farm, on a simulated node."""

import os

import pytest

from tests.integration import spec_farm
from tests.integration.conftest import Part, SimulatedNode

PARTS = {
    "a container has one mount and one hook": spec_farm.one_mount,
    "without its view no container starts": spec_farm.a_view_that_is_gone,
    "a view stays while a specification names it": spec_farm.a_view_stays_while_it_is_named,
    "a changed farm dir counts from the next publish on": spec_farm.a_farm_dir_that_is_changed,
    "a farm on another file system is classic or a view of mounts": spec_farm.a_farm_on_another_file_system,
    "containers start wherever a refresh was killed": spec_farm.killed,
}


@pytest.mark.engine
@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
def test_in_the_node(part: Part, simulated: SimulatedNode) -> None:
    simulated.run(part)


@pytest.mark.engine
@pytest.mark.timeout(1500)  # a hundred refreshes, if the environment says so
def test_containers_start_while_the_driver_is_upgraded(simulated: SimulatedNode) -> None:
    name = spec_farm.REFRESHES_ENV
    simulated.run(spec_farm.refreshes_under_load, {name: os.environ.get(name, "8")})


@pytest.mark.engine
def test_a_volume_inside_the_view_leaves_nothing_on_the_host(simulated: SimulatedNode) -> None:
    simulated.run(spec_farm.a_volume_inside_the_view)
