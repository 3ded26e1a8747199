# SPDX-License-Identifier: Apache-2.0
"""Real containers that get the driver by a view of it, on a simulated node."""

import pytest

from tests.integration import farm
from tests.integration.conftest import Part, SimulatedNode

PARTS = {
    "a container has one mount and no hook": farm.one_mount,
    "no write through an injected mount succeeds": farm.nothing_can_be_written,
    "exec sessions find the driver": farm.exec_sessions,
    "read only restarted and bare containers have the driver": farm.roots,
    "a root that is mounted read only gets the driver": farm.read_only_mount,
    "cuda compatibility is chosen before the container exists": farm.compatibility,
    "what does not fit gets the classic layout": farm.unfit,
    "the view outlives an upgrade on the disk": farm.upgrade,
    "a user namespaces root owns what is written": farm.user_namespace,
    "a container chooses the classic layout": farm.chosen,
}


@pytest.mark.engine
@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
def test_in_the_node(part: Part, simulated: SimulatedNode) -> None:
    simulated.run(part)


def test_crun_gives_the_view(simulated: SimulatedNode) -> None:
    """No engine test: crun 1.8 refuses hybrid cgroups, and other hosts lack it."""
    simulated.run(farm.crun)


def test_podman_gives_the_view(simulated: SimulatedNode) -> None:
    simulated.run(farm.podman)  # no engine test: not every host has it
