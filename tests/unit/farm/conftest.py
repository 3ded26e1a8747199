# SPDX-License-Identifier: Apache-2.0
"""A host with a driver and a farm."""

from __future__ import annotations

import pytest

from tests.unit.farm.lab import FarmLab

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def lab(tmp_path: Path) -> FarmLab:
    return FarmLab(tmp_path)
