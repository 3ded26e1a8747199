# SPDX-License-Identifier: Apache-2.0
"""Commands: nvct mig …; those of nvidia-mig-parted, and plan, profiles, holders."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from nvct.cli import screen
from nvct.cli.gostyle import LazyGroup
from nvct.cli.mig.commands import config_file, mode_only, selected, selected_config
from nvct.cli.mig.machine import machine_of, read
from nvct.cli.options import GoStyle, format_option, tell
from nvct.errors import UsageError
from nvct.host.nvml.mig_model import MigGpu, MigState
from nvct.mig import export, tables
from nvct.mig import plan as changes
from nvct.mig import plan as plans
from nvct.mig.config import Spec
from nvct.mig.holders import holders as find_holders
from nvct.mig.layout import COMPUTE_SLICES, Layout, Part, device_name, devices, layout_of

TEXT = """Divide GPUs into MIG devices.

Configuration files, checkpoints and hooks are those of nvidia-mig-parted; docs/mig.md lists the
differences."""
OWN = "nvct.cli.mig.group"
SHARED = "nvct.cli.mig.commands"
mig = LazyGroup(
    "mig",
    {
        "apply": (SHARED, "apply", "Give the GPUs a configuration."),
        "assert": (SHARED, "assert_", "Check that the GPUs have a configuration."),
        "checkpoint": (SHARED, "checkpoint", "Write every instance, with its place, to a file."),
        "configs": (OWN, "configs", "Print the names of all configurations of this machine."),
        "export": (SHARED, "export_", "Print the configuration that the GPUs have."),
        "generate-config": (SHARED, "generate_config", "Print configurations for these GPUs."),
        "holders": (OWN, "holders", "Print which processes have a GPU or MIG device open."),
        "plan": (OWN, "plan", "Print the changes that apply would make."),
        "profiles": (OWN, "profiles", "Print the MIG profiles that GPUs can have."),
        "restore": (SHARED, "restore", "Give the GPUs the instances of a checkpoint."),
    },
    TEXT,
)
model = click.option(
    "--gpu", "gpu_model", metavar="MODEL", default="",
    help="A model of the built-in tables, such as A100-80GB, in place of this machine's GPUs.",
)  # fmt: skip


@click.command(cls=GoStyle)
@config_file
@selected_config
@mode_only
@model
@click.option("--count", default=1, show_default=True, help="How many GPUs, with --gpu.")
@format_option("picture")
@click.pass_obj
def plan(
    given: object,
    *,
    config_file: str,
    selected_config: str,
    mode_only: bool,
    gpu_model: str,
    count: int,
    form: str,
) -> None:
    """Print the changes that apply would make to each GPU, as a picture and as a list.

    GPUs that are the same are one picture. A place is a memory slice. Nothing is changed.

    Example: nvct mig plan -c all-balanced --gpu H100-80GB
    """
    state = _tabled(gpu_model, count) if gpu_model else machine_of(given).session.mig()
    specs = selected(lambda: state, config_file, selected_config)
    made = plans.make(state, specs, mode_only=mode_only)
    if form == "json":
        click.echo(json.dumps(_planned(state, made)))
        return

    out = console()
    width = slice_width(out)
    changed = {gpu.uuid for gpu in made.changed(state)}
    groups: dict[tuple[str, ...], tuple[list[int], list[Text]]] = {}
    for gpu in map(tables.with_placements, state.gpus):
        layout = made.layouts[gpu.uuid] if gpu.uuid in changed else None
        lines = plan_lines(gpu, layout, width)
        key = (gpu.name, *(line.plain for line in lines))
        groups.setdefault(key, ([], lines))[0].append(gpu.index)
    for (name, *_), (indices, lines) in groups.items():
        out.print(f"GPU {numbers(indices)}  {name}", markup=False)
        for line in lines:
            out.print(line)


@click.command(cls=GoStyle)
@config_file
@format_option("table")
@click.pass_obj
def configs(given: object, *, config_file: str, form: str) -> None:
    """Print the configurations that the label nvidia.com/mig.config can name on this machine.

    A name of the file counts more than one of the hardware, and that more than one of the built-in
    tables. `fits`: whether this machine's GPUs can have it.
    """
    state = machine_of(given).session.mig()
    found = export.configs(state, read(config_file) if config_file else "")
    rows = [
        {"name": name, "layer": named.layer, "fits": _fits(state, named.specs)}
        for name, named in found.items()
    ]
    if form == "json":
        click.echo(json.dumps(rows))
        return

    for line in screen.table(configs_rows(rows), screen.columns()):
        click.echo(line)


@click.command(cls=GoStyle)
@model
@click.option("--all", "every", is_flag=True, help="All models of the built-in tables.")
@format_option("table")
@click.pass_obj
def profiles(given: object, *, gpu_model: str, every: bool, form: str) -> None:
    """Print the MIG profiles of this machine's GPUs, once for each model, or of a built-in table.

    INSTANCES is the number of instances that a GPU can have, COMPUTE and MEMORY are the slices of
    one, STARTS AT the memory slices where one can begin.
    """
    if every:
        gpus = [tables.gpu_of(table) for table in tables.tables()]
    elif gpu_model:
        gpus = list(_tabled(gpu_model, 1).gpus)
    else:
        state = machine_of(given).session.mig()
        by_model = {gpu.device: gpu for gpu in reversed(state.gpus) if gpu.capable}
        gpus = [tables.with_placements(gpu) for gpu in by_model.values()]
        if not gpus:
            raise UsageError(
                "no GPU of this machine has a MIG mode", hint="see --gpu MODEL and --all"
            )
    if form == "json":
        click.echo(json.dumps({gpu.name: [asdict(p) for p in gpu.profiles] for gpu in gpus}))
        return

    for line in screen.table(profiles_rows(gpus), screen.columns()):
        click.echo(line)


@click.command(cls=GoStyle)
@format_option("table")
@click.pass_obj
def holders(given: object, *, form: str) -> None:
    """Print which processes have a GPU or MIG device open, with container, pod and unit.

    Only root sees processes of other users.
    """
    machine = machine_of(given)
    gpus = machine.session.mig().gpus
    found = find_holders(machine.roots, gpus, ignore={machine.session.pid or 0})
    if form == "json":
        click.echo(json.dumps([asdict(holder) for holder in found]))
        return
    for holder in found:
        tell(str(holder))
    if not found:
        click.echo("no process has a GPU open")


def _planned(state: MigState, made: plans.Plan) -> list[dict[str, Any]]:
    """Return each GPU with its MIG mode and its MIG devices, before the changes and after."""
    rows = []
    for gpu in map(tables.with_placements, state.gpus):
        now = layout_of(gpu)
        layouts = {"now": now, "then": made.layouts.get(gpu.uuid, now)}
        shown = {
            when: {"enabled": layout.enabled, "devices": devices(gpu, layout)}
            for when, layout in layouts.items()
        }
        rows.append({"index": gpu.index, "uuid": gpu.uuid, "name": gpu.name, **shown})
    return rows


def _fits(state: MigState, specs: Sequence[Spec]) -> bool:
    try:
        plans.make(state, specs)
    except UsageError:
        return False
    return True


def _tabled(gpu_model: str, count: int) -> MigState:
    gpu = tables.gpu_of(tables.of_name(gpu_model))
    return MigState(
        gpus=tuple(replace(gpu, index=n, uuid=f"GPU-{n}") for n in range(max(count, 1)))
    )


WIDTH, NARROW = 10, 8
"""Columns of a memory slice: usually, and on a terminal of 80 columns."""
LINE = 10 + 8 * WIDTH + 1
"""Columns of the longest line of a picture."""
GIGABYTES = re.compile(r"\.\d+gb")
COLORS = ("cyan", "green", "yellow", "magenta", "blue", "red")


def console() -> Console:
    """Return the console; without a terminal its lines are not broken."""
    plain = bool(os.environ.get("NO_COLOR"))  # rich would still write bold and dim
    made = Console(highlight=False, soft_wrap=True, color_system=None if plain else "auto")
    if not made.is_terminal:
        made.width = 200
    return made


def slice_width(out: Console) -> int:
    """Return the columns of a memory slice that fit."""
    return WIDTH if out.width >= LINE else NARROW


def layout_line(gpu: MigGpu, layout: Layout, width: int = WIDTH) -> Text:
    """Return the memory slices of a GPU as a line: instances by name, free slices as dots.

    Args:
        width: columns of a memory slice.
    """
    if not gpu.capable:
        return Text("no MIG", style="dim")
    if not layout.enabled:
        return Text("MIG off", style="dim")
    line = Text("|")
    at = 0
    for part in sorted(layout.parts, key=lambda each: each.placement):
        line.append(_free(part.placement.start - at, width))
        cells = part.placement.size * width - 1
        label = _fitting(_label(gpu, part), cells)
        line.append(label.center(cells), style=_color(gpu, part))
        line.append("|")
        at = part.placement.start + part.placement.size
    line.append(_free(memory_slices(gpu) - at, width))
    return line


def memory_slices(gpu: MigGpu) -> int:
    """Return the number of memory slices, by the placements of the profiles."""
    ends = (place.start + place.size for profile in gpu.profiles for place in profile.placements)
    return max(ends, default=0)


def configs_rows(rows: Iterable[Mapping[str, object]]) -> list[tuple[str, ...]]:
    """Return a table of named configurations, with its header."""
    table = [(str(row["name"]), str(row["layer"]), "yes" if row["fits"] else "no") for row in rows]
    return [("CONFIGURATION", "FROM", "FITS"), *table]


def profiles_rows(gpus: Iterable[MigGpu]) -> list[tuple[str, ...]]:
    """Return a table of the profiles of GPUs, a row for each profile, with its header."""
    table = [("GPU", "PROFILE", "INSTANCES", "COMPUTE", "MEMORY", "STARTS AT")]
    for gpu in gpus:
        for profile in sorted(gpu.profiles, key=lambda each: (each.slices, each.limit, each.name)):
            places = profile.placements
            row = (
                gpu.name, profile.name, str(profile.limit), str(profile.slices),
                str(places[0].size) if places else "-",
                numbers([place.start for place in places]) or "NVML does not say",
            )  # fmt: skip
            table.append(row)
    return [*table]


def plan_lines(gpu: MigGpu, layout: Layout | None, width: int = WIDTH) -> list[Text]:
    """Return the lines about a GPU: what it has, and what it gets; None if it stays as it is."""
    now = Text("  now     ") + layout_line(gpu, layout_of(gpu), width)
    if layout is None:
        return [now, Text("  stays as it is")]
    then = Text("  then    ") + layout_line(gpu, layout, width)
    changes_of = [Text("         ") + line for line in change_lines(gpu, layout)]
    return [now, then, *changes_of]


def numbers(indices: Sequence[int]) -> str:
    """Return sorted numbers as a person writes them, such as 0-2, 4."""
    runs: list[list[int]] = []
    for index in indices:
        if runs and index == runs[-1][-1] + 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def change_lines(gpu: MigGpu, layout: Layout) -> list[Text]:
    """Return what happens to each MIG device and to the mode: keep, destroy, create."""
    steps = changes.steps(gpu, layout)
    destroyed = {(s.gi, s.ci) for s in steps if isinstance(s, changes.DestroyCompute)}
    profiles = {profile.kind: profile for profile in gpu.profiles}
    lines = []
    for gi in gpu.instances:
        for ci in gi.compute:
            name = device_name(profiles[gi.kind], ci.kind)
            verb, style = ("destroy", "red") if (gi.id, ci.id) in destroyed else ("keep", "dim")
            where = f"slice {gi.placement.start}, instance {gi.id}/{ci.id}"
            lines.append(Text(f"{verb:8}{name} at {where}", style=style))
    for step in steps:
        if isinstance(step, changes.SetMode):
            text = f"{'mode':8}MIG {'on' if step.enabled else 'off'}"
            lines.append(Text(text, style="yellow"))
        elif isinstance(step, changes.Create):
            for compute in step.part.compute:
                name = device_name(profiles[step.part.kind], compute.kind)
                text = f"{'create':8}{name} at slice {step.part.placement.start}"
                lines.append(Text(text, style="green"))
        elif isinstance(step, changes.CreateCompute):
            kind = next(gi.kind for gi in gpu.instances if gi.id == step.gi)
            name = device_name(profiles[kind], step.compute.kind)
            lines.append(Text(f"{'create':8}{name} in instance {step.gi}", style="green"))
    return lines


def _free(slices: int, width: int) -> Text:
    return Text((".".center(width - 1) + "|") * max(slices, 0), style="dim")


def _fitting(label: str, cells: int) -> str:
    """Return a label, without its memory if there is no room: the list has the whole name."""
    return label if len(label) <= cells else GIGABYTES.sub("", label)[:cells]


def _label(gpu: MigGpu, part: Part) -> str:
    profile = next((p for p in gpu.profiles if p.kind == part.kind), None)
    if profile is None:
        return "?"
    sizes = [COMPUTE_SLICES.get(compute.kind, 0) for compute in part.compute]
    if sizes in ([], [profile.slices]):
        return profile.name if sizes else f"{profile.name} (empty)"
    return f"{'+'.join(f'{size}c' for size in sizes)}.{profile.name}"


def _color(gpu: MigGpu, part: Part) -> str:
    kinds = [profile.kind for profile in gpu.profiles]
    index = kinds.index(part.kind) if part.kind in kinds else 0
    return f"black on {COLORS[index % len(COLORS)]}"
