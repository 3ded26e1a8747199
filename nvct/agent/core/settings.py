# SPDX-License-Identifier: Apache-2.0
"""Settings of the agent's programs: a field of a dataclass is a flag, a variable and a key.

Flags follow Go, as in NVIDIA's programs: one dash equals two, and a switch takes a value only
after an equals sign. Unlike NVIDIA's programs, which ignore all flags after
`--fail-on-init-error false`, these refuse a word that belongs to no flag.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, Literal, TypeAlias, TypeVar, cast

from nvct.errors import UsageError

T = TypeVar("T")
Kind: TypeAlias = Literal["text", "switch", "words", "numbers", "duration"]

TRUE = ("1", "t", "T", "true", "TRUE", "True")  # strconv.ParseBool
FALSE = ("0", "f", "F", "false", "FALSE", "False")
CONFIG_FILE = "config_file"  # The field of the config file, if a program reads one
KINDS: Mapping[str, Kind] = {
    "bool": "switch", "bool | None": "switch",
    "tuple[str, ...]": "words", "tuple[int, ...]": "numbers",
}  # fmt: skip
"""The kind by a field's type; any other type is text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """The flags, variables and config key that set one field of the settings."""

    field: str
    flags: tuple[str, ...]  # without dashes; the first one is the documented name
    env: tuple[str, ...]  # variables; the first one that is set counts
    help: str
    kind: Kind
    key: str  # of the config file, with dots; "" if it has none
    choices: tuple[str, ...]  # the allowed values; empty if all are allowed
    default: str  # as --help shows it

    def choices_text(self) -> str:
        """Return the allowed values for a sentence, without the empty one."""
        return ", ".join(filter(None, self.choices))


def option(
    default: T,
    text: str,
    *,
    flags: str = "",  # names, separated by blanks; by default the field's name
    env: str = "",  # variables, separated by blanks; by default the field's name in capitals
    key: str = "",
    kind: Kind | None = None,
    choices: tuple[str, ...] = (),
    shown: str | None = None,  # the default as --help shows it, if that is not `default`
) -> T:
    """Declare a field that is an option, for a dataclass of settings."""
    how = {
        "help": text, "flags": flags, "env": env, "key": key, "kind": kind, "choices": choices,
        "shown": shown,
    }  # fmt: skip
    return field(default=default, metadata=how)


@cache
def options_of(settings: type) -> tuple[Option, ...]:
    """Return the options that a dataclass of settings declares, in its order."""
    return tuple(
        Option(
            field=each.name,
            flags=tuple(each.metadata["flags"].split()) or (each.name.replace("_", "-"),),
            env=tuple(each.metadata["env"].split()) or (each.name.upper(),),
            help=each.metadata["help"],
            kind=each.metadata["kind"] or KINDS.get(str(each.type), "text"),
            key=each.metadata["key"],
            choices=each.metadata["choices"],
            default=_shown(each.default, each.metadata["shown"]),
        )
        for each in fields(settings)
        if each.metadata
    )


def _shown(default: object, shown: str | None) -> str:
    if shown is not None:
        return shown
    if default in (None, False):
        return ""
    text = ",".join(map(str, default)) if isinstance(default, tuple) else str(default)
    return text.lower() if default is True else text


class OfNode:
    """Settings with the option `node_name`."""

    __slots__ = ()
    node_name: str

    @property
    def node(self) -> str:
        """Return the name of the Node."""
        return self.node_name or os.uname().nodename


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A task of the agent with its own command line; a wrong word or value raises UsageError."""

    name: str
    title: str  # what NVIDIA's program prints before its version
    version: str  # the version of NVIDIA's program that has these options
    summary: str
    settings: type  # the dataclass that declares its options, in the order of --help
    only: tuple[str, ...] = ()  # the fields that are its options, if not all of them are
    # by their name, which is the first word instead of an option
    commands: Mapping[str, Callable[[], None]] = field(default_factory=dict)

    @property
    def options(self) -> tuple[Option, ...]:
        """Return the options in the order of --help."""
        known = {each.field: each for each in options_of(self.settings)}
        return tuple(known[name] for name in self.only or known)

    def values(self, words: Sequence[str], env: Mapping[str, str]) -> dict[str, Any]:
        """Return the values by field; the command line takes precedence over the environment."""
        return self.checked({**self.from_environment(env), **self.from_command_line(words)})

    def from_command_line(self, words: Sequence[str]) -> dict[str, Any]:
        """Return the values of flags by field."""
        by_flag = {flag: option for option in self.options for flag in option.flags}
        values: dict[str, Any] = {}
        rest = list(words)
        while rest:
            word = rest.pop(0)
            name, equals, text = word.lstrip("-").partition("=")
            option = by_flag.get(name) if word.startswith("-") else None
            if option is None:
                hint = "a switch takes its value after =, as in --fail-on-init-error=false"
                raise UsageError(
                    f"{word!r} is not an option of {self.name}",
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
                value = (*values.get(option.field, ()), *value)
            values[option.field] = value
        return values

    def from_environment(self, env: Mapping[str, str]) -> dict[str, Any]:
        """Return the values of variables by field."""
        values = {}
        for option in self.options:
            for name in option.env:
                if name in env:
                    empty_switch = option.kind == "switch" and not env[name]
                    text = "false" if empty_switch else env[name]
                    values[option.field] = _parsed(option, text, name)
                    break
        return values

    def from_file(self, document: Mapping[str, Any], path: str) -> dict[str, Any]:
        """Return the values of a config file's keys by field."""
        values = {}
        for option in self.options:
            value: Any = document
            for part in option.key.split("."):
                value = value.get(part) if isinstance(value, dict) else None
            if option.key and value is not None:
                values[option.field] = typed(option.kind, value, f"{option.key} in {path}")
        return values

    def checked(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values; UsageError if one is not among the option's choices."""
        for option in self.options:
            value = values.get(option.field, ())
            for word in value if isinstance(value, tuple) else (value,):
                if option.choices and word not in option.choices:
                    raise UsageError(
                        f"invalid --{option.flags[0]} option: {word!r}",
                        hint=f"it is one of {option.choices_text()}",
                    )
        return dict(values)

    def help_text(self) -> str:
        """Return the text of --help."""
        lines = [self.summary, "", f"Usage: {self.name} [OPTIONS]", ""]
        for option in self.options:
            names = ", ".join(f"--{flag}" for flag in option.flags)
            lines.append(f"  {names}{'' if option.kind == 'switch' else ' VALUE'}")
            choices = f" ({option.choices_text()})" if option.choices else ""
            lines.append(f"        {option.help}{choices} [{option.env[0]}]")
            if option.default:
                lines.append(f"        default: {option.default}")
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
    """Return a config file's value, converted to its kind; UsageError if it has another type."""
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


UNITS_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
PART = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|µs|ms|s|m|h)")
LONGEST_S = (2**63 - 1) / 1e9
"""Go counts nanoseconds in 64 bits, and refuses a longer duration."""


def duration_s(text: str, hint: str = "") -> float:
    """Return the seconds of a duration in Go's form (package time, ParseDuration).

    UsageError if the text is not a duration.
    """
    unsigned = text.removeprefix("+")
    if unsigned in ("0", "-0"):
        return 0.0
    parts = PART.findall(unsigned)
    total = sum(float(number) * UNITS_S[unit] for number, unit in parts)
    is_whole = "".join(f"{number}{unit}" for number, unit in parts) == unsigned
    if not parts or not is_whole or total > LONGEST_S:
        raise UsageError(f"the interval {text!r} is not a duration", hint=hint)
    return total
