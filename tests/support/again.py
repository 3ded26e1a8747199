# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.support.again`: pytest with its arguments; failed tests run once more, alone.

On two cores ten thousand tests run in parallel, and some of them measure time. A test that passes
alone is reported, for a person to check; --randomly-seed=last repeats the order of the first run.
A test that fails again fails the run, and so do more failures than a busy machine explains.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

MOST = 5
"""Maximum number of failed tests that are run again."""
LAST_FAILED = Path(__file__).parents[2] / ".pytest_cache/v/cache/lastfailed"


def last_failed(path: Path) -> list[str]:
    """Return the node ids that pytest's cache lists; empty if there is no cache."""
    try:
        return sorted(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return []


def main(arguments: list[str]) -> int:
    """Return the exit status of pytest; 0 also if each failed test passes alone."""
    LAST_FAILED.unlink(missing_ok=True)
    status = run(arguments)
    failed = last_failed(LAST_FAILED)
    if status != pytest.ExitCode.TESTS_FAILED or not 0 < len(failed) <= MOST:
        return status
    print(f"\n{len(failed)} failed beside the others; once more, alone:", *failed, sep="\n  ")
    status = run(["-q", "-p", "no:xdist", "-p", "no:randomly", *failed])
    if status == pytest.ExitCode.OK:
        print("passed alone; depends on what runs before or beside it:", *failed, sep="\n  ")
    return status


def run(arguments: list[str]) -> int:
    """Return the exit status of a pytest with these arguments."""
    sys.stdout.flush()
    return subprocess.run([sys.executable, "-m", "pytest", *arguments], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
