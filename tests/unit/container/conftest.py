# SPDX-License-Identifier: Apache-2.0
from collections.abc import Generator

import pytest

from nvct.container.plan.store import Store
from tests.support.shim_lab import Lab


@pytest.fixture
def store(lab: Lab) -> Generator[Store]:
    new_store = Store(str(lab.run_dir))
    yield new_store
    new_store.close()
