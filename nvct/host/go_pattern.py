# SPDX-License-Identifier: Apache-2.0
"""Patterns of Go's filepath.Match and filepath.Glob, which JetPack and containerd use.

`*` and `?` do not match a slash, `^` negates a class, and a malformed pattern matches nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

MAGIC = re.compile(r"[*?\[\\]")
ITEM = r"(?:\\.|[^\\\-\]])"
TOKEN = re.compile(
    rf"(?P<wild>[*?])|\[(?:(?P<negated>\^)|(?!\^))(?P<items>(?:{ITEM}(?:-{ITEM})?)+)\]"
    r"|\\(?P<literal>.)|(?P<plain>[^\\\[])",
    re.DOTALL,
)


def matches(path: str, pattern: str) -> bool:
    """Report whether a pattern matches a whole path."""
    compiled = compile_pattern(pattern)
    return compiled is not None and compiled.fullmatch(path) is not None


def expand(pattern: str, names: Callable[[str], Sequence[str]]) -> Iterator[str]:
    """Yield the paths that match a pattern, sorted; a path without magic yields itself.

    `names` returns the sorted names in a directory, [] if there is none.
    """
    if not MAGIC.search(pattern):
        yield pattern
        return
    bases = [""]
    for part in pattern.strip("/").split("/"):
        if not MAGIC.search(part):
            bases = [f"{base}/{part}" for base in bases]
        elif compiled := compile_pattern(part):
            bases = [
                f"{base}/{name}"
                for base in bases
                for name in names(base or "/")
                if compiled.fullmatch(name)
            ]
        else:
            return
    yield from bases


def compile_pattern(pattern: str) -> re.Pattern[str] | None:
    """Return a pattern as a regular expression, None if it is malformed."""
    out, at = [], 0
    while at < len(pattern):
        token = TOKEN.match(pattern, at)
        if token is None:
            return None
        out.append(_translate(token))
        at = token.end()
    try:
        return re.compile("".join(out), re.DOTALL)
    except re.error:  # a range whose end is before its start
        return None


def _translate(token: re.Match[str]) -> str:
    if token["wild"]:
        return "[^/]*" if token["wild"] == "*" else "[^/]"
    if not token["items"]:
        return re.escape(token["literal"] or token["plain"])
    parts = re.findall(r"\\.|.", token["items"], re.DOTALL)
    # A bare hyphen is part of a range: TOKEN permits it nowhere else.
    inner = "".join(part if part == "-" else re.escape(part[-1]) for part in parts)
    return f"[{token['negated'] or ''}{inner}]"
