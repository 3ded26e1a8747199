# SPDX-License-Identifier: Apache-2.0
"""Commands: nvct mig …: those of nvidia-mig-parted, and configs, plan, profiles, holders."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import click
from rich.text import Text

from nvct.cli import screen
from nvct.cli.gostyle import GoStyle, LazyGroup
from nvct.cli.mig import picture
from nvct.cli.mig.commands import config_file, mode_only, selected, selected_config
from nvct.cli.mig.machine import machine_of, read
from nvct.cli.options import format_option, show
from nvct.errors import UsageError, printable
from nvct.host.nvml.mig_model import MigState
from nvct.mig import export, tables
from nvct.mig import plan as plans
from nvct.mig.config import Spec
from nvct.mig.holders import holders as find_holders
from nvct.mig.layout import devices, layout_of

TEXT = """Divide GPUs into MIG devices.

Configuration files, checkpoints and hooks are those of nvidia-mig-parted; docs/mig.md lists the
differences."""
OWN = "nvct.cli.mig.group"
SHARED = "nvct.cli.mig.commands"
mig = LazyGroup(
    "mig",
    {
        "apply": (SHARED, "apply", "Apply a configuration to the GPUs."),
        "assert": (SHARED, "assert_", "Check that the GPUs have a configuration."),
        "checkpoint": (SHARED, "checkpoint", "Write every instance, with its place, to a file."),
        "configs": (OWN, "configs", "Print the names of all configurations of this machine."),
        "export": (SHARED, "export_", "Print the GPUs' current configuration."),
        "generate-config": (SHARED, "generate_config", "Print configurations for these GPUs."),
        "holders": (OWN, "holders", "Print which processes have a GPU or MIG device open."),
        "plan": (OWN, "plan", "Print the changes that apply would make."),
        "profiles": (OWN, "profiles", "Print the MIG profiles that GPUs can have."),
        "restore": (SHARED, "restore", "Restore the instances of a checkpoint."),
    },
    TEXT,
)
model = click.option(
    "--gpu", "gpu_model", metavar="MODEL", default="",
    help="A model of the built-in tables, such as A100-80GB, instead of this machine's GPUs.",
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

    Equal GPUs share a picture. A cell is a memory slice. Nothing is changed.

    Example: nvct mig plan -c all-balanced --gpu H100-80GB
    """
    if count != 1 and not gpu_model:
        raise UsageError("--count needs --gpu MODEL", hint="leave it out for this machine's GPUs")
    if count < 1:
        raise UsageError(f"--count {count} is not a number of GPUs", hint="use 1 or more")
    state = _tabled(gpu_model, count) if gpu_model else machine_of(given).session.mig()
    specs = selected(lambda: state, config_file, selected_config)
    made = plans.make(state, specs, mode_only=mode_only)
    if form == "json":
        click.echo(json.dumps(_planned(state, made), indent=2))
        return
    out = picture.console()
    width = picture.slice_width(out)
    changed = {gpu.uuid for gpu in made.changed(state)}
    groups: dict[tuple[str, ...], tuple[list[int], list[Text]]] = {}
    for gpu in map(tables.with_placements, state.gpus):
        layout = made.layouts[gpu.uuid] if gpu.uuid in changed else None
        lines = picture.plan_lines(gpu, layout, width)
        key = (gpu.name, *(line.plain for line in lines))
        groups.setdefault(key, ([], lines))[0].append(gpu.index)
    for (name, *_), (indices, lines) in groups.items():
        out.print(f"GPU {picture.numbers(indices)}  {name}", markup=False)
        for line in lines:
            out.print(line)


@click.command(cls=GoStyle)
@config_file
@format_option("table")
@click.pass_obj
def configs(given: object, *, config_file: str, form: str) -> None:
    """Print the configurations that the label nvidia.com/mig.config can name on this machine.

    If names are equal, the file's configuration precedes the hardware's, and that the built-in
    tables'. FITS says whether this machine's GPUs can have it.
    """
    state = machine_of(given).session.mig()
    found = export.configs(state, read(config_file) if config_file else "")
    rows, table = [], [("CONFIGURATION", "FROM", "FITS")]
    for name, named in found.items():
        fits = _fits(state, named.specs)
        rows.append({"name": name, "layer": named.layer, "fits": fits})
        table.append((name, named.layer, "yes" if fits else "no"))
    show(form, rows, screen.table(table, screen.columns()))


@click.command(cls=GoStyle)
@model
@click.option("--all", "every", is_flag=True, help="All models of the built-in tables.")
@format_option("table")
@click.pass_obj
def profiles(given: object, *, gpu_model: str, every: bool, form: str) -> None:
    """Print the MIG profiles of this machine's GPU models, or of the built-in tables.

    INSTANCES is the number of instances that a GPU can have, COMPUTE and MEMORY are the slices of
    an instance, STARTS AT the memory slices where it can begin.
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
    shown = {gpu.name: [asdict(profile) for profile in gpu.profiles] for gpu in gpus}
    show(form, shown, screen.table(picture.profiles_rows(gpus), screen.columns()))


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
    lines = [printable(str(holder)) for holder in found] or ["no process has a GPU open"]
    show(form, [asdict(holder) for holder in found], lines)


def _planned(state: MigState, made: plans.Plan) -> list[dict[str, Any]]:
    rows = []
    for gpu in map(tables.with_placements, state.gpus):
        now = layout_of(gpu)
        layouts = {"now": now, "then": made.layouts.get(gpu.uuid, now)}
        shown = {
            when: {"enabled": layout.enabled, "devices": devices(gpu, layout)}
            for when, layout in layouts.items()
        }
        changes = [line.plain for line in picture.change_lines(gpu, layouts["then"])]
        names = {"index": gpu.index, "uuid": gpu.uuid, "name": gpu.name}
        rows.append({**names, **shown, "changes": changes})
    return rows


def _fits(state: MigState, specs: Sequence[Spec]) -> bool:
    try:
        plans.make(state, specs)
    except UsageError:
        return False
    return True


def _tabled(gpu_model: str, count: int) -> MigState:
    gpu = tables.gpu_of(tables.of_name(gpu_model))
    return MigState(gpus=tuple(replace(gpu, index=n, uuid=f"GPU-{n}") for n in range(count)))
