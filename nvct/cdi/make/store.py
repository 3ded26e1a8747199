# SPDX-License-Identifier: Apache-2.0
"""Writes CDI specs: atomically, deterministically, with the lowest cdiVersion.

Cold side. Members have the order of `nvct.cdi.types`, array elements keep theirs. In YAML every
string that a parser may read as another type is quoted: a device "0", "0:1" or "1e3". PyYAML's own
writer takes ten times as long, and quotes less than go-yaml needs.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator
from typing import Any

from nvct.cdi import versions
from nvct.cdi.read.validate import validate
from nvct.cdi.types import Spec
from nvct.errors import DocumentError, HostError, OSErrorsAs, UsageError
from nvct.linux.files import read_bytes, write_atomic
from nvct.linux.folders import make_folders, missing_folders

FORMATS = ("yaml", "json")
STDOUT = ("", "-")
MODE = 0o644


def check_format(name: str) -> str:
    """Return the name of a format in lower case. Raises UsageError if the format is unknown."""
    if name.lower() not in FORMATS:
        raise UsageError(f"{name!r} is not a format of a CDI spec", hint="yaml or json")
    return name.lower()


def dumps(
    spec: Spec,
    format: str = "yaml",  # noqa: A002  as the option
    comment: str = "",  # whole lines before the YAML; JSON has no comments
    source: str = "the CDI spec",
) -> bytes:
    """Return a spec file's content; CdiSpecError, or UsageError for an unknown format."""
    lowest: Any = {**spec, "cdiVersion": versions.minimum_version(spec)}
    ordered: Any = validate(lowest, source=source)
    if format == "json":
        return json.dumps(ordered, indent=2, ensure_ascii=False).encode() + b"\n"
    check_format(format)
    return f"{comment}{yaml_text(ordered)}".encode()


def save(
    spec: Spec,
    path: str,
    format: str | None = None,  # noqa: A002
    comment: str = "",
    *,
    follow: bool = False,
) -> str:
    """Write a spec to a file atomically, mode 0644; return the file's path.

    A path without an extension that engines read gets .yaml or .json. Without a format, the
    extension decides. With `follow`, a link at the path is followed, and a pipe or character
    device, such as /dev/stdout, is written directly. Callers must not follow links in a folder of
    CDI specs, because a device plugin with no other rights can write there. Raises CdiSpecError
    and UsageError as `dumps`, HostError if the file cannot be written, UnsafePathError if it is
    not a regular file.
    """
    is_stream = follow and _is_stream(path)
    ending = os.path.splitext(path)[1]
    if not is_stream and ending not in {".json", ".yaml", ".yml"}:
        path += f".{format or 'yaml'}"
    usual = "json" if ending == ".json" and not is_stream else "yaml"
    data = dumps(spec, format or usual, comment, source=path)
    with OSErrorsAs(
        HostError,
        f"CDI spec {path} cannot be written",
        hint="choose another --output, or run as root",
    ):
        if is_stream:
            with open(path, "wb") as file:
                file.write(data)
            return path
        make_folders(missing_folders(path))
        # An unchanged file is not written: engines that watch the folder would read all files.
        if not _holds(path, data, follow=follow):
            write_atomic(path, data, mode=MODE, follow=follow)
    return path


def _holds(path: str, data: bytes, *, follow: bool) -> bool:
    try:
        status = os.stat(path, follow_symlinks=follow)
        return status.st_mode == stat.S_IFREG | MODE and read_bytes(path) == data
    except (OSError, DocumentError):
        return False


def _is_stream(path: str) -> bool:
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)


# Begins like a path, a word or an option; has no blanks, quotes and indicators. A colon is
# permitted only inside.
_PLAIN = re.compile(r"(?:--?)?[A-Za-z_/](?:[A-Za-z0-9_/.=+@-]|:(?=[A-Za-z0-9_/.:-]))*(?<!:)")
# Words that YAML 1.1 parsers read as a boolean or null (yaml.org/type/bool.html).
_WORDS = frozenset(("y", "n", "yes", "no", "true", "false", "on", "off", "null"))
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r", "\0": "\\0"}


def yaml_text(document: dict[str, Any]) -> str:
    """Return a document, with its start marker; TypeError for a value of another type."""
    return "\n".join(["---", *(_table(document, "") if document else ["{}"]), ""])


def yaml_string(text: str) -> str:
    """Return a string as a scalar, unquoted if all YAML 1.1 and 1.2 parsers read that string."""
    if _PLAIN.fullmatch(text) and text.lower() not in _WORDS:
        return text
    return f'"{"".join(map(_character, text))}"'


def _character(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    if " " <= character <= "~":
        return character
    code = ord(character)
    # U+FEFF is a byte order mark, U+2028 a line break: only printable characters are plain.
    if character.isprintable() and 0xA0 <= code < 0xD800:
        return character
    return (
        f"\\x{code:02X}"
        if code < 0x100
        else f"\\u{code:04X}"
        if code < 0x10000
        else f"\\U{code:08X}"
    )


def _scalar(value: object) -> str:
    if isinstance(value, str):
        return yaml_string(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, (dict, list)):
        return "{}" if isinstance(value, dict) else "[]"  # empty; others are written in lines
    raise TypeError(f"{type(value).__name__} cannot be written as YAML")


def _table(table: dict[str, Any], indent: str) -> Iterator[str]:
    for key, value in table.items():
        head = f"{indent}{yaml_string(key)}:"
        if value and isinstance(value, dict):
            yield head
            yield from _table(value, indent + "  ")
        elif value and isinstance(value, list):
            yield head
            yield from _list(value, indent)
        else:
            yield f"{head} {_scalar(value)}"


def _list(items: list[Any], indent: str) -> Iterator[str]:
    for item in items:
        if item and isinstance(item, (dict, list)):
            inner = indent + "  "
            lines = _table(item, inner) if isinstance(item, dict) else _list(item, inner)
            yield f"{indent}- {next(lines)[len(inner) :]}"
            yield from lines
        else:
            yield f"{indent}- {_scalar(item)}"
