# SPDX-License-Identifier: Apache-2.0
"""Which interpreter is the cold side's: a package's own, else the one that runs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from nvct.launcher import cold


def test_from_a_checkout_it_is_the_one_that_runs() -> None:
    assert cold.interpreter() == sys.executable


@pytest.mark.parametrize(("mode", "occupied"), [(0o755, True), (0o644, False)])
def test_a_package_has_its_own_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, *, occupied: bool
) -> None:
    beside = tmp_path / "cold"
    beside.write_text("#!/usr/bin/python3 -I\n")
    beside.chmod(mode)
    monkeypatch.setattr(cold, "__file__", str(tmp_path / "nvct/launcher/cold.py"))

    assert cold.interpreter() == (str(beside) if occupied else sys.executable)
