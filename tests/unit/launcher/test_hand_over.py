# SPDX-License-Identifier: Apache-2.0
"""What a launcher passes on: arguments, environment, stdin, descriptors and signals, unchanged."""

import signal
import subprocess

import pytest

from tests.support.launcher import PRINT_ARGS, script
from tests.support.processes import captured
from tests.unit.launcher.conftest import PROGRAM, Lab

ODD = [
    b"state",
    b"",
    b"a b",
    b"*",
    b"$HOME",
    b"'\"\\",
    b"\xff\xc3",
    b"\n",
    b"-",
    b"--",
    b"{}",
    b"",
]


@pytest.mark.parametrize("command", [b"create", b"state"])
def test_python_is_started_isolated_with_the_programs_name_and_all_arguments(
    any_lab: Lab, command: bytes
) -> None:
    answer = any_lab.run(command, *ODD)
    boot = (
        b"import sys;sys.path.append('/pack ages');"
        b"from nvct.container.shim.main import main;main('/ve nv/bin/python')"
    )
    expected = [any_lab.python, b"-I", b"-S", b"-c", boot, PROGRAM.encode(), command, *ODD]
    assert answer.words == expected


def test_the_runtime_gets_all_arguments_as_they_are(lab: Lab) -> None:
    lab.keep()
    assert lab.run(*ODD).words == [bytes(lab.runc), *ODD]


@pytest.mark.parametrize("command", ["state", "create"])
def test_stdin_and_other_descriptors_are_left_alone(any_lab: Lab, command: str) -> None:
    any_lab.keep()
    body = "cat; cat <&3; ls /proc/self/fd | wc -l\n"
    script(any_lab.runc, body)
    script(any_lab.launchers / "python", body)
    (any_lab.home / "three").write_text(" and three ")
    program = any_lab.launchers / ("c" if any_lab.form == "c" else "sh") / PROGRAM
    try:
        completed = subprocess.run(
            ["sh", "-c", 'exec 3<three; exec "$@"', "sh", program, command, "id"],
            env=any_lab.env, cwd=any_lab.home, input=b"in", capture_output=True, check=True,
        )  # fmt: skip
    finally:
        script(any_lab.launchers / "python", PRINT_ARGS)
    # stdin, stdout, stderr, 3, and the one that ls reads the folder with
    assert completed.stdout.split() == [b"in", b"and", b"three", b"5"]


@pytest.mark.parametrize("command", ["state", "create"])
def test_the_environment_is_passed_on_to_the_byte(lab: Lab, command: str) -> None:
    lab.keep()
    lab.runc.write_text("#!/bin/sh\ncat /proc/$$/environ\n")
    script(lab.launchers / "python", "cat /proc/$$/environ\n")
    expected = [f"{k}={v}".encode() for k, v in lab.env.items()]
    expected += [b"EMPTY=", b"odd.name=\xff\xc3", b"TWO=a\nb", b"=x"]
    env = {entry.partition(b"=")[0] if entry[:1] != b"=" else b"": entry for entry in expected}
    pairs = {k: v.partition(b"=")[2] if k else b"x" for k, v in env.items() if k}
    try:
        completed = subprocess.run(
            [lab.launchers / "c" / PROGRAM, command, "id"],
            env=pairs, cwd=lab.home, capture_output=True, check=True,
        )  # fmt: skip
    finally:
        script(lab.launchers / "python", PRINT_ARGS)
    assert completed.stdout.split(b"\0")[:-1] == [k + b"=" + v for k, v in pairs.items()]


def ignored(lab: Lab, command: str) -> set[int]:
    """Start the launcher with signals ignored; return which the next program still ignores."""
    body = "grep SigIgn /proc/$$/status\n"
    script(lab.runc, body)
    script(lab.launchers / "python", body)

    def ignore() -> None:
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        for number in (signal.SIGINT, signal.SIGQUIT):  # a shell's background jobs ignore them
            signal.signal(number, signal.SIG_DFL)

    try:
        completed = subprocess.run(
            [lab.launchers / "c" / PROGRAM, command, "id"], env=lab.env, cwd=lab.home,
            capture_output=True, check=True, preexec_fn=ignore, restore_signals=False,
        )  # fmt: skip
    finally:
        script(lab.launchers / "python", PRINT_ARGS)
    bits = int(completed.stdout.split()[1], 16)
    return {n for n in range(1, 32) if bits >> (n - 1) & 1}


@pytest.mark.parametrize("command", ["state", "create"])
def test_signals_that_python_ignores_are_default_again_and_others_as_they_were(
    lab: Lab, command: str
) -> None:
    lab.keep()
    assert ignored(lab, command) == {signal.SIGHUP}


def test_a_missing_python_is_reported_in_one_line(lab: Lab) -> None:
    python = lab.launchers / "python"
    python.rename(lab.launchers / "gone")
    try:
        completed = captured(
            [lab.launchers / "c" / PROGRAM, "create", "id"], env=lab.env, cwd=lab.home
        )
    finally:
        (lab.launchers / "gone").rename(python)
    assert completed.returncode == 1
    assert completed.stderr == (
        f"{PROGRAM}: cannot start {python}: No such file or directory;"
        " run nvct launchers install again [host]\n"
    )


def test_the_first_runtime_that_can_be_executed_wins(lab: Lab) -> None:
    other = script(lab.home / "bin" / "crun", PRINT_ARGS)
    for runtimes, expected in (
        (["runc", "crun"], "bin/runc"),
        (["crun", "runc"], "bin/crun"),
        (["docker-runc-of-old", "runc"], "bin/runc"),
        ([str(other), "runc"], "bin/crun"),
        (["/no/such/crun", "runc"], "bin/runc"),
        ([str(lab.home / "run"), "runc"], "bin/runc"),  # a folder
        ([str(lab.config), "runc"], "bin/runc"),  # no program
        (["./bin/crun", "runc"], "bin/crun"),
    ):
        lab.keep(runtimes)
        assert lab.went_to("state", "id").removeprefix("./") == expected


def test_names_are_looked_up_in_the_order_of_path(lab: Lab) -> None:
    first, second = lab.home / "first *", lab.home / "second"
    for folder in (first, second):
        folder.mkdir()
    lab.keep(["nvct-runc"])
    usual = lab.env["PATH"]
    lab.env["PATH"] = f":{first}::{second}:{usual}:"
    assert lab.went_to("state", "id") == "python"
    script(second / "nvct-runc", PRINT_ARGS)
    assert lab.went_to("state", "id") == "second/nvct-runc"
    (first / "nvct-runc").mkdir()
    assert lab.went_to("state", "id") == "second/nvct-runc"
    (first / "nvct-runc").rmdir()
    script(first / "nvct-runc", PRINT_ARGS, 0o644)
    assert lab.went_to("state", "id") == "second/nvct-runc"
    (first / "nvct-runc").chmod(0o755)
    assert lab.went_to("state", "id") == "first */nvct-runc"
    lab.env["PATH"] = f"{second}:{usual}:{first}"
    assert lab.went_to("state", "id") == "second/nvct-runc"
    lab.env["PATH"] = f"second:{usual}"
    assert lab.went_to("state", "id") == "second/nvct-runc"


def test_the_usual_folders_are_searched_last(lab: Lab) -> None:
    lab.keep(["true"])  # in one of them on every host
    script(lab.home / "bin" / "true", PRINT_ARGS)
    assert lab.went_to("state", "id") == "bin/true"
    for env in ({"PATH": ""}, {}):
        remaining = {k: v for k, v in lab.env.items() if k != "PATH"}
        completed = subprocess.run(
            [lab.launchers / "c" / PROGRAM, "state", "id"], env=remaining | env, cwd=lab.home,
            capture_output=True, check=True,
        )  # fmt: skip
        assert completed.stdout == b""  # the real one, which says nothing


def test_a_runtime_that_cannot_be_executed_after_all_is_left_to_python(lab: Lab) -> None:
    lab.runc.write_bytes(b"neither a script nor a binary")
    lab.keep()
    assert lab.went_to("state", "id") == "python"
