# SPDX-License-Identifier: Apache-2.0
"""The recorded nodes, simulated again."""

from __future__ import annotations

import pytest

from nvct.errors import ContainerNotPossibleError
from nvct.sim import node_changes, tree
from tests.peer import cases
from tests.support.memory import in_memory
from tests.support.nvml_node import CACHE
from tests.unit.agent import machines

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from nvct.agent.inventory import Inventory

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
            for index in range(8) if case.mig else ():
                node_changes.set_mig_mode(node, index, on=True)
                for profile in PROFILES[case.mig]:
                    node_changes.create_instance(node, index, profile)
            yield node
            tree.destroy(node)
    except ContainerNotPossibleError as error:
        pytest.skip(error.message)


@pytest.fixture(scope="module")
def machine(node: tree.Node) -> tuple[str, Inventory]:
    return node.name, machines.inventory_of(node)
