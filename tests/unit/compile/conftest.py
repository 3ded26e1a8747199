# SPDX-License-Identifier: Apache-2.0
"""A host with a driver and a farm, as the farm's own tests have it."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from tests.support.shim_lab import Lab
from tests.unit.farm.conftest import lab

__all__ = ["lab"]


@pytest.fixture
def node() -> Generator[Lab]:
    """A host with a driver and a folder of views."""
    made = Lab()
    made.keys["nvct"] |= {"layout": "farm", "farm-dir": f"{made.home}/farm"}
    made.configure()
    made.driver()
    yield made
    made.remove()
