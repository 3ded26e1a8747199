# SPDX-License-Identifier: Apache-2.0
"""Text for a terminal: lines of its width, and colors where it shows them."""

from __future__ import annotations

import os
import re
import select
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence

import click

from nvct.errors import printable

COMMAND = re.compile(r"`[^`]*`")
GLUE = "\0"  # Stands for a space where a line must not be broken
MARKS = {"ok": "ok", "absent": "-", "attention": "LOOK"}  # By the health of a part of a node
COLORS = {"ok": "green", "LOOK": "red", "?": "yellow"}
"""By mark; the question mark stands for what could not be checked."""
NARROW = 40  # Columns; a narrower terminal breaks lines itself


GAP, BELOW = "  ", "    "  # Between columns, and before a last column printed below its row
LAST_COLUMN = 44
"""Least width in which a table's last column is wrapped, enough for a UUID."""


def columns() -> int:
    """Return the width of the terminal, 0 if the output is not a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else 0


def wrapped(head: str, text: str, width: int, indent: int | None = None) -> Iterator[str]:
    """Yield the lines of a text: the first one after a head, the others indented by its length.

    A command in backquotes stays in one line, so that it can be copied. A `width` of 0 is no
    limit; `indent` replaces the head's length.
    """
    if width < NARROW:
        yield f"{head}{text}".rstrip()
        return
    glued = COMMAND.sub(lambda match: match[0].replace(" ", GLUE), text)
    margin = " " * (len(head) if indent is None else indent)
    lines = textwrap.wrap(
        glued, width, initial_indent=head, subsequent_indent=margin,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
    yield from (line.replace(GLUE, " ") for line in lines or [head.rstrip()])


def table(rows: Sequence[Sequence[str]], width: int) -> Iterator[str]:
    """Yield the lines of a table, with control characters escaped; the first row is the header.

    Only the last column is wrapped, in its place or, if that is too narrow, below its row: users
    copy words of the other columns. If these do not fit in a line, each row becomes a paragraph
    that names its columns.
    """
    cells = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    left = sum(widths[:-1]) + len(GAP) * (len(widths) - 1)
    if NARROW <= width < left:
        yield from _paragraphs(cells, width)
        return
    fits = width - left >= min(widths[-1], LAST_COLUMN)
    for row in cells:
        head = "".join(
            f"{cell:<{size}}{GAP}" for cell, size in zip(row, widths[:-1], strict=False)
        )
        if fits or width < NARROW or not row[-1]:
            yield from wrapped(head, row[-1], width)
        else:
            yield head.rstrip()
            yield from wrapped(BELOW, row[-1], width)


def _paragraphs(rows: Sequence[Sequence[str]], width: int) -> Iterator[str]:
    header, *others = rows
    names = [name.lower() for name in header[1:-1]]
    for first, *middle, last in others:
        yield first
        cells = (
            f"{name}{GLUE}{cell}" for name, cell in zip(names, middle, strict=True) if cell != "-"
        )
        yield from wrapped(BELOW, ", ".join(cells), width)
        yield from wrapped(BELOW, last, width) if last else ()


def wait_for_end(seconds: float) -> bool:
    """Wait; return True at once when the reader of the output has closed it."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)  # POLLERR and POLLHUP are always reported
    return bool(poll.poll(seconds * 1000))


def colored(text: str, color: str | None, *, bold: bool = False) -> str:
    """Return a text in a color if one is given and the output shows colors (no-color.org)."""
    is_plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    if not color or is_plain or not sys.stdout.isatty():
        return text
    return click.style(text, fg=color, bold=bold or None)
