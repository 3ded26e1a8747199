# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest

from tests.unit.farm.lab import FarmLab


@pytest.fixture
def lab(tmp_path: Path) -> FarmLab:
    return FarmLab(tmp_path)
