# SPDX-License-Identifier: Apache-2.0
"""Sets or removes one member of an inline table in tomlkit's tree; the rest keeps its text."""

from __future__ import annotations

import tomlkit
from tomlkit.items import InlineTable, Item, Table

from nvct.engine.toml_source import Body, Path
from nvct.engine.toml_value import key_text, value_text
from nvct.errors import EngineConfigError


def put(table: Item, path: Path, value: object, quote: str, where: str) -> Item:
    """Return an inline table in which a path has a value.

    Raises:
        EngineConfigError: the member is of another kind.
    """
    body: Body = table.value.body
    for index, (key, item) in enumerate(body):
        if key is None or key.key != path[0]:
            continue
        if isinstance(item, Table):  # a dotted key
            break
        if len(path) == 1 and isinstance(item, InlineTable):
            if value == {}:
                return table
            raise EngineConfigError(f"{where} is a table, not a value")
        if len(path) == 1:
            body[index] = (key, with_trivia_of(item, item_of(value_text(value, quote))))
            return table
        if not isinstance(item, InlineTable):
            parent = where.rsplit(".", len(path) - 1)[0]
            raise EngineConfigError(f"{parent} is a value, not a table", hint="correct the file")
        body[index] = (key, put(item, path[1:], value, quote, where))
        return table
    return with_trivia_of(table, item_of(_with(table.as_string(), path, value, quote)))


def _with(text: str, path: Path, value: object, quote: str) -> str:
    """Return the text of an inline table with a member after the others."""
    inner = value_text(value, quote)
    for name in reversed(path[1:]):
        inner = f"{{ {key_text(name, quote)} = {inner} }}"
    content = text[1:-1].rstrip()
    if not content:
        return f"{{ {key_text(path[0], quote)} = {inner} }}"
    space = text[1 + len(content) : -1]
    return f"{{{content}, {key_text(path[0], quote)} = {inner}{space}}}"


def remove(table: Item, path: Path) -> None:
    """Remove a member of an inline table, if it exists."""
    body: Body = table.value.body
    members = [n for n, (key, _item) in enumerate(body) if key is not None]
    for number, index in enumerate(members):
        key, item = body[index]
        if key is None or key.key != path[0]:
            continue
        if len(path) > 1:
            if isinstance(item, (InlineTable, Table)):
                remove(item, path[1:])
            continue
        if number:  # with what separates it from the one before
            body[members[number - 1]][1].trivia.trail = item.trivia.trail
            del body[members[number - 1] + 1 : index + 1]
        else:
            del body[index : members[1] if len(members) > 1 else len(body)]
        return


def with_trivia_of(old: Item, new: Item) -> Item:
    """Return a value with the white space and the comment of another around it."""
    new.trivia.indent = old.trivia.indent
    new.trivia.comment_ws = old.trivia.comment_ws
    new.trivia.comment = old.trivia.comment
    new.trivia.trail = old.trivia.trail
    return new


def item_of(text: str) -> Item:
    """Return a value from its text."""
    return next(item for key, item in tomlkit.parse(f"key = {text}\n").body if key is not None)
