# SPDX-License-Identifier: Apache-2.0
"""The named configurations of a machine, in layers: the built-in tables, its hardware, a file.

A name of a later layer takes the place of the same name in an earlier one. So a user's file need
not list what the hardware can have anyway, and new GPUs are in no list that is too old.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from nvct.errors import HostError, UsageError
from nvct.host.nvml.mig_model import MigGpu, MigState
from nvct.mig import config, export, tables
from nvct.mig.config import Configs, Spec
from nvct.mig.layout import natural

Layer: TypeAlias = Literal["table", "hardware", "file"]


LAYERS: tuple[Layer, ...] = ("file", "hardware", "table")
"""The first one that has a name counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """A configuration."""

    layer: Layer
    specs: Sequence[Spec]


def configs(state: MigState, text: str = "") -> dict[str, Named]:
    """Return all configurations by their names, sorted.

    Args:
        text: of the user's file; "" is none.

    Raises:
        DocumentError: the file is malformed.
    """
    found: dict[str, Named] = {}
    for layer in reversed(LAYERS):
        parsed = _layer(layer, state, text)
        found.update({name: Named(layer=layer, specs=specs) for name, specs in parsed.items()})
    return {name: found[name] for name in sorted(found, key=natural)}


def find(state: MigState, text: str, name: str) -> Sequence[Spec]:
    """Return the configuration of a name; the arguments as in `configs`.

    Raises:
        UsageError: there is none.
        DocumentError: the file is malformed.
    """
    for layer in LAYERS:  # most names need no look at the tables
        parsed = _layer(layer, state, text)
        if name in parsed:
            return parsed[name]
    raise UsageError(
        f"there is no MIG configuration {name!r}", hint="nvct mig configs prints the names"
    )


def _layer(layer: Layer, state: MigState, text: str) -> Configs:
    if layer == "file":
        return config.parse(text) if text else {}
    known = MigState(gpus=tuple(_known_gpus())) if layer == "table" else state
    try:
        generated = export.generated(known)
    except HostError:
        return {}  # no GPU has a MIG mode
    return config.of_document({"version": export.VERSION, "mig-configs": generated})


def _known_gpus() -> Iterator[MigGpu]:
    """Yield a GPU for each PCI id of the tables."""
    for table in tables.tables():
        for number in table.ids:
            yield replace(tables.gpu_of(table), device=number << 16 | tables.NVIDIA)
