# SPDX-License-Identifier: Apache-2.0
"""GPUs as pictures: a line of memory slices, with the instances in them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.text import Text

from nvct.host.nvml.mig_model import CreateCompute, DestroyCompute, MigGpu, SetMode
from nvct.mig import plan as changes
from nvct.mig.layout import COMPUTE_SLICES, Layout, Part, device_name, layout_of

WIDTH, NARROW = 10, 8  # Columns of a memory slice: as a rule, and on a terminal of 80 columns
LINE = 10 + 8 * WIDTH + 1  # Columns of the longest line of a picture
GIGABYTES = re.compile(r"\.\d+gb")
COLORS = ("cyan", "green", "yellow", "magenta", "blue", "red")


def console() -> Console:
    """Return the console; its lines are wrapped only on a terminal."""
    plain = bool(os.environ.get("NO_COLOR"))  # rich would still write bold and dim
    made = Console(highlight=False, soft_wrap=True, color_system=None if plain else "auto")
    if not made.is_terminal:
        made.width = 200
    return made


def slice_width(out: Console) -> int:
    """Return how many columns a memory slice gets on this console."""
    return WIDTH if out.width >= LINE else NARROW


def layout_line(gpu: MigGpu, layout: Layout, width: int = WIDTH) -> Text:
    """Return the memory slices of a GPU as a line: instances by name, free slices as dots."""
    if not gpu.capable:
        return Text("no MIG", style="dim")
    if not layout.enabled:
        return Text("MIG off", style="dim")
    line = Text("|")
    at = 0
    for part in sorted(layout.parts, key=lambda each: each.placement):
        line.append(_free(part.placement.start - at, width))
        cells = part.placement.size * width - 1
        label = _label(gpu, part)
        if len(label) > cells:  # the list below has the whole name
            label = GIGABYTES.sub("", label)[:cells]
        line.append(label.center(cells), style=_color(gpu, part))
        line.append("|")
        at = part.placement.start + part.placement.size
    line.append(_free(memory_slices(gpu) - at, width))
    return line


def memory_slices(gpu: MigGpu) -> int:
    """Return the number of memory slices, by the placements of the profiles."""
    ends = (place.start + place.size for profile in gpu.profiles for place in profile.placements)
    return max(ends, default=0)


def profiles_rows(gpus: Iterable[MigGpu]) -> list[tuple[str, ...]]:
    """Return a table of the GPUs' profiles: a header, and a row for each profile."""
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
    """Return the lines about a GPU: its layout now and then, and the changes.

    A `layout` of None means that the GPU does not change.
    """
    now = Text("  now     ") + layout_line(gpu, layout_of(gpu), width)
    if layout is None:
        return [now, Text("  does not change")]
    then = Text("  then    ") + layout_line(gpu, layout, width)
    changes_of = [Text("         ") + line for line in change_lines(gpu, layout)]
    return [now, then, *changes_of]


def numbers(indices: Sequence[int]) -> str:
    """Return sorted numbers as text with ranges, such as 0-2, 4."""
    runs: list[list[int]] = []
    for index in indices:
        if runs and index == runs[-1][-1] + 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def change_lines(gpu: MigGpu, layout: Layout) -> list[Text]:
    """Return lines about the MIG devices to keep, destroy and create, and a change of the mode."""
    steps = changes.steps(gpu, layout)
    destroyed = {(s.gi, s.ci) for s in steps if isinstance(s, DestroyCompute)}
    profiles = {profile.kind: profile for profile in gpu.profiles}
    lines = []
    for gi in gpu.instances:
        for ci in gi.compute:
            name = device_name(profiles[gi.kind], ci.kind)
            verb, style = ("destroy", "red") if (gi.id, ci.id) in destroyed else ("keep", "dim")
            where = f"slice {gi.placement.start}, instance {gi.id}/{ci.id}"
            lines.append(Text(f"{verb:8}{name} at {where}", style=style))
    for step in steps:
        if isinstance(step, SetMode):
            text = f"{'mode':8}MIG {'on' if step.enabled else 'off'}"
            lines.append(Text(text, style="yellow"))
        elif isinstance(step, changes.Create):
            for compute in step.part.compute:
                name = device_name(profiles[step.part.kind], compute.kind)
                text = f"{'create':8}{name} at slice {step.part.placement.start}"
                lines.append(Text(text, style="green"))
        elif isinstance(step, CreateCompute):
            kind = next(gi.kind for gi in gpu.instances if gi.id == step.gi)
            name = device_name(profiles[kind], step.kind)
            lines.append(Text(f"{'create':8}{name} in instance {step.gi}", style="green"))
    return lines


def _free(slices: int, width: int) -> Text:
    return Text((".".center(width - 1) + "|") * max(slices, 0), style="dim")


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
