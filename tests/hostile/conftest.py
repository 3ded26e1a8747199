# SPDX-License-Identifier: Apache-2.0
"""Fixtures of other folders that the attacks need: the launchers, and a simulated node."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.conftest import SimulatedNode, simulate
from tests.support import memory
from tests.unit.launcher.conftest import lab, launchers

__all__ = ["lab", "launchers", "simulated"]


@pytest.fixture
def simulated() -> Iterator[SimulatedNode]:
    """A node on a disk: images lead to paths of their host, and /dev is a container's own."""
    folder = tempfile.mkdtemp(prefix="nvct-", dir=memory.DISK)
    yield from simulate("h100-mig", Path(folder))
    shutil.rmtree(folder)
