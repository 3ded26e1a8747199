# SPDX-License-Identifier: Apache-2.0
"""The recorded nodes, simulated again."""

from collections.abc import Iterator, Sequence

import pytest

from nvct.agent.machine.inventory import Inventory
from nvct.errors import ContainerNotPossibleError
from nvct_sim import mig, node_changes, state, tree
from tests.peer import cases
from tests.support.memory import in_memory
from tests.support.nvml_node import CACHE
from tests.unit.agent import machines

GPUS = 8
PROFILES = {
    "all-1g.10gb": ["1g.10gb"] * 7,
    "all-balanced": ["2g.20gb", "1g.10gb", "1g.10gb", "3g.40gb"],
}
"""MIG devices of each GPU, in the order in which mig-parted makes them."""


@pytest.fixture(scope="module", params=cases.NODES)
def node(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tree.Node]:
    name = request.param
    case = cases.NODES[name]
    try:
        with in_memory(tmp_path_factory.mktemp("nodes")) as folder:
            node = tree.create(name, case.profile, folder, native_cache=CACHE)
            if case.mig:
                _divide(node, PROFILES[case.mig])
            yield node
            tree.destroy(node)
    except ContainerNotPossibleError as error:
        pytest.skip(error.message)


def _divide(node: tree.Node, profiles: Sequence[str]) -> None:
    """Make the MIG devices of all GPUs, and write the kernel's files once."""
    for index in range(GPUS):
        node_changes.set_mig_mode(node, index, on=True)
    with state.change(node.state_file) as now:
        for index in range(GPUS):
            for profile in profiles:
                mig.add_instance(now, index, profile)
    tree.write_kernel(node)


@pytest.fixture(scope="module")
def machine(node: tree.Node) -> tuple[str, Inventory]:
    return node.name, machines.inventory_of(node)
