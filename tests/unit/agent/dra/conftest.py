# SPDX-License-Identifier: Apache-2.0
"""The driver looks at the machine more often than on a real node."""

from __future__ import annotations

import pytest

from nvct.agent.dra import task


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task, "MACHINE_S", 0.1)
