# SPDX-License-Identifier: Apache-2.0
"""Prints the demonstration: tables for the node and its spec, a block for each container.

The output is readable without colors, because every mark is a word, and on 80 columns. The output
of programs is shown unchanged.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Sequence

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from nvct.cdi.types import Spec
from nvct.doctor.model import count
from nvct.host.model import Inventory
from nvct_sim.demo.run import TURNS, Case, Outcome

WIDTH = 100
UUID_NAME = re.compile(r"(?:GPU|MIG)-[0-9a-f-]{36}")
FEW = 2


def console(*, stderr: bool = False) -> Console:
    """Return a console as wide as the terminal (or $COLUMNS, or 80), at most WIDTH columns."""
    # No emoji codes: rich would replace ":ab:" in PCI addresses.
    result = Console(highlight=False, emoji=False, stderr=stderr)
    result.width = min(result.width, WIDTH)
    return result


@contextlib.contextmanager
def working(what: str) -> Iterator[None]:
    """Show a status line during a long step, on terminals only."""
    out = console(stderr=True)
    if not out.is_terminal:
        yield
        return
    with out.status(f"{what} ..."):
        yield


def banner(out: Console, driver: str, runtime: str) -> None:
    """Print the title, which says that the GPUs are simulated."""
    text = (
        "[bold]nvct[/] on a [bold yellow]simulated[/] node: no GPU is used, none is needed.\n"
        f"Driver {driver}, its files, /proc, /sys, device nodes and NVML are\n"
        f"simulated; {runtime}, the containers, mounts and device rules are real."
    )
    out.print(Panel(text, box=box.ROUNDED, expand=False))


def _table(*columns: str) -> Table:
    return Table(*columns, box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))


def _indented(out: Console, table: Table) -> None:
    out.print(Padding(table, (0, 0, 0, 2), expand=False))


def node(out: Console, inventory: Inventory) -> None:
    """Show the GPUs of the node."""
    models = sorted({gpu.model for gpu in inventory.gpus})
    table = _table("GPU", "UUID", "bus", "MIG devices")
    for gpu in inventory.gpus:
        mig = f"{len(gpu.mig)} x {gpu.mig[0].profile}" if gpu.mig else "-"
        table.add_row(str(gpu.index), gpu.uuid, gpu.bus_id, mig)
    heading(out, "1", f"The node: {len(inventory.gpus)} x {', '.join(models)}")
    _indented(out, table)


def heading(out: Console, number: str, text: str) -> None:
    """Print the heading of a part."""
    out.print(f"\n[bold cyan]{number}[/]  [bold]{text}[/]")


def command(out: Console, words: str) -> None:
    """Show a command line as a user types it."""
    out.print(Text.assemble("   ", ("$", "dim"), f" {words}"), soft_wrap=True)


def nodes(paths: Iterable[str]) -> str:
    """Return a short list of device nodes: names without /dev, counts for large folders."""
    folders: dict[str, list[str]] = {}
    for path in sorted(paths, key=_natural):
        folder, _, name = path.removeprefix("/dev/").rpartition("/")
        folders.setdefault(folder, []).append(name)
    words = _ranges(folders.pop("", []))
    for folder, names in folders.items():
        if len(names) > FEW or "by-path" in folder:
            words.append(f"{len(names)} in {folder}/")
        else:
            words += [f"{folder}/{name}" for name in names]
    return ", ".join(words)


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part or 0), "") if part.isdigit() else (-1, part)
            for part in re.split(r"(\d+)", name)]  # fmt: skip


def _ranges(names: Sequence[str]) -> list[str]:
    """Fold consecutive names such as nvidia0, nvidia1, nvidia2 into nvidia[0-2]."""
    found: list[tuple[str, int, int]] = []
    others = []
    for name in names:
        match = re.fullmatch(r"(\D+)(\d+)", name)
        if match is None:
            others.append(name)
            continue
        stem, number = match[1], int(match[2])
        if found and found[-1][0] == stem and found[-1][2] == number - 1:
            found[-1] = (stem, found[-1][1], number)
        else:
            found.append((stem, number, number))
    folded = [
        f"{stem}{first}" if first == last else f"{stem}[{first}-{last}]"
        for stem, first, last in found
    ]
    return folded + others


def spec(out: Console, found: Spec) -> None:
    """Show a CDI spec's edits for each device, and those for every container."""
    common = found.get("containerEdits") or {}
    table = _table("device", "device nodes")
    for device in found["devices"]:
        if not UUID_NAME.fullmatch(device["name"]):
            own = device["containerEdits"].get("deviceNodes") or []
            table.add_row(device["name"], nodes(n["path"] for n in own))
    _indented(out, table)
    counted = {
        "control node": len(common.get("deviceNodes") or []),
        "driver file": len(common.get("mounts") or []),
        "hook": len(common.get("hooks") or []),
    }
    uuids = sum(UUID_NAME.fullmatch(device["name"]) is not None for device in found["devices"])
    _lines(
        out,
        f"{found['kind']}, CDI {found['cdiVersion']}; {uuids} of the devices have a second name:"
        " their UUID.",
        f"In every GPU container: {', '.join(count(n, word) for word, n in counted.items())}.",
    )


def _lines(out: Console, *texts: str) -> None:
    for text in texts:
        out.print(Padding(Text(text), (0, 0, 0, 3), expand=False))


def _mark(*, right: bool) -> tuple[str, str]:
    return ("ok", "bold green") if right else ("WRONG", "bold red")


def outcome(out: Console, number: int, done: Outcome) -> None:
    """Show one container: its request and its output."""
    case = done.case
    title = f"{number}. {case.title}: ", (case.request, "bold"), "  ", _mark(right=done.right)
    out.print(Text.assemble(*title), soft_wrap=True)
    for text in done.lines:
        if done.case.error:
            out.print(Padding(Text(text, "red"), (0, 0, 0, 3), expand=False))
        else:
            out.print(Text(f"   {text}"), soft_wrap=True)
    out.print()


def summary(out: Console, outcomes: Sequence[Outcome], bare_s: float, shim_s: float) -> None:
    """Show the counts of injected entries, and the times of the shim and the bare runtime."""
    table = _table("container", "GPUs", "nodes", "mounts", "hooks", "time", "")
    for column in table.columns[2:6]:
        column.justify = "right"
    for done in outcomes:
        numbers = [str(number) for number in (done.nodes, done.mounts, done.hooks)]
        time = f"{done.seconds * 1000:.0f} ms"
        table.add_row(
            done.case.title, asked(done.case), *numbers, time, Text(*_mark(right=done.right))
        )
    _indented(out, table)
    right = sum(done.right for done in outcomes)
    color = "green" if right == len(outcomes) else "red"
    out.print(f"   [bold {color}]{right} of {len(outcomes)} containers were as expected.[/]")
    _lines(
        out,
        f"A container without GPU took {bare_s * 1000:.0f} ms by the runtime alone and "
        f"{shim_s * 1000:.0f} ms through nvct, "
        f"the fastest of {TURNS} runs each, in turns. A time is that of one run: create, "
        "start, output, delete.",
    )


def asked(case: Case) -> str:
    """Return the number of devices that a case requests, as text."""
    if case.error:
        return "refused"
    expected = case.expected or ()
    mig = sum(uuid.startswith("MIG-") for uuid in expected)
    words = [str(len(expected) - mig)] if len(expected) > mig or not mig else []
    return " + ".join([*words, *([f"{mig} MIG"] if mig else [])])
