# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest

from tests.support.containers import Container


@pytest.fixture
def container(tmp_path: Path) -> Container:
    return Container(tmp_path)
