# SPDX-License-Identifier: Apache-2.0
"""The prestart hook in real containers on a simulated node.

What a machine may lack (cgroup v2, crun, Podman, Docker) is skipped there and so not marked.
"""

import os

import pytest

from tests.integration import prestart, prestart_engines
from tests.integration.conftest import Part, SimulatedNode

PARTS = {
    "containers hold exactly what they asked for": prestart.asked_gpus,
    "a node without device rule cannot be opened": prestart.without_rule,
    "who asks for nothing stays untouched": prestart.nothing_asked,
    "what cannot be had fails the container with one line": prestart.refusals,
    "other shapes of containers run": prestart.other_shapes,
    "a container started again gets the same": prestart.restarted,
    "a user namespace gets the nodes of the host": prestart.user_namespace,
}


@pytest.mark.engine
@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
def test_in_the_node(part: Part, simulated: SimulatedNode) -> None:
    simulated.run(part)


def test_on_cgroup_v2_the_device_program_is_replaced(simulated: SimulatedNode) -> None:
    simulated.run(prestart.unified)


@pytest.mark.engine
def test_no_mount_can_be_written_to(simulated: SimulatedNode) -> None:
    simulated.run(prestart.writes)


def test_crun_gives_the_same(simulated: SimulatedNode) -> None:
    simulated.run(prestart_engines.crun)


def test_podman_with_a_hooks_dir_gives_the_same(simulated: SimulatedNode) -> None:
    simulated.run(prestart_engines.podman)


def test_docker_gpus_gives_the_same(simulated: SimulatedNode) -> None:
    env = {k: v for k, v in os.environ.items() if k == "NVCT_TEST_DOCKER"}
    simulated.run(prestart_engines.docker, env)
