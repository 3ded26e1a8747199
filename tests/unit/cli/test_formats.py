# SPDX-License-Identifier: Apache-2.0
"""--format=json and --json: the same in every command that lists or shows."""

from __future__ import annotations

import json

import click
import pytest
from click.testing import CliRunner

from nvct.cli.formats import format_option
from nvct.cli.main import program

COMMANDS = [
    ("nvct", "list"), ("nvct", "status"), ("nvct", "explain"), ("nvct", "farm", "list"),
    ("nvct", "runtime", "list"), ("nvct", "runtime", "status"), ("nvct", "runtime", "explain"),
    ("nvidia-ctk", "cdi", "list"), ("nvidia-ctk", "cdi", "check"),
]  # fmt: skip


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_that_shows_takes_both(words: tuple[str, ...]) -> None:
    said = CliRunner().invoke(program(words[0]), [*words[1:], "--help"], prog_name=words[0]).stdout

    assert "--format" in said
    assert "--json" in said


@pytest.mark.parametrize(
    ("words", "form"),
    [([], "text"), (["--json"], "json"), (["--format=json"], "json"), (["--format", "text"], "text"),
     (["--format=bind", "--json"], "json"), (["--json", "--format=bind"], "json")],
)  # fmt: skip
def test_json_is_short_for_its_format(words: list[str], form: str) -> None:
    @click.command()
    @format_option("text", "bind")
    def show(*, form: str) -> None:
        click.echo(form)

    assert CliRunner().invoke(show, words).stdout == f"{form}\n"


def test_cdi_devices_are_a_list_of_names() -> None:
    said = CliRunner().invoke(program("nvidia-ctk"), ["cdi", "list", "--json", "--spec-dir=/none"])

    assert json.loads(said.stdout) == []
    assert said.stderr == "Found 0 CDI devices\n"
