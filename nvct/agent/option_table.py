# SPDX-License-Identifier: Apache-2.0
"""Tables of the options of the agent's programs: flags, variables, keys of the config file.

Flags are Go's, as those of NVIDIA's programs: one dash equals two, and a switch takes a value only
after an equals sign. Unlike there, a word that belongs to no flag is refused: after
`--fail-on-init-error false` the incumbents ignore all flags.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from nvct.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any, Literal, TypeAlias

    Kind: TypeAlias = Literal["text", "switch", "words", "numbers", "duration"]

TRUE = ("1", "t", "T", "true", "TRUE", "True")  # strconv.ParseBool
FALSE = ("0", "f", "F", "false", "FALSE", "False")
CONFIG_FILE = "config-file"
"""The flag of the config file, which every program has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One setting.

    Attributes:
        flags: without dashes; the first one is the documented name.
        env: variables; the first one that is set counts.
        field: of Settings, "" for one that is used elsewhere.
        key: of the config file, with dots; "" if it has none.
        choices: the possible values, empty if there are no others to refuse.
    """

    flags: tuple[str, ...]
    env: tuple[str, ...]
    field: str
    help: str
    kind: Kind = "text"
    key: str = ""
    choices: tuple[str, ...] = ()

    def choices_text(self) -> str:
        """Return the possible values for a sentence; the empty one is left out."""
        return ", ".join(filter(None, self.choices))


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The options of a program.

    Attributes:
        program: its name.
        summary: what it does, a sentence.
        options: in the order of --help.
    """

    program: str
    summary: str
    options: tuple[Option, ...]

    def from_command_line(self, words: Sequence[str]) -> dict[str, Any]:
        """Return the values of flags, by the first name of each.

        Raises:
            UsageError: a flag is unknown or has a malformed value, or a word belongs to no flag.
        """
        by_flag = {flag: option for option in self.options for flag in option.flags}
        values: dict[str, Any] = {}
        rest = list(words)
        while rest:
            word = rest.pop(0)
            name, equals, text = word.lstrip("-").partition("=")
            option = by_flag.get(name) if word.startswith("-") else None
            if option is None:
                hint = "a switch takes its value after =, as --fail-on-init-error=false"
                raise UsageError(
                    f"{word!r} is no option of {self.program}",
                    hint="see --help" if word.startswith("-") else hint,
                )
            if not equals and option.kind == "switch":
                text = "true"
            elif not equals:
                if not rest:
                    raise UsageError(f"--{name} needs a value")
                text = rest.pop(0)
            value = _parsed(option, text, f"--{name}")
            if option.kind in ("words", "numbers"):
                value = (*values.get(option.flags[0], ()), *value)
            values[option.flags[0]] = value
        return values

    def from_environment(self, env: Mapping[str, str]) -> dict[str, Any]:
        """Return the values of variables, by the first flag of each option.

        Raises:
            UsageError: a variable has a malformed value.
        """
        values = {}
        for option in self.options:
            for name in option.env:
                if name in env:
                    empty_switch = option.kind == "switch" and not env[name]
                    text = "false" if empty_switch else env[name]
                    values[option.flags[0]] = _parsed(option, text, name)
                    break
        return values

    def from_file(self, document: Mapping[str, Any], path: str) -> dict[str, Any]:
        """Return the values of a config file's flags, by the first flag of each option.

        Raises:
            UsageError: a key has a value of another type.
        """
        values = {}
        for option in self.options:
            value: Any = document
            for part in option.key.split("."):
                value = value.get(part) if isinstance(value, dict) else None
            if option.key and value is not None:
                values[option.flags[0]] = typed(option.kind, value, f"{option.key} in {path}")
        return values

    def fields(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return values by the fields of the settings.

        Raises:
            UsageError: a value is not one of its choices.
        """
        fields = {}
        for option in self.options:
            flag = option.flags[0]
            if flag not in values or not option.field:
                continue
            value = values[flag]
            for word in value if isinstance(value, tuple) else (value,):
                if option.choices and word not in option.choices:
                    raise UsageError(
                        f"invalid --{flag} option: {word!r}",
                        hint=f"it is one of {option.choices_text()}",
                    )
            fields[option.field] = value
        return fields

    def help_text(self, defaults: Mapping[str, object]) -> str:
        """Return the text of --help, with the defaults of fields."""
        lines = [self.summary, "", f"Usage: {self.program} [OPTIONS]", ""]
        for option in self.options:
            names = ", ".join(f"--{flag}" for flag in option.flags)
            default = defaults.get(option.field)
            shown = ",".join(map(str, default)) if isinstance(default, tuple) else default
            lines.append(f"  {names}{'' if option.kind == 'switch' else ' VALUE'}")
            choices = f" ({option.choices_text()})" if option.choices else ""
            lines.append(f"        {option.help}{choices} [{option.env[0]}]")
            if shown not in (None, "", False):
                lines.append(f"        default: {str(shown).lower() if shown is True else shown}")
        lines += ["  --version", "  --help", ""]
        return "\n".join(lines)


def _parsed(option: Option, text: str, name: str) -> Any:  # noqa: ANN401 - by the option's kind
    if option.kind == "switch":
        if text not in TRUE + FALSE:
            raise UsageError(f"{name} must be true or false, not {text!r}")
        return text in TRUE
    if option.kind in ("text", "duration"):
        return text
    words = tuple(word.strip() for word in text.split(","))
    if option.kind == "words":
        return words
    numbers = [word for word in words if word]
    if not all(word.isascii() and word.isdigit() for word in numbers):
        raise UsageError(f"{name} must be numbers, not {text!r}")
    return tuple(int(word) for word in numbers)


def typed(kind: Kind, value: object, name: str) -> Any:  # noqa: ANN401 - same
    """Return a value of a config file.

    Raises:
        UsageError: it has another type.
    """
    if kind == "duration" and type(value) in (int, float):
        return f"{int(cast('float', value))}ns"
    if kind == "words" and isinstance(value, str):
        return (value,)
    of_member = {"switch": bool, "numbers": int}.get(kind, str)
    is_list = kind in ("words", "numbers")
    members = value if is_list and isinstance(value, list) else [value]
    wrong = any(type(one) is not of_member for one in members)
    if wrong or is_list is not isinstance(value, list):
        expected = {"switch": "true or false", "words": "strings", "numbers": "numbers"}
        raise UsageError(f"{name} must be {expected.get(kind, 'a string')}, not {value!r}")
    return tuple(members) if is_list else value
