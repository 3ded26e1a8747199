# SPDX-License-Identifier: Apache-2.0
"""A host of plain files for the shim and for the command line."""

import contextlib
from collections.abc import Iterator

import pytest

from tests.support.shim_lab import Lab


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    made = Lab()
    with contextlib.suppress(ImportError):  # this host's agent is not that of the lab
        monkeypatch.setattr("nvct.agent.core.instance.FOLDER", str(made.home / "agent"))
    yield made
    made.remove()


@pytest.fixture
def driver(lab: Lab) -> None:
    """A driver on the lab's host, with two GPUs."""
    lab.driver()
