# SPDX-License-Identifier: Apache-2.0
"""The request of a container: GPUs and extras. Hot."""

from __future__ import annotations

from nvct.cdi.names import is_qualified
from nvct.paths import GPU_KIND

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeAlias

    Env: TypeAlias = dict[str, str]

VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"
CAPABILITIES = "NVIDIA_DRIVER_CAPABILITIES"
OWN_KIND = GPU_KIND
RUNTIME_KIND = f"runtime.{GPU_KIND}"
"""The GPUs that nvct discovers on this host; specs in the CDI folders do not define it."""
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
BY_ANNOTATION = "annotation "  # The start of the source of a request by annotation
BY_ENGINE = "engine devices"  # The source of devices that the engine itself put into config.json
EXTRAS = frozenset([*FEATURES.values(), *MIG_CAPABILITIES.values(), JETPACK, IMEX])


class Extras:
    """What a container requests besides GPUs."""

    __slots__ = (
        "csv_all", "gdrcopy", "gds", "imex", "imex_unmade", "mig_config", "mig_monitor", "mofed",
        "nvswitch",
    )  # fmt: skip

    def __init__(self) -> None:
        # gds, mofed, gdrcopy, nvswitch: NVIDIA_<NAME> is "enabled"
        self.gds = False
        self.mofed = False
        self.gdrcopy = False
        self.nvswitch = False
        self.imex: list[int] = []  # distinct numbers of IMEX channels
        self.imex_unmade = False  # include channels without a device node on the host
        # mig_config, mig_monitor: access to the MIG capability of that name
        self.mig_config = False
        self.mig_monitor = False
        # on Tegra, everything in the CSV files of JetPack; not counted by __bool__
        self.csv_all = False

    def __bool__(self) -> bool:
        return any(getattr(self, name) for name in (*FEATURES, "imex", *MIG_CAPABILITIES))


class Want:
    """What the word free:N asks for; `nvct.container.request.free` parses it."""

    __slots__ = ("count", "memory", "profile", "word")

    def __init__(self, word: str, count: int) -> None:
        self.word = word
        self.count = count  # of devices, at least 1
        self.memory = 0  # bytes that each has at least; 0 for any
        self.profile = ""  # of MIG devices, as 1g.10gb; "" for GPUs that are not in MIG mode


class Request:
    """What a container requests."""

    __slots__ = (
        "capabilities", "extras", "free", "ids", "kind", "mode", "none", "notes", "plans",
        "qualified", "requirements", "source",
    )  # fmt: skip

    def __init__(self, ids: list[str], source: str) -> None:
        # distinct, in order, as written; ["all"] for all devices; empty if `none` is true. PCI bus
        # ids have the form of plans, except in mode cdi, whose specs are not ours.
        self.ids = ids
        self.kind = RUNTIME_KIND  # the CDI kind of unqualified ids
        self.none = not ids  # the container gets driver files and control nodes, but no GPU
        self.source = source
        self.qualified = bool(ids) and all(map(is_qualified, ids))
        self.mode = "jit-cdi"  # "cdi" or "jit-cdi"; "legacy" or "csv" if configured
        self.notes: list[str] = []
        self.extras = Extras()  # other requested features; none in mode cdi
        # sorted driver capabilities; None for all except 32-bit libraries
        self.capabilities: list[str] | None = None
        # (variable, expression) pairs that must hold
        self.requirements: list[tuple[str, str]] = []
        # what the word free:N asks for, if that is the request; `ids` has that word, and later the
        # UUIDs of the chosen devices
        self.free: Want | None = None
        # a fingerprint of each plan that was used: the time of its compilation in ns since 1970,
        # and the driver's version
        self.plans: list[str] = []

    @property
    def asked(self) -> str:
        """What is asked for, as a user wrote it."""
        if self.free is not None:
            return self.free.word
        return ", ".join(self.ids) or "the driver alone"
