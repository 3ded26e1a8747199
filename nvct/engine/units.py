# SPDX-License-Identifier: Apache-2.0
"""Reads systemd units: the command line with which an engine would be started.

`systemctl show` cannot replace it: it needs a running systemd, does not quote arguments and does
not read EnvironmentFile=. Contract: only reads; supports what engines' units use of
systemd.unit(5) and systemd.service(5): drop-ins, an emptied ExecStart=, Environment=,
EnvironmentFile= and $VARIABLE in arguments.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from nvct.engine.model import Files
from nvct.errors import DocumentError

# systemd.unit(5), "Unit File Load Path": a file in an earlier folder hides those in later ones.
FOLDERS = (
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
)
_VARIABLE = re.compile(r"\$(\$|\{\w+\}|\w+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """The program that a unit starts."""

    name: str
    files: tuple[str, ...]
    args: tuple[str, ...] = ()  # the command line of the last ExecStart, with variables replaced
    env: Mapping[str, str] = field(default_factory=dict)


def find(name: str, files: Files) -> Unit | None:
    """Return a unit, None if there is none (a masked one, a link to /dev/null, is none).

    Raises:
        DocumentError: a file of it cannot be read.
    """
    texts = ((f"{folder}/{name}", _text(f"{folder}/{name}", files)) for folder in FOLDERS)
    path, text = next(((path, text) for path, text in texts if text is not None), ("", ""))
    if not text:
        return None
    paths = [path, *_drop_ins(name, files)]
    command: list[str] = []
    env: dict[str, str] = {}
    for path in paths:
        for key, value in _settings(_text(path, files) or ""):
            if key == "ExecStart":
                command = _arguments(value)  # an empty value resets the setting
            elif key == "Environment":
                env |= _pairs(_arguments(value))
            elif key == "EnvironmentFile":
                env |= _environment(value.removeprefix("-"), files)
    return Unit(name=name, files=tuple(paths), args=tuple(_expanded(command, env)), env=env)


def _drop_ins(name: str, files: Files) -> list[str]:
    """Return a unit's drop-ins sorted by name; of equal names, that of the earlier folder."""
    by_name: dict[str, str] = {}
    for folder in reversed(FOLDERS):
        for path in files.names(f"{folder}/{name}.d", ".conf"):
            by_name[path.rpartition("/")[2]] = path
    return [by_name[key] for key in sorted(by_name)]


def _settings(text: str) -> Iterator[tuple[str, str]]:
    """Yield the settings of [Service]; a line that ends in a backslash is continued."""
    section = ""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith(("#", ";"))]
    joined = re.sub(r"\\\n", " ", "\n".join(lines))
    for line in joined.splitlines():
        if line.strip().startswith("["):
            section = line.strip()
        elif section == "[Service]" and "=" in line:
            key, _, value = line.partition("=")
            yield key.strip(), value.strip()


def _arguments(text: str) -> list[str]:
    """Split a command line, without the prefixes of the program (`-`, `@`, `:`, `+`, `!`)."""
    try:
        arguments = shlex.split(text)
    except ValueError:
        arguments = text.split()
    return [arguments[0].lstrip("-@:+!"), *arguments[1:]] if arguments else []


def _pairs(assignments: list[str]) -> dict[str, str]:
    return dict(word.split("=", 1) for word in assignments if "=" in word)


def _environment(path: str, files: Files) -> dict[str, str]:
    text = _text(path, files) or ""
    lines = (line.strip() for line in text.splitlines())
    pairs = (line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
    return {name.strip(): value.strip().strip("\"'") for name, value in pairs}


def _expanded(arguments: list[str], env: Mapping[str, str]) -> Iterator[str]:
    """Yield the words with variables replaced; a lone $NAME becomes several words."""

    def value(match: re.Match[str]) -> str:
        name = match[1].strip("{}")
        return "$" if name == "$" else env.get(name, "")

    for word in arguments:
        if re.fullmatch(r"\$\w+", word):
            yield from env.get(word[1:], "").split()
        else:
            yield _VARIABLE.sub(value, word)


def _text(path: str, files: Files) -> str | None:
    try:
        data = files.read(path)
    except DocumentError:
        return ""  # masked, or unreadable for systemd, too
    return None if data is None else data.decode(errors="replace")
