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
GLUE = "\0"  # For a space where no line may end
MARKS = {"ok": "ok", "absent": "-", "attention": "LOOK"}  # Of the health of a part of a node
COLORS = {"ok": "green", "LOOK": "red", "?": "yellow"}
"""Of the marks; the question mark is of what could not be seen."""
NARROW = 40  # Columns; a narrower terminal breaks lines itself


GAP, BELOW = "  ", "    "  # Between columns, and before a last column that stands below its row
LAST_COLUMN = 44
"""The fewest columns for long texts in the last column of a table: room for a UUID."""


def columns() -> int:
    """Return the width of the terminal, 0 if the output is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else 0


def wrapped(head: str, text: str, width: int, indent: int | None = None) -> Iterator[str]:
    """Yield the lines of a text after a head; the others are indented by the head's length.

    A command in backquotes stays in one line, so that it can be copied. `width`: of a line; 0 for
    no limit. `indent`: of the other lines, instead of the head's length.
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
    """Yield the lines of a table of any texts; the first row is the header.

    The last column is broken to the width, in lines below it, or if it has no room there, below
    the row. The others are never broken: their words are to be copied. If they do not fit
    together, each row is a paragraph that names its columns.
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
    """Wait; return at once, with True, when nobody reads the output any more."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)  # POLLERR and POLLHUP are always reported
    return bool(poll.poll(seconds * 1000))


def colored(text: str, color: str | None, *, bold: bool = False) -> str:
    """Return a text in a color, if there is one and the output shows it (no-color.org)."""
    is_plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    if not color or is_plain or not sys.stdout.isatty():
        return text
    return click.style(text, fg=color, bold=bold or None)
