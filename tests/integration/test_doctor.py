# SPDX-License-Identifier: Apache-2.0
"""nvct doctor on a simulated node: it finds what was broken, and mends it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from nvct.host.nvml.kernel_xids import KMSG_ENV
from nvct_sim import node_changes, tree
from tests.integration import doctor
from tests.integration.conftest import SimulatedNode


def test_missing_device_nodes_are_found_and_made(simulated: SimulatedNode) -> None:
    simulated.run(doctor.heals_what_it_found)


@pytest.mark.parametrize(
    "heal", [doctor.publishes_again, doctor.gives_hooks_an_environment, doctor.gives_each_gpu]
)
def test_a_specification_is_mended_and_a_container_has_its_gpus(
    heal: Callable[[Path], None], simulated: SimulatedNode
) -> None:
    simulated.run(heal)


def test_xids_and_a_lost_gpu_are_told(simulated: SimulatedNode) -> None:
    node = simulated.node
    for words in (["xid", "0", "79"], ["xid", "1", "31"], ["lose", "3"]):
        node_changes.apply(node, words[0], words[1:])

    simulated.run(doctor.tells_of_gpus_that_fail, {KMSG_ENV: str(node.tree / tree.KMSG)})
