# SPDX-License-Identifier: Apache-2.0
"""What a failed test leaves open makes no later test fail."""

import os
import sys
from pathlib import Path

import pytest

from tests.support.processes import captured

CONFTEST = "from tests.conftest import pytest_runtest_makereport, pytest_runtest_protocol\n"
MODULE = """
import gc
class Open:
    def __del__(self):
        raise ResourceWarning("not closed")
def test_a():
    circle = [Open()]
    circle.append(circle)
    assert False
def test_b():
    gc.collect()
"""
ENDLESS = MODULE.replace('raise ResourceWarning("not closed")', "threading.Event().wait()")


@pytest.mark.parametrize(
    "module", [MODULE, f"import threading\n{ENDLESS}"], ids=["error", "endless"]
)
def test_only_the_test_that_fails_is_a_failure(module: str, tmp_path: Path) -> None:
    """An endless one is a call of grpc.aio that nobody answers: it joins a thread."""
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_x.py").write_text(module)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly"]
    done = captured(
        [*command, "-W", "error", "-c", "/dev/null", f"--rootdir={tmp_path}", str(tmp_path)],
        cwd=Path(__file__).parents[2],
        env={name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"},
    )
    assert "1 failed, 1 passed" in done.stdout
