# SPDX-License-Identifier: Apache-2.0
"""Unit tests for tests.support.missing and again: the end of a test run."""

import os
import shutil
import sys
from pathlib import Path

import pytest

from nvct.errors import ContainerNotPossibleError, HostError
from tests.support import again, missing
from tests.support.processes import captured


@pytest.mark.parametrize(
    ("reason", "name", "command"),
    [
        ("no mmdebstrap here; install mmdebstrap [no-containers]", "mmdebstrap", "mmdebstrap"),
        ("no mmdebstrap here", "mmdebstrap", "mmdebstrap"),
        ("needs root", "root's privileges", "make test"),
        ("this process lacks CAP_SYS_ADMIN", "root's privileges", "make test"),
        ("only root puts a Debian into a folder", "root's privileges", "make test"),
        ("nvct-hot cannot be built: musl-gcc is missing", "nvct-hot", "make static"),
        ("/root/x cannot be read by everybody", "a checkout that every user may read", ""),
        ("needs cc", "a C compiler", "gcc libc6-dev"),
        ("no C compiler for the simulated NVML", "a C compiler", "gcc libc6-dev"),
        ("no runc on this host", "runc and crun", "runc crun"),
        ("this host has no busybox", "busybox-static", "busybox-static"),
        ("kubernetes is not built", "Kubernetes", "make kubernetes"),
        ("helm is not built", "Kubernetes", "make kubernetes"),
        ("CRI-O is not built, nor on PATH", "CRI-O", "make crio"),
        ("only x86_64 has them", "only x86_64 has them", ""),
    ],
)
def test_a_reason_names_what_is_missing_and_what_brings_it(
    reason: str, name: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    found = missing.remedy(reason)
    assert found[0] == name
    assert found[1].endswith(command)
    assert bool(found[1]) is bool(command)


def test_root_is_not_told_to_be_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    reason = "needs root and a cgroup v2 hierarchy"
    assert missing.remedy(reason) == (reason, "")


def test_what_most_tests_lack_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert list(missing.summary(["needs root", "needs cc", "needs root: chown"])) == [
        "3 tests were skipped for want of:",
        "     2  root's privileges: sudo make test",
        "     1  a C compiler: sudo apt install gcc libc6-dev",
    ]


def test_nothing_is_said_where_nothing_was_skipped() -> None:
    assert list(missing.summary([])) == []


def test_only_a_missing_compiler_turns_an_error_into_a_skip(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    error = ContainerNotPossibleError("there is no C compiler (cc)")
    assert missing.lacks_compiler(error) is not any(map(shutil.which, ("cc", "gcc", "clang")))
    monkeypatch.setenv("PATH", "/nonexistent")
    assert missing.lacks_compiler(error)
    assert missing.lacks_compiler(HostError("no C compiler on PATH"))
    assert missing.lacks_compiler(FileNotFoundError(2, "No such file or directory", "cc"))
    assert not missing.lacks_compiler(FileNotFoundError(2, "No such file or directory", "cp"))
    assert not missing.lacks_compiler(ContainerNotPossibleError("no runc"))
    assert not missing.lacks_compiler(AssertionError("no C compiler"))


PROGRAM = """
import pytest
@pytest.mark.parametrize("n", [1, 2])
def test_a(n): pytest.skip("no mmdebstrap here")
"""


def test_a_run_ends_with_these_lines(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("from tests.conftest import pytest_terminal_summary")
    (tmp_path / "test_a.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = captured(
        [*command, "-c", "/dev/null", f"--rootdir={tmp_path}", str(tmp_path)],
        cwd=Path(__file__).parents[2],
        env={name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"},
    )
    lines = done.stdout.splitlines()
    first = lines.index("2 tests were skipped for want of:")
    assert lines[first + 1] == "     2  mmdebstrap: sudo apt install mmdebstrap"
    assert len(lines) == first + 3


# Unit tests for tests.support.again: failed tests run once more, alone.


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
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # half of a start
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
