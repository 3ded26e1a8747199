# SPDX-License-Identifier: Apache-2.0
"""--format=json and --json: the same in every command that lists or shows."""

import json

import click
import pytest
from click.testing import CliRunner

from nvct.cli.options import format_option
from tests.support.commands import invoke

COMMANDS = [
    ("nvct", "list"), ("nvct", "status"), ("nvct", "explain"), ("nvct", "farm", "list"),
    ("nvct", "runtime", "list"), ("nvct", "runtime", "status"), ("nvct", "runtime", "explain"),
    ("nvct", "ps"), ("nvct", "log"), ("nvct", "doctor"), ("nvct", "cluster", "status"),
    ("nvct", "mig", "configs"), ("nvct", "mig", "profiles"), ("nvct", "mig", "holders"),
    ("nvct", "sim", "list"), ("nvct", "mig", "plan"), ("nvct", "runtime", "plan"),
    ("nvct", "farm", "verify"), ("nvidia-ctk", "cdi", "diff"),
    ("nvidia-ctk", "cdi", "list"), ("nvidia-ctk", "cdi", "check"),
]  # fmt: skip


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_every_command_that_shows_takes_both(arguments: tuple[str, ...]) -> None:
    output = invoke(arguments[0], [*arguments[1:], "--help"]).stdout

    assert "--format" in output
    assert "--json" in output


@pytest.mark.parametrize(
    ("arguments", "form"),
    [([], "text"), (["--json"], "json"), (["--format=json"], "json"), (["--format", "text"], "text"),
     (["--format=bind", "--json"], "json"), (["--json", "--format=bind"], "json")],
)  # fmt: skip
def test_json_is_short_for_its_format(arguments: list[str], form: str) -> None:
    @click.command()
    @format_option("text", "bind")
    def show(*, form: str) -> None:
        click.echo(form)

    assert CliRunner().invoke(show, arguments).stdout == f"{form}\n"


def test_cdi_devices_are_a_list_of_names() -> None:
    message = invoke("nvidia-ctk", ["cdi", "list", "--json", "--spec-dir=/none"])

    assert json.loads(message.stdout) == []
    assert message.stderr == "Found 0 CDI devices\n"
