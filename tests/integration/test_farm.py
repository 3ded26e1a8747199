# SPDX-License-Identifier: Apache-2.0
"""Real containers that get the driver by a view of it, on a simulated node."""

from __future__ import annotations

import pytest

from tests.integration import farm
from tests.integration.conftest import SimulatedNode


@pytest.mark.engine
def test_a_container_has_one_mount_and_no_hook(simulated: SimulatedNode) -> None:
    simulated.run(farm.one_mount)


@pytest.mark.engine
def test_no_write_through_an_injected_mount_succeeds(simulated: SimulatedNode) -> None:
    simulated.run(farm.nothing_can_be_written)


@pytest.mark.engine
def test_exec_sessions_find_the_driver(simulated: SimulatedNode) -> None:
    simulated.run(farm.exec_sessions)


@pytest.mark.engine
def test_read_only_restarted_and_bare_containers_have_the_driver(simulated: SimulatedNode) -> None:
    simulated.run(farm.roots)


@pytest.mark.engine
def test_a_root_that_is_mounted_read_only_gets_the_driver(simulated: SimulatedNode) -> None:
    simulated.run(farm.read_only_mount)


@pytest.mark.engine
def test_cuda_compatibility_is_chosen_before_the_container_exists(
    simulated: SimulatedNode,
) -> None:
    simulated.run(farm.compatibility)


@pytest.mark.engine
def test_what_does_not_fit_gets_the_classic_layout(simulated: SimulatedNode) -> None:
    simulated.run(farm.unfit)


@pytest.mark.engine
def test_the_view_outlives_an_upgrade_on_the_disk(simulated: SimulatedNode) -> None:
    simulated.run(farm.upgrade)


@pytest.mark.engine
def test_a_user_namespaces_root_owns_what_is_written(simulated: SimulatedNode) -> None:
    simulated.run(farm.user_namespace)


@pytest.mark.engine
def test_a_container_chooses_the_classic_layout(simulated: SimulatedNode) -> None:
    simulated.run(farm.chosen)


def test_crun_gives_the_view(simulated: SimulatedNode) -> None:
    simulated.run(
        farm.crun
    )  # no engine test: crun 1.8 refuses hybrid cgroups, other hosts lack it


def test_podman_gives_the_view(simulated: SimulatedNode) -> None:
    simulated.run(farm.podman)  # no engine test: not every host has it
