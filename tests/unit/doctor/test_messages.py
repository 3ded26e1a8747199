# SPDX-License-Identifier: Apache-2.0
"""The catalogue of messages: each is explained in its real wording, by its own entry."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from nvct.cli.main import program
from nvct.doctor import messages
from nvct.errors import UsageError

LINES = Path(__file__).with_name("wordings.txt").read_text(encoding="utf-8").splitlines()
WORDINGS = [line.split("\t") for line in LINES if not line.startswith("#")]


@pytest.mark.parametrize(("name", "text"), WORDINGS, ids=[name for name, _ in WORDINGS])
def test_a_real_wording_is_explained_by_its_entry(name: str, text: str) -> None:
    found = messages.explained(text)

    assert found is not None
    assert found.name == name
    assert found.cause.endswith(".")
    assert found.remedy.endswith(".")


def test_every_entry_has_a_real_wording_and_a_name_of_its_own() -> None:
    names = [one.name for one in messages.MESSAGES]

    assert len(set(names)) == len(names)
    assert {name for name, _ in WORDINGS} == set(names)


@pytest.mark.parametrize(
    "text", ["", "no space left on device", "permission denied", "exit status 1"]
)
def test_what_is_not_about_gpus_is_not_explained(text: str) -> None:
    assert messages.explained(text) is None


def explain(text: str) -> tuple[int, str]:
    done = CliRunner().invoke(program("nvct"), ["explain", text])
    return done.exit_code, done.output


def test_the_command_explains_a_message() -> None:
    status, said = explain("docker: Error: unknown or invalid runtime name: nvidia")

    assert status == 0
    assert said.startswith("Docker: The running dockerd does not know the runtime")
    assert "do: Run `nvct runtime configure --runtime=docker`." in said
    assert "reason: EngineNotReloaded" in said


def test_the_command_explains_an_error_of_nvct_by_its_code() -> None:
    status, said = explain("nvct: no GPU has the index 9; see `nvidia-smi -L` [unknown-device]")

    assert status == 0
    assert "reason: DeviceUnknown" in said


def test_an_unknown_message_is_said_to_be_unknown() -> None:
    done = CliRunner().invoke(program("nvct"), ["explain", "the dog ate it"])

    assert isinstance(done.exception, UsageError)
    assert done.exception.message == "this is no known message about GPUs"
    assert "nvct doctor" in done.exception.hint
