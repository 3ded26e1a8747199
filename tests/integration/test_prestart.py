# SPDX-License-Identifier: Apache-2.0
"""The prestart hook in real containers on a simulated node.

What a machine may lack (cgroup v2, crun, Podman, Docker) is skipped there and so not marked.
"""

from __future__ import annotations

import os

import pytest

from tests.integration import prestart, prestart_engines
from tests.integration.conftest import SimulatedNode


@pytest.mark.engine
def test_containers_hold_exactly_what_they_asked_for(simulated: SimulatedNode) -> None:
    simulated.run(prestart.asked_gpus)


@pytest.mark.engine
def test_a_node_without_device_rule_cannot_be_opened(simulated: SimulatedNode) -> None:
    simulated.run(prestart.without_rule)


def test_on_cgroup_v2_the_device_program_is_replaced(simulated: SimulatedNode) -> None:
    simulated.run(prestart.unified)


@pytest.mark.engine
def test_no_mount_can_be_written_to(simulated: SimulatedNode) -> None:
    simulated.run(prestart.writes)


@pytest.mark.engine
def test_who_asks_for_nothing_stays_untouched(simulated: SimulatedNode) -> None:
    simulated.run(prestart.nothing_asked)


@pytest.mark.engine
def test_what_cannot_be_had_fails_the_container_with_one_line(simulated: SimulatedNode) -> None:
    simulated.run(prestart.refusals)


@pytest.mark.engine
def test_other_shapes_of_containers_run(simulated: SimulatedNode) -> None:
    simulated.run(prestart.other_shapes)


@pytest.mark.engine
def test_a_container_started_again_gets_the_same(simulated: SimulatedNode) -> None:
    simulated.run(prestart.restarted)


@pytest.mark.engine
def test_a_user_namespace_gets_the_nodes_of_the_host(simulated: SimulatedNode) -> None:
    simulated.run(prestart.user_namespace)


def test_crun_gives_the_same(simulated: SimulatedNode) -> None:
    simulated.run(prestart_engines.crun)


def test_podman_with_a_hooks_dir_gives_the_same(simulated: SimulatedNode) -> None:
    simulated.run(prestart_engines.podman)


def test_docker_gpus_gives_the_same(simulated: SimulatedNode) -> None:
    env = {k: v for k, v in os.environ.items() if k == "NVCT_TEST_DOCKER"}
    simulated.run(prestart_engines.docker, env)
