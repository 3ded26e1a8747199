# SPDX-License-Identifier: Apache-2.0
"""Write a manual page for each command of nvct and nvidia-ctk, from what --help says."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from nvct.cli.ending import INCUMBENT, STOPPED
from nvct.cli.main import PROGRAMS, program
from nvct.version import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

EXIT = (
    ".SH EXIT STATUS\n0 if everything was done, {usage} if the command line is wrong, {stopped} "
    "if it was stopped, and 1 after another error, which is one line on standard error.\n"
)
SEE = ".SH SEE ALSO\n.BR nvct (1),\n.BR nvidia-ctk (1),\n.BR nvidia-container-runtime (8)\n"


def main(folder: Path) -> None:
    """Write the pages into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in sorted(PROGRAMS, reverse=True):  # nvidia-ctk first: nvct has its commands, too
        for words, command, ctx in _commands(program(name), name):
            same = f"nvidia-ctk-{'-'.join(words[1:])}.1"
            text = f".so man1/{same}\n" if (folder / same).exists() else None
            page = folder / f"{'-'.join(words)}.1"
            page.write_text(text or _page(words, command, ctx), encoding="utf-8")


def _commands(
    command: click.Command, name: str, parent: click.Context | None = None
) -> Iterator[tuple[list[str], click.Command, click.Context]]:
    ctx = click.Context(command, info_name=name, parent=parent)
    yield ctx.command_path.split(), command, ctx
    if isinstance(command, click.Group):
        for word in command.list_commands(ctx):
            inner = command.get_command(ctx, word)
            if inner is not None:
                yield from _commands(inner, word, ctx)


def _page(words: list[str], command: click.Command, ctx: click.Context) -> str:
    title, name = "-".join(words), " ".join(words)
    help_text = command.help or ""
    first, _, rest = help_text.partition("\n\n")
    usage = " ".join(command.collect_usage_pieces(ctx))
    parts = [
        f'.TH {_text(title.upper())} 1 "" "nvct {__version__}" "GPU containers"\n',
        f".SH NAME\n{_text(title)} \\- {_text(_line(first).rstrip('.'))}\n",
        f".SH SYNOPSIS\n.B {_text(name)}\n{_text(usage)}\n",
    ]
    if rest:
        parts.append(f".SH DESCRIPTION\n{_paragraphs(rest)}")
    records = [r for p in command.get_params(ctx) if (r := p.get_help_record(ctx))]
    if records:
        parts.append(".SH OPTIONS\n" + "".join(_item(*record) for record in records))
    if isinstance(command, click.Group):
        parts.append(".SH COMMANDS\n" + "".join(_inner(command, ctx, title)))
    parts.append(EXIT.format(usage=1 if words[0] == INCUMBENT else 2, stopped=STOPPED))
    return "".join(parts) + SEE


def _inner(group: click.Group, ctx: click.Context, title: str) -> Iterator[str]:
    for word in group.list_commands(ctx):
        command = group.get_command(ctx, word)
        if command is not None:
            text = _line((command.help or "").partition("\n\n")[0])
            yield f".TP\n.BR {_text(f'{title}-{word}')} (1)\n{_text(text)}\n"


def _item(options: str, text: str) -> str:
    return f".TP\n.B {_text(options)}\n{_text(_line(text))}\n"


def _paragraphs(text: str) -> str:
    blocks = text.replace("\b\n", "\b").split("\n\n")
    return ".PP\n".join(_block(block) for block in blocks if block.strip())


def _block(block: str) -> str:
    if block.startswith("\b"):  # click's mark for text that keeps its lines
        lines = "\n".join(_text(line) for line in block[1:].splitlines())
        return f".nf\n{lines}\n.fi\n"
    return f"{_text(_line(block))}\n"


def _line(text: str) -> str:
    return " ".join(text.split())


def _text(text: str) -> str:
    """Return text that roff prints as it is."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq")
    return f"\\&{text}" if text[:1] in (".", "'") else text


if __name__ == "__main__":
    main(Path(sys.argv[1]))
