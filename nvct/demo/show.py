# SPDX-License-Identifier: Apache-2.0
"""How the demonstration looks: tables for the node and its spec, a block for each container.

Readable without color: every mark is also a word.
"""

from __future__ import annotations

from rich import box
from rich.console import Console, Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from nvct.cdi.types import Spec
    from nvct.demo.run import Outcome
    from nvct.host.model import Inventory

WIDTH = 100


def console() -> Console:
    """Return a console as wide as the terminal, at most WIDTH columns."""
    made = Console(highlight=False)
    made.width = min(made.width, WIDTH) if made.is_terminal else WIDTH
    return made


def banner(out: Console, driver: str) -> None:
    """Say what this is, and that its GPUs are not real."""
    out.print(
        Panel(
            f"[bold]nvct[/] on a [bold yellow]simulated[/] node: no GPU is used, none is needed.\n"
            f"Driver {driver}, its files, /proc, /sys, device nodes and NVML are simulated;\n"
            "runc, the containers, the mounts and the device rules are real.",
            box=box.ROUNDED,
            expand=False,
        )
    )


def node(out: Console, inventory: Inventory) -> None:
    """Show the GPUs of the node."""
    table = Table("GPU", "model", "UUID", "bus", "MIG devices", box=box.SIMPLE_HEAD)
    for gpu in inventory.gpus:
        mig = f"{len(gpu.mig)} x {gpu.mig[0].profile}" if gpu.mig else "-"
        table.add_row(str(gpu.index), gpu.model, gpu.uuid, gpu.bus_id, mig)
    heading(out, "1", "The node")
    out.print(table)


def heading(out: Console, number: str, text: str) -> None:
    """Start a part."""
    out.print(f"\n[bold cyan]{number}[/]  [bold]{text}[/]")


def command(out: Console, words: str) -> None:
    """Show a command line as one would type it."""
    out.print(f"   [dim]$[/] {words}", soft_wrap=True)


def spec(out: Console, found: Spec) -> None:
    """Show what a CDI spec has for every container and for each device."""
    common = found.get("containerEdits") or {}
    table = Table("device", "device nodes", box=box.SIMPLE_HEAD, title_justify="left")
    for device in found["devices"]:
        if len(device["name"]) > 8:  # the UUIDs are the same devices by another name
            continue
        nodes = [n["path"].removeprefix("/dev/") for n in device["containerEdits"]["deviceNodes"]]
        text = ", ".join(nodes[:6]) + (f" and {len(nodes) - 6} more" if len(nodes) > 6 else "")
        table.add_row(device["name"], text)
    out.print(table)
    counted = ", ".join(
        f"{len(common.get(key) or [])} {word}"  # type: ignore[arg-type]  # lists, all of them
        for key, word in (
            ("deviceNodes", "control nodes"), ("mounts", "driver files"), ("hooks", "hook"),
        )
    )  # fmt: skip
    out.print(f"   {found['kind']}, CDI {found['cdiVersion']}; in every GPU container: {counted}")


def outcome(out: Console, number: int, done: Outcome) -> None:
    """Show one container: how it asked and what it saw."""
    mark = Text("ok", "bold green") if done.right else Text("WRONG", "bold red")
    title = Text.assemble(
        f"{number}. {done.case.title}: ", (done.case.request, "bold"), "  ", mark, overflow="fold"
    )
    style = "red" if done.case.error else ""
    body = Group(*(Text(f"   {line}", style, overflow="fold") for line in done.lines))
    out.print(title)
    out.print(body)
    out.print()


def summary(out: Console, outcomes: Sequence[Outcome], bare_s: float, shim_s: float) -> None:
    """Show what was injected, and how long it took beside the bare runtime."""
    table = Table(
        "container", "GPUs", "nodes", "mounts", "hooks", "time", "as expected", box=box.SIMPLE_HEAD
    )
    for done in outcomes:
        expected = len(done.case.expected or ())
        table.add_row(
            done.case.title,
            "refused" if done.case.error else str(expected),
            str(done.nodes),
            str(done.mounts),
            str(done.hooks),
            f"{done.seconds * 1000:.0f} ms",
            "yes" if done.right else "NO",
        )
    out.print(table)
    out.print(
        f"   bare runtime without GPU {bare_s * 1000:.0f} ms, through nvct without GPU "
        f"{shim_s * 1000:.0f} ms (fastest of 5; run, output and delete)"
    )
    right = sum(done.right for done in outcomes)
    color = "green" if right == len(outcomes) else "red"
    out.print(f"   [bold {color}]{right} of {len(outcomes)} containers were as expected[/]")
