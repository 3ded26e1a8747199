# SPDX-License-Identifier: Apache-2.0
"""--help of every command, of both programs, is a golden file: a change of a flag shows."""

from __future__ import annotations

import os

import click
import pytest
from click.testing import CliRunner

from nvct.cli.main import PROGRAMS, program

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HOOK = "hook"  # its --help is nvidia-cdi-hook's


def walk(group: click.Group, words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if name == HOOK:
            continue
        yield (*words, name)
        if isinstance(command, click.Group):
            yield from walk(command, (*words, name))


# What both programs have is the same under both names: nvct's own group shows it once more.
COMMANDS = [
    ("nvct",),
    ("nvidia-ctk",),
    *walk(program("nvidia-ctk"), ("nvidia-ctk",)),
    *(
        words
        for words in walk(program("nvct"), ("nvct",))
        if words[1] not in PROGRAMS["nvidia-ctk"][0]
    ),
]


@pytest.mark.parametrize("words", COMMANDS, ids="-".join)
def test_help_is_as_recorded(words: tuple[str, ...], golden: Callable[[str, str], None]) -> None:
    name, *rest = words

    done = CliRunner().invoke(
        program(name), [*rest, "--help"], prog_name=name, terminal_width=80, env={}
    )

    assert done.exit_code == 0, done.output
    golden(f"help/{'-'.join(words)}.txt", done.output)


@pytest.mark.parametrize("words", COMMANDS, ids="-".join)
def test_short_help_is_the_same(words: tuple[str, ...]) -> None:
    name, *rest = words
    long, short = (
        CliRunner().invoke(program(name), [*rest, flag], prog_name=name).output
        for flag in ("--help", "-h")
    )

    assert short == long != ""


def test_every_golden_file_has_its_command() -> None:
    files = {name for name in os.listdir(os.path.dirname(__file__)) if name.endswith(".txt")}

    assert files == {f"{'-'.join(words)}.txt" for words in COMMANDS}
