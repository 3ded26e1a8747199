# SPDX-License-Identifier: Apache-2.0
"""When a process started, against files that were written before and after."""

import os
import subprocess
import time
from pathlib import Path

from nvct.host.procfs import CLOCK_TICK_S, started


def test_a_file_of_a_moment_before_is_older(tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    before.touch()
    time.sleep(2 * CLOCK_TICK_S)
    with subprocess.Popen(["/bin/sleep", "60"]) as process:
        time.sleep(2 * CLOCK_TICK_S)
        after.touch()
        found = started(process.pid)
        process.kill()

    assert found is not None
    assert before.stat().st_mtime < found + CLOCK_TICK_S < after.stat().st_mtime


def test_a_recorded_procfs_is_exact_to_a_second(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "stat").write_text("cpu  1 2 3\nbtime 1000\n")
    fields = ["0"] * 18 + [str(5 * os.sysconf("SC_CLK_TCK"))]
    (tmp_path / "7/stat").write_text(f"7 (a ) b) S {' '.join(fields)} 0\n")
    assert started(7, str(tmp_path)) == 1006
    assert started(8, str(tmp_path)) is None


def test_nothing_is_known_where_nothing_is_there() -> None:
    assert started(1, "/nowhere") is None
