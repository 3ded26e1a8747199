# SPDX-License-Identifier: Apache-2.0
"""A container's request: its GPUs, and what it asks for besides them. Hot."""

from __future__ import annotations

from nvct.cdi.names import is_qualified

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeAlias

    Env: TypeAlias = dict[str, str]

VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"
OWN_KIND = "nvidia.com/gpu"
RUNTIME_KIND = "runtime.nvidia.com/gpu"
"""Of this host's GPUs as nvct finds them, whatever the specs in the CDI folders say."""
FEATURES = {
    "gds": "NVIDIA_GDS",
    "mofed": "NVIDIA_MOFED",
    "gdrcopy": "NVIDIA_GDRCOPY",
    "nvswitch": "NVIDIA_NVSWITCH",
}
MIG_CAPABILITIES = {
    "mig_config": "NVIDIA_MIG_CONFIG_DEVICES",
    "mig_monitor": "NVIDIA_MIG_MONITOR_DEVICES",
}
JETPACK = "NVIDIA_REQUIRE_JETPACK"
IMEX = "NVIDIA_IMEX_CHANNELS"
EXTRAS = frozenset([*FEATURES.values(), *MIG_CAPABILITIES.values(), JETPACK, IMEX])


class Extras:
    """What a container asks for besides its GPUs.

    Attributes:
        gds, mofed, gdrcopy, nvswitch: its NVIDIA_<NAME> is "enabled".
        imex: numbers of IMEX channels, each once.
        imex_unmade: channels that have no device node on the host are given as well.
        mig_config, mig_monitor: access to the MIG capability of that name.
        csv_all: on a Tegra, all that JetPack's files list; true extras are all but this.
    """

    __slots__ = (
        "csv_all", "gdrcopy", "gds", "imex", "imex_unmade", "mig_config", "mig_monitor", "mofed",
        "nvswitch",
    )  # fmt: skip

    def __init__(self) -> None:
        self.gds = False
        self.mofed = False
        self.gdrcopy = False
        self.nvswitch = False
        self.imex: list[int] = []
        self.imex_unmade = False
        self.mig_config = False
        self.mig_monitor = False
        self.csv_all = False

    def __bool__(self) -> bool:
        """Tell whether there is anything to give besides GPUs."""
        return bool(
            self.gds
            or self.mofed
            or self.gdrcopy
            or self.nvswitch
            or self.imex
            or self.mig_config
            or self.mig_monitor
        )


class Request:
    """What a container asks for.

    Attributes:
        ids: as written, each once, in order; ["all"] alone when all; [] when none is true. But
            for mode cdi, whose specs are others', PCI bus ids are in the one form of plans.
        none: driver files and control nodes are wanted, but no GPU.
        kind: of the ids that name none.
        source: what brought the request, as a person would name it.
        qualified: there are ids, and each is a full CDI name.
        mode: "cdi", "jit-cdi", or "legacy" or "csv" if that is configured.
        notes: sentences for the log and for explanations.
        extras: what else is asked for; nothing in mode cdi.
        capabilities: driver capabilities, sorted; None for everything but 32-bit libraries.
        requirements: (variable, expression) pairs that have to hold.
    """

    __slots__ = (
        "capabilities",
        "extras",
        "ids",
        "kind",
        "mode",
        "none",
        "notes",
        "qualified",
        "requirements",
        "source",
    )

    def __init__(self, ids: list[str], source: str) -> None:
        self.ids = ids
        self.kind = RUNTIME_KIND
        self.none = not ids
        self.source = source
        self.qualified = bool(ids) and all(map(is_qualified, ids))
        self.mode = "jit-cdi"
        self.notes: list[str] = []
        self.extras = Extras()
        self.capabilities: list[str] | None = None
        self.requirements: list[tuple[str, str]] = []
