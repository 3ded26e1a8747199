# SPDX-License-Identifier: Apache-2.0
import os
import signal
from pathlib import Path

import pytest

from nvct.container.shim import main as shim
from nvct.errors import RuntimeNotFoundError
from tests.support.launcher import script
from tests.support.shim_lab import Lab


@pytest.fixture
def dirs(tmp_path: Path) -> tuple[Path, Path]:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    return tmp_path / "a", tmp_path / "b"


def test_the_first_candidate_that_exists_wins(dirs: tuple[Path, Path]) -> None:
    a, b = dirs
    script(a / "nvct-second", "")
    script(b / "nvct-third", "")

    runtime = shim.find_runtime(["nvct-first", "nvct-third", "nvct-second"], f"{a}:{b}")

    assert runtime == f"{b}/nvct-third"


def test_path_is_searched_in_its_order(dirs: tuple[Path, Path]) -> None:
    a, b = dirs
    script(a / "nvct-runc", "")
    script(b / "nvct-runc", "")

    assert shim.find_runtime(["nvct-runc"], f"{b}:{a}") == f"{b}/nvct-runc"


def test_an_absolute_name_is_not_looked_up(dirs: tuple[Path, Path]) -> None:
    a, b = dirs
    script(a / "nvct-runc", "")

    with pytest.raises(RuntimeNotFoundError):
        shim.find_runtime([f"{b}/nvct-runc"], str(a))
    assert shim.find_runtime([f"{b}/nvct-runc", f"{a}/nvct-runc"], "") == f"{a}/nvct-runc"


def test_files_that_are_not_executable_are_skipped(dirs: tuple[Path, Path]) -> None:
    a, b = dirs
    (a / "nvct-runc").mkdir()
    script(b / "nvct-runc", "", mode=0o644)
    (a / "nvct-crun").symlink_to("gone")
    script(b / "nvct-crun", "")

    assert shim.find_runtime(["nvct-runc", "nvct-crun"], f"{a}:{b}") == f"{b}/nvct-crun"


def test_without_path_the_default_folders_are_searched() -> None:
    assert shim.find_runtime(["sh"], "") in ("/usr/bin/sh", "/bin/sh")
    assert shim.find_runtime(["sh"], ":/nowhere:") in ("/usr/bin/sh", "/bin/sh")


@pytest.mark.parametrize("candidates", [[], [""], ["", "/"], ["nvct-no-such"]])
def test_a_missing_runtime_is_an_error_with_all_candidates(candidates: list[str]) -> None:
    with pytest.raises(RuntimeNotFoundError, match="none of the low-level runtimes") as caught:
        shim.find_runtime(candidates, "/usr/bin")

    assert caught.value.exit_status == 127


def test_the_working_directory_is_never_searched(
    dirs: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    script(dirs[0] / "nvct-runc", "")
    monkeypatch.chdir(dirs[0])

    with pytest.raises(RuntimeNotFoundError):
        shim.find_runtime(["nvct-runc"], "::")


def test_the_runtime_gets_arguments_and_environment_unchanged(lab: Lab) -> None:
    script(lab.home / "bin/runc", 'printf "%s|" "$0" "$@"; printf "%s" "$ODD"\n')

    result = lab.shim(["state", "", "a b", "\udcff"], env={"ODD": "x\udcfey", "LD_PRELOAD": ""})

    assert result.status == 0, result.stderr
    assert result.stdout == f"{lab.home}/bin/runc|state||a b|\udcff|x\udcfey"


def test_signals_that_python_ignores_are_reset_for_the_runtime(lab: Lab) -> None:
    script(lab.home / "bin/runc", "grep SigIgn /proc/self/status\n")

    result = lab.shim(["state", "x"])

    ignored = int(result.stdout.split()[1], 16)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        assert not ignored & 1 << number - 1


def test_the_runtime_inherits_no_descriptor(lab: Lab) -> None:
    script(lab.home / "bin/runc", "ls /proc/self/fd | wc -l\n")

    result = lab.shim(["state", "x"])

    assert int(result.stdout) == 4  # stdin, stdout, stderr, and the one ls lists with


def test_the_status_of_the_runtime_is_the_programs(lab: Lab) -> None:
    script(lab.home / "bin/runc", "exit 42\n")

    assert lab.shim(["state", "x"]).status == 42
    assert os.listdir(lab.bundle) == ["rootfs"]
