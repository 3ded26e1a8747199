# SPDX-License-Identifier: Apache-2.0
"""An option of any program is one field; a program is one folder, and one line of the table."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from nvct.agent.core import config_file
from nvct.agent.core.settings import Program, option
from nvct.agent.task_table import ENTRIES, PROGRAMS, Entry
from nvct.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings with a new option in one line, which is a flag, a variable, a key, and help."""

    config_file: str = option("", "A config file")
    new_option: str = option("a", "What is new", key="flags.newOption", choices=("a", "b"))
    excluded: tuple[str, ...] = ()


PROGRAM = Program(name="p", title="P", version="1", summary="It is new.", settings=Settings)


def resolved(words: list[str], env: dict[str, str]) -> Settings:
    return Settings(**config_file.resolve(PROGRAM, words, env)[0])


def test_a_new_option_is_one_field(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("flags: {newOption: b}\nresources: {exclude: [0]}\n")
    file = {"CONFIG_FILE": str(path)}

    assert resolved([], {}) == Settings()
    assert resolved([], {"NEW_OPTION": "b"}).new_option == "b"
    assert resolved(["-new-option", "b"], {"NEW_OPTION": "a"}).new_option == "b"
    of_file = Settings(config_file=str(path), new_option="b", excluded=("0",))
    assert resolved([], file) == of_file
    assert resolved([], {**file, "NEW_OPTION": "a"}).new_option == "a"
    with pytest.raises(UsageError, match="invalid --new-option option: 'c'"):
        resolved(["--new-option=c"], {})
    assert PROGRAM.help_text() == (
        "It is new.\n\nUsage: p [OPTIONS]\n\n"
        "  --config-file VALUE\n        A config file [CONFIG_FILE]\n"
        "  --new-option VALUE\n        What is new (a, b) [NEW_OPTION]\n        default: a\n"
        "  --version\n  --help\n"
    )


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.folder)
def test_each_line_of_the_table_names_a_folder_that_has_its_task(entry: Entry) -> None:
    assert callable(entry.module("task").make)
    if entry.program:
        settings = entry.module("settings")
        assert PROGRAMS[settings.PROGRAM.name] is entry
        assert callable(settings.resolve)


def test_every_option_of_every_program_has_a_flag_a_variable_and_help() -> None:
    for entry in PROGRAMS.values():
        program: Program = entry.module("settings").PROGRAM
        flags = [flag for each in program.options for flag in each.flags]
        assert len(flags) == len(set(flags)), entry.program
        assert all(each.env and each.help for each in program.options)
