# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from tests.support.containers import Container

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def container(tmp_path: Path) -> Container:
    return Container(tmp_path)
