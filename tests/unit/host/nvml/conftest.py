# SPDX-License-Identifier: Apache-2.0
"""A session whose worker has a library in Python, and that library's log."""

import contextlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from nvct.host.nvml.session import NvmlSession
from tests.unit.host.nvml.sessions import LIBRARY, TIMEOUT_S, serve_library


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def session(log: Path) -> Iterator[NvmlSession]:
    with contextlib.closing(
        NvmlSession(LIBRARY, TIMEOUT_S, partial(serve_library, log=log))
    ) as session:
        yield session
