# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest

from nvct_sim import tree


@pytest.fixture
def plain_node(tmp_path: Path) -> tree.Node:
    """Return a node of plain files, created without a compiler and without root."""
    return tree.create("plain", "mixed", tmp_path / "nodes", native=False, nodes="plain")
