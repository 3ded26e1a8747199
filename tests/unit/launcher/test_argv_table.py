# SPDX-License-Identifier: Apache-2.0
"""The launchers read command lines as nvct/oci/argv.py does, by the same table."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support import launcher
from tests.unit.launcher.conftest import Lab
from tests.unit.oci.argv_cases import CASES


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return launcher.shown(tmp_path_factory.mktemp("shown"))


def test_the_c_launcher_reads_the_table_as_python_does(shown: Path) -> None:
    for case in CASES:
        completed = subprocess.run([shown, *case.args], capture_output=True, text=True, check=True)
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
    for case in CASES:
        answer = sh_lab.run(*case.args)
        assert answer.words[0] == sh_lab.python, case
        assert answer.words[6:] == [arg.encode() for arg in case.args], case


def test_without_an_argument_the_c_launcher_does_not_crash(lab: Lab) -> None:
    lab.keep()
    assert lab.went_to() == "python"
