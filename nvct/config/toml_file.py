# SPDX-License-Identifier: Apache-2.0
"""Reads TOML files, and edits them in place: every other byte stays.

`toml_edit` edits the text. Afterwards a parser compares the new text with the old one: if they
differ in more than the requested change, the edit is an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from nvct.config import toml
from nvct.config.tables import ABSENT, KeyEdit, Path, Table, pruned, same
from nvct.config.toml_source import Noted
from nvct.errors import EngineConfigError

_POSITION = re.compile(r"(.*) \(at line (\d+), column (\d+)\)")


def decode(data: bytes, path: str) -> str:
    """Return a file's text, with its byte order mark; EngineConfigError if it is not UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise EngineConfigError(
            f"{path} is not TOML: line {line} is not UTF-8", hint="save the file as UTF-8"
        ) from error


def parse(data: bytes | str, path: str) -> Table:
    """Return a file's content; EngineConfigError if it is not TOML, as a Go template is not."""
    text = decode(data, path) if isinstance(data, bytes) else data
    try:
        document: Table = toml.loads(text.removeprefix("\ufeff"))
    except (ValueError, RecursionError) as error:
        raise _no_toml(text, path, str(error)) from error
    return document


def _no_toml(text: str, path: str, reason: str) -> EngineConfigError:
    if "{{" in text:
        line = text.count("\n", 0, text.index("{{")) + 1
        return EngineConfigError(
            f"{path} is a Go template (line {line} has {{{{), not the file that the engine reads",
            hint="name the file that is made from it",
        )
    match = _POSITION.fullmatch(reason)
    if match:
        message, line_number, column = match.groups()
        reason = f"line {line_number}, column {column}: {message[:1].lower()}{message[1:]}"
    return EngineConfigError(f"{path} is not TOML: {reason}", hint="correct the file")


def edit(data: bytes, edits: Sequence[KeyEdit], path: str) -> bytes:
    """Return a file with keys set or removed, and every other byte as it was.

    A dict sets its own keys and leaves the others of that table; ABSENT removes a key, or a table
    and its content. A key that already has its value keeps its spelling. Raises EngineConfigError
    if the file is not TOML, a table has another type, or the edit would change anything else.
    """
    text = data.decode("utf-8", "surrogateescape")
    expected = parse(text, path)
    edited = _edited(text, edits, path)
    for key, value in edits:
        put(expected, key, value)
    if not same(pruned(parse(edited, path)), pruned(expected)):
        raise EngineConfigError(
            f"{path} cannot be edited without changing other settings, too",
            hint="edit it by hand: `nvct runtime plan` shows the new settings",
        )
    return edited.encode("utf-8", "surrogateescape")


def _edited(text: str, edits: Sequence[KeyEdit], path: str) -> str:
    """Edit a text; its byte order mark and CRLF, which `toml_edit` does not handle, stay."""
    from nvct.config.toml_edit import delete, put

    mark = "\ufeff" if text.startswith("\ufeff") else ""
    crlf = "\r\n" in text and "\n" not in text.replace("\r\n", "")
    plain = text.removeprefix(mark)
    plain = plain.replace("\r\n", "\n") if crlf else plain
    open_end = plain != "" and not plain.endswith("\n")
    plain += "\n" if open_end else ""
    for key, value in edits:
        plain = delete(plain, key) if value is ABSENT else put(plain, key, value, path)
    plain = plain.removesuffix("\n") if open_end else plain
    return mark + (plain.replace("\n", "\r\n") if crlf else plain)


def table(document: Table, path: Iterable[str], where: str) -> Table:
    """Return the table at a path, or {}; EngineConfigError, with `where`, if it is not a table."""
    inner, names = document, []
    for name in path:
        names.append(name)
        value = inner.get(name, {})
        if not isinstance(value, dict):
            message = f"{where}: {'.'.join(names)} is {value!r:.40}, not a table"
            raise EngineConfigError(message, hint="correct the file")
        inner = value
    return inner


def put(document: Table, key: Path, value: object) -> None:
    """Set or remove a key as `edit` does; EngineConfigError if its parent is not a table."""
    for name in key[:-1]:
        inner = document.setdefault(name, {})
        if not isinstance(inner, dict):
            if value is ABSENT:
                return
            raise EngineConfigError(f"{'.'.join(key)} cannot be set: {name} is not a table")
        document = inner
    if value is ABSENT:
        document.pop(key[-1], None)
    elif isinstance(value, dict):
        document.setdefault(key[-1], {})
        for name, item in value.items():
            put(document, (key[-1], name), item)
    else:
        plain = value.value if isinstance(value, Noted) else value
        document[key[-1]] = list(plain) if isinstance(plain, tuple) else plain
