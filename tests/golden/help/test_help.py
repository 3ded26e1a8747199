# SPDX-License-Identifier: Apache-2.0
"""--help of every command, of both programs, is a golden file: a change of a flag shows."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import click
import pytest

from nvct.cli.main import PROGRAMS, program

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
        if PROGRAMS["nvct"][0][words[1]] != PROGRAMS["nvidia-ctk"][0].get(words[1])
    ),
]


SHOW = """
import json, sys
from click.testing import CliRunner
from nvct.cli.main import program
shown = {}
for name, *rest in json.load(sys.stdin):
    done = CliRunner().invoke(program(name), rest, prog_name=name, terminal_width=80)
    assert done.exit_code == 0, done.output
    shown[" ".join([name, *rest])] = done.output
print(json.dumps(shown))
"""


@pytest.fixture(scope="module")
def shown() -> dict[str, str]:
    """Run every command line in one process of its own: click keeps flags of earlier contexts."""
    lines = [[*words, flag] for words in COMMANDS for flag in ("--help", "-h")]
    done = subprocess.run(
        [sys.executable, "-c", SHOW], input=json.dumps(lines), capture_output=True, text=True,
        check=True, timeout=60,
    )  # fmt: skip
    found: dict[str, str] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("words", COMMANDS, ids="-".join)
def test_help_is_as_recorded(
    words: tuple[str, ...], shown: dict[str, str], golden: Callable[[str, str], None]
) -> None:
    golden(f"help/{'-'.join(words)}.txt", shown[f"{' '.join(words)} --help"])


def test_short_help_is_the_same(shown: dict[str, str]) -> None:
    names = [" ".join(words) for words in COMMANDS]
    assert [name for name in names if shown[f"{name} -h"] != shown[f"{name} --help"]] == []


def test_every_golden_file_has_its_command() -> None:
    files = {name for name in os.listdir(os.path.dirname(__file__)) if name.endswith(".txt")}

    assert files == {f"{'-'.join(words)}.txt" for words in COMMANDS}
