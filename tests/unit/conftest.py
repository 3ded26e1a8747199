# SPDX-License-Identifier: Apache-2.0
"""A host of plain files for the shim and for the command line."""

from collections.abc import Iterator

import pytest

from tests.support.shim_lab import Lab


@pytest.fixture
def lab() -> Iterator[Lab]:
    made = Lab()
    yield made
    made.remove()
