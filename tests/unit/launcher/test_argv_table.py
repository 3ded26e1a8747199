# SPDX-License-Identifier: Apache-2.0
"""Command lines are read as nvct/oci/argv.py does; the cold interpreter; nvidia-docker."""

import sys
from pathlib import Path

import pytest

from nvct.launcher import cold
from tests.support import launcher
from tests.support.launcher import PRINT_ARGS, script
from tests.support.processes import captured
from tests.unit.launcher.conftest import Lab
from tests.unit.oci.argv_cases import CASES


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return launcher.shown(tmp_path_factory.mktemp("shown"))


def test_the_c_launcher_reads_the_table_as_python_does(shown: Path) -> None:
    for case in CASES:
        completed = captured([shown, *case.args], check=True)
        sure, _, remaining = completed.stdout.rstrip("\n").partition("|")
        assert sure == str(int(case.sure)), case
        if case.sure:
            expected = f"{case.command}|{case.bundle}|{case.config}|{case.version:d}|{case.help:d}"
            assert remaining == expected, case


def test_only_commands_that_create_no_container_are_handed_over(lab: Lab) -> None:
    lab.keep()
    for case in CASES:
        no_word = not case.args or case.args in (("--root",), ("--log",), ("--help",))
        over = case.sure and not case.version and not case.creates and not no_word
        answer = lab.run(*case.args)
        raw_args = [arg.encode() for arg in case.args]
        if over:
            assert answer.words == [bytes(lab.runc), *raw_args], case
        else:
            assert answer.words[0] == lab.python, case
            assert answer.words[6:] == raw_args, case


def test_the_shell_hands_nothing_over(sh_lab: Lab) -> None:
    sh_lab.keep()
    for case in CASES[::25]:
        answer = sh_lab.run(*case.args)
        assert answer.words[0] == sh_lab.python, case
        assert answer.words[6:] == [arg.encode() for arg in case.args], case


# Which interpreter is the cold side's: a package's own, else the one that runs.


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


# The wrapper nvidia-docker: docker's own words, and the runtime behind run and create.


WRAPPER = Path(__file__).parents[3] / "packaging/files/nvidia-docker"
RUNTIME = "--runtime=nvidia"


def called(tmp_path: Path, arguments: list[str], **env: str) -> tuple[str, list[str]]:
    script(tmp_path / "docker", 'printf "\\001"\n' + PRINT_ARGS)
    completed = captured(
        ["sh", WRAPPER, *arguments], env={"PATH": f"{tmp_path}:/usr/bin:/bin", **env}, check=True
    )
    output, _, remaining = completed.stdout.partition("\1")
    return output, remaining.split("\0")[1:-1]


@pytest.mark.parametrize(
    ("arguments", "passed"),
    [
        (["run", "--rm", "-it", "image", "a b", "*"], ["run", RUNTIME, "--rm", "-it", "image", "a b", "*"]),
        (["create", "image", "run"], ["create", RUNTIME, "image", "run"]),
        (["--debug", "container", "run", "image"], ["--debug", "container", "run", RUNTIME, "image"]),
        (["ps", "-a", ""], ["ps", "-a", ""]),
        (["exec", "x", "--", "run"], ["exec", "x", "--", "run"]),
        ([], []),
    ],
)  # fmt: skip
def test_run_and_create_get_the_runtime(
    tmp_path: Path, arguments: list[str], passed: list[str]
) -> None:
    assert called(tmp_path, arguments) == ("", passed)


@pytest.mark.parametrize("gpus", ["0,1", "0 1"])
def test_nv_gpu_names_the_gpus(tmp_path: Path, gpus: str) -> None:
    _, passed = called(tmp_path, ["run", "image"], NV_GPU=gpus)

    assert passed == ["run", RUNTIME, "-e", "NVIDIA_VISIBLE_DEVICES=0,1", "image"]


def test_another_docker_may_be_several_words(tmp_path: Path) -> None:
    script(tmp_path / "sudo", 'exec "$@"\n')

    assert called(tmp_path, ["run", "x"], NV_DOCKER="sudo docker")[1] == ["run", RUNTIME, "x"]


def test_version_includes_our_own(tmp_path: Path) -> None:
    message, passed = called(tmp_path, ["version"])

    assert message.startswith("NVIDIA Docker: 2.14.0 ")
    assert passed == ["version"]
