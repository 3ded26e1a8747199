# SPDX-License-Identifier: Apache-2.0
"""The MIG profiles of known GPUs, from tables.toml."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import resources
from typing import Any

from nvct.config import toml
from nvct.errors import UsageError
from nvct.host.nvml.mig_model import MigGpu, MigProfile, Placement

NVIDIA = 0x10DE


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The profiles of one GPU model."""

    name: str
    ids: tuple[int, ...]
    profiles: tuple[MigProfile, ...]


@lru_cache(maxsize=1)
def tables() -> tuple[Table, ...]:
    """Return all tables, in the file's order."""
    text = resources.files("nvct.mig").joinpath("tables.toml").read_text(encoding="utf-8")
    data = toml.loads(text)
    layouts = data["layouts"]
    return tuple(_table(gpu, layouts[gpu["layout"]]["rows"]) for gpu in data["gpus"])


def of_device(device: int) -> Table | None:
    """Return the table of a PCI id (device in the upper 16 bits), None if there is none."""
    matches = (t for t in tables() if device >> 16 in t.ids and device & 0xFFFF == NVIDIA)
    return next(matches, None)


def of_name(name: str) -> Table:
    """Return a table by name, ignoring case, spaces and hyphens; UsageError if there is none."""

    def plain(text: str) -> str:
        return text.lower().replace(" ", "").replace("-", "")

    for table in tables():
        if plain(table.name) == plain(name):
            return table
    names = ", ".join(table.name for table in tables())
    raise UsageError(f"there is no MIG table for a GPU {name!r}", hint=f"use one of {names}")


def gpu_of(table: Table, index: int = 0) -> MigGpu:
    """Return a GPU of a table's model, without instances, for a plan without hardware."""
    return MigGpu(
        index=index,
        uuid=f"GPU-{index}",
        name=table.name,
        bus_id="",
        minor=-1,
        device=table.ids[0] << 16 | NVIDIA,
        subsystem=0,
        capable=True,
        profiles=table.profiles,
    )


def with_placements(gpu: MigGpu) -> MigGpu:
    """Return a GPU whose profiles have placements, those of a table if NVML does not report them.

    A GPU without a table gets that of a GPU with as many slices, because so far all such GPUs have
    the same placements; NVML refuses wrong ones.
    """
    if all(profile.placements for profile in gpu.profiles):
        return gpu
    table = of_device(gpu.device) or _alike(gpu)
    known = {(p.kind, p.slices): p.placements for p in table.profiles} if table else {}
    return replace(
        gpu,
        profiles=tuple(
            p if p.placements else replace(p, placements=known.get((p.kind, p.slices), ()))
            for p in gpu.profiles
        ),
    )


def _alike(gpu: MigGpu) -> Table | None:
    """Return the table with a GPU's number of slices that has most of its kinds of profiles."""
    slices = max(profile.slices for profile in gpu.profiles)
    kinds = {profile.kind for profile in gpu.profiles}
    alike = (each for each in tables() if max(p.slices for p in each.profiles) == slices)
    return max(alike, key=lambda each: len(kinds & {p.kind for p in each.profiles}), default=None)


def _table(gpu: dict[str, Any], rows: list[dict[str, Any]]) -> Table:
    profiles = (
        MigProfile(
            kind=row["kind"],
            id=row["kind"],
            name=name,
            slices=row["slices"],
            limit=row["limit"],
            placements=tuple(Placement(start, row["size"]) for start in row["starts"]),
        )
        for name, row in zip(gpu["names"], rows, strict=True)
    )
    return Table(name=gpu["name"], ids=tuple(gpu["ids"]), profiles=tuple(profiles))
