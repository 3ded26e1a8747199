# SPDX-License-Identifier: Apache-2.0
"""Parses command lines as GNU argp does, which nvidia-container-cli uses.

Short options can be combined (-lb) and can have their value attached (-dFILE). Long options can be
abbreviated (--dev); their value follows "=" or is the next word. An optional value must be
attached: `--user configure` is --user without a value, then configure. Contract: no I/O.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from nvct.errors import UsageError

WIDTH, COLUMN = 79, 30


class Option(NamedTuple):
    """An option: its names, the name of its value ("" for a switch), and what it does."""

    long: str
    short: str
    value: str
    text: str
    value_may_be_missing: bool = False


HELP = Option("help", "h", "", "Print this")
VERSION = Option("version", "V", "", "Print the version")
USUAL = (HELP, VERSION)


class Parsed:
    """A parsed command line.

    Attributes:
        values: values of each given option, by its long name; None for a missing value.
    """

    __slots__ = ("arguments", "values")

    def __init__(self) -> None:
        self.values: dict[str, list[str | None]] = {}
        self.arguments: list[str] = []

    def has(self, name: str) -> bool:
        """Report whether an option was given."""
        return name in self.values

    def text(self, name: str) -> str:
        """Return the last value of an option, "" if there is none."""
        return self.values.get(name, [None])[-1] or ""

    def texts(self, name: str) -> list[str]:
        """Return all values of an option."""
        return [value for value in self.values.get(name, []) if value is not None]

    def joined(self, name: str) -> str | None:
        """Return the values of a repeated option as one comma list, None if not given."""
        return ",".join(self.texts(name)) if self.has(name) else None


def parse(args: Sequence[str], options: Iterable[Option], *, in_order: bool = False) -> Parsed:
    """Parse a command line.

    Args:
        options: the valid options, besides USUAL.
        in_order: stop at the first word that is not an option.

    Raises:
        UsageError: an option is unknown or ambiguous, lacks its value or takes none.
    """
    valid = (*options, *USUAL)
    parsed = Parsed()
    remaining = list(args)
    while remaining:
        word = remaining.pop(0)
        if word == "--":
            parsed.arguments += remaining
            break
        if word.startswith("--"):
            _long(word[2:], remaining, valid, parsed)
        elif word.startswith("-") and word != "-":
            _short(word[1:], remaining, valid, parsed)
        elif in_order:
            parsed.arguments += [word, *remaining]
            break
        else:
            parsed.arguments.append(word)
    return parsed


def _long(text: str, remaining: list[str], valid: Sequence[Option], parsed: Parsed) -> None:
    name, equals, attached = text.partition("=")
    fits = [option for option in valid if option.long == name] or [
        option for option in valid if option.long.startswith(name)
    ]
    if not fits:
        raise UsageError(f"no option --{name}")
    if len(fits) > 1:
        names = " or ".join(f"--{option.long}" for option in fits)
        raise UsageError(f"option --{name} is ambiguous: {names}")
    _store(fits[0], attached if equals else None, remaining, parsed)


def _short(text: str, remaining: list[str], valid: Sequence[Option], parsed: Parsed) -> None:
    while text:
        letter, text = text[0], text[1:]
        option = HELP if letter == "?" else next((o for o in valid if o.short == letter), None)
        if option is None:
            raise UsageError(f"no option -{letter}")
        if option.value:
            _store(option, text or None, remaining, parsed)
            return
        _store(option, None, remaining, parsed)


def _store(option: Option, attached: str | None, remaining: list[str], parsed: Parsed) -> None:
    value = attached
    if attached is not None and not option.value:
        raise UsageError(f"option --{option.long} takes no value, and {attached!r} is one")
    if attached is None and option.value and not option.value_may_be_missing:
        if not remaining:
            raise UsageError(f"option --{option.long} needs a value: {option.value}")
        value = remaining.pop(0)
    parsed.values.setdefault(option.long, []).append(value)


def usage(head: str, text: str, options: Iterable[Option], sections: str = "") -> str:
    """Return the help of a command: synopsis, description, options."""
    lines = [f"Usage: {head}", "", *textwrap.wrap(text, WIDTH), "", "Options:"]
    for option in (*options, *USUAL):
        value = f"={option.value}" if option.value else ""
        if option.value_may_be_missing:
            value = f"[{value}]"
        short = f"-{option.short}, " if option.short else "    "
        name = f"  {short}--{option.long}{value}"
        lines += _entry(name, option.text)
    return "\n".join(lines) + "\n" + sections


def section(title: str, entries: Iterable[tuple[str, str]]) -> str:
    """Return an additional section of a help text."""
    lines = ["", f"{title}:"]
    for name, text in entries:
        lines += _entry(f"  {name}", text)
    return "\n".join(lines) + "\n"


def _entry(name: str, text: str) -> list[str]:
    wrapped = textwrap.wrap(text, WIDTH - COLUMN)
    if len(name) > COLUMN - 2:
        return [name, *(" " * COLUMN + line for line in wrapped)]
    return [name.ljust(COLUMN) + wrapped[0], *(" " * COLUMN + line for line in wrapped[1:])]
