# SPDX-License-Identifier: Apache-2.0
"""What NVML reports about the health of GPUs, as values."""

from __future__ import annotations

from dataclasses import dataclass, field

CONDITION_VALUES = (
    "ecc_corrected", "ecc_uncorrected", "remap_pending", "remap_failed", "retired_pending",
    "recovery_action", "energy",
)  # fmt: skip
"""Names of values, as in `sample_model.VALUES`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MigInstance:
    """A MIG device."""

    uuid: str
    gi: int
    ci: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuCondition:
    """A GPU.

    Attributes:
        uuid: also of a GPU that is lost, if it answered before; otherwise "".
        error: why NVML refuses the GPU; "" if it does not.
        code: the number of that error, nvml.h NVML_ERROR_*; 0 if there is none.
        values: by the names in CONDITION_VALUES; those that NVML does not report are missing.
        mig: its MIG devices; empty unless it is in MIG mode.
    """

    uuid: str
    error: str = ""
    code: int = 0
    values: dict[str, float] = field(default_factory=dict)
    mig: tuple[MigInstance, ...] = ()

    def __post_init__(self) -> None:
        """Refuse a value that nobody knows.

        Raises:
            ValueError: there is one.
        """
        if unknown := [name for name in self.values if name not in CONDITION_VALUES]:
            raise ValueError(f"the value {unknown[0]!a} is unknown")


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlConditions:
    """All GPUs of a machine that are known, and do not hang."""

    gpus: tuple[GpuCondition, ...] = ()
