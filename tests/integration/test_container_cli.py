# SPDX-License-Identifier: Apache-2.0
"""nvidia-container-cli on a simulated node: NVML, real containers, and roots without a runtime."""

import pytest

from tests.integration import container_cli
from tests.integration.conftest import Part, SimulatedNode

pytestmark = pytest.mark.engine


PARTS = {
    "info is what nvidia smi prints": container_cli.info,
    "list names what is there": container_cli.listed,
    "configure gives a container of runc its gpus": container_cli.by_pid,
    "configure works on a root where it runs": container_cli.standalone,
    "configure changes no other namespace": container_cli.shared,
}


@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
def test_in_the_node(part: Part, simulated: SimulatedNode) -> None:
    simulated.run(part)
