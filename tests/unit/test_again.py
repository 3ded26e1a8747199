# SPDX-License-Identifier: Apache-2.0
"""Unit tests for tests.support.again: failed tests run once more, alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support import again

MODULE = """
import os, pytest, sys
@pytest.mark.parametrize("n", range({number}))
def test_a(n):
    assert os.path.exists("second-run") and {passes}
def test_b():
    open("second-run", "w").close() if {number} else None
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    monkeypatch.setattr(again, "LAST_FAILED", tmp_path / ".pytest_cache/v/cache/lastfailed")
    return tmp_path


def status_of(folder: Path, number: int, *, passes: bool) -> int:
    (folder / "test_x.py").write_text(MODULE.format(number=number, passes=passes))
    (folder / "pytest.ini").write_text("[pytest]\n")
    return again.main(["-q", "-p", "no:randomly", str(folder)])


def test_what_passes_alone_is_named(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert status_of(folder, 2, passes=True) == 0
    printed = capfd.readouterr().out
    names = "  test_x.py::test_a[0]\n  test_x.py::test_a[1]\n"
    assert f"\n2 failed beside the others; once more, alone:\n{names}" in printed
    assert printed.endswith(f"passed alone; depends on what runs before or beside it:\n{names}")


@pytest.mark.parametrize(("number", "passes"), [(1, False), (again.MOST + 1, True)])
def test_what_fails_again_and_too_many_fail_the_run(
    folder: Path, number: int, *, passes: bool
) -> None:
    assert status_of(folder, number, passes=passes) == 1


def test_a_run_without_failures_runs_once(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    os.makedirs(folder / ".pytest_cache/v/cache")
    again.LAST_FAILED.write_text('{"test_x.py::test_b": true}')
    assert status_of(folder, 0, passes=True) == 0
    assert "once more" not in capfd.readouterr().out


def test_what_is_no_failure_of_a_test_is_not_run_again(folder: Path) -> None:
    (folder / "test_x.py").write_text("def test_a(): raise KeyboardInterrupt")
    assert again.main(["-q", str(folder)]) == pytest.ExitCode.INTERRUPTED
