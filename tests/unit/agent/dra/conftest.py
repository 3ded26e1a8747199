# SPDX-License-Identifier: Apache-2.0
"""The driver looks at the machine more often than on a real node; a folder for its sockets."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvct.agent.dra import task


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task, "MACHINE_S", 0.1)


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/tmp") as path:  # sockets have short paths
        (Path(path) / "registry").mkdir()
        yield Path(path)
