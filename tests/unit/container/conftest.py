# SPDX-License-Identifier: Apache-2.0
"""A host for the shim, and a cold interpreter that is a script."""

from __future__ import annotations

import pytest

from nvct.container.plan.store import Store
from tests.support.shim_lab import Lab

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator


@pytest.fixture
def lab() -> Generator[Lab]:
    made = Lab()
    yield made
    made.remove()


@pytest.fixture
def store(lab: Lab) -> Generator[Store]:
    made = Store(str(lab.run_dir))
    yield made
    made.close()
