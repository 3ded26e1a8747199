# SPDX-License-Identifier: Apache-2.0
"""The named configurations of a machine, in layers: the built-in tables, its hardware, a file.

A name of a later layer takes the place of the same name in an earlier one. So a user's file need
not list what the hardware can have anyway, and new GPUs are in no list that is too old.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from nvct.errors import HostError
from nvct.host.nvml.mig_model import MigGpu, MigState
from nvct.mig import config, export, tables
from nvct.mig.names import natural

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Literal, TypeAlias

    from nvct.mig.config import Spec

    Layer: TypeAlias = Literal["table", "hardware", "file"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """A configuration.

    Attributes:
        layer: that it is from.
        specs: its entries.
    """

    layer: Layer
    specs: Sequence[Spec]


def configs(state: MigState, text: str = "") -> dict[str, Named]:
    """Return all configurations by their names, sorted.

    Args:
        state: the machine.
        text: of the user's file; "" is none.

    Raises:
        DocumentError: the file is malformed.
    """
    known = MigState(gpus=tuple(_known_gpus()))
    found: dict[str, Named] = {}
    found.update(_named("table", config.parse(export.as_yaml(export.generated(known)))))
    try:
        of_hardware = export.as_yaml(export.generated(state))
        found.update(_named("hardware", config.parse(of_hardware)))
    except HostError:
        pass  # no GPU has a MIG mode
    if text:
        found.update(_named("file", config.parse(text)))
    return {name: found[name] for name in sorted(found, key=natural)}


def _known_gpus() -> Iterator[MigGpu]:
    """Yield a GPU for each PCI id of the tables."""
    for table in tables.tables():
        for number in table.ids:
            yield replace(tables.gpu_of(table), device=number << 16 | tables.NVIDIA)


def _named(layer: Layer, parsed: Mapping[str, Sequence[Spec]]) -> dict[str, Named]:
    return {name: Named(layer=layer, specs=specs) for name, specs in parsed.items()}
