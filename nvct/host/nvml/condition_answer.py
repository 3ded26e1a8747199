# SPDX-License-Identifier: Apache-2.0
"""Parses the worker's answer to `conditions` strictly: all fields, each with its type."""

from __future__ import annotations

from nvct.host.nvml.answers import fields_of
from nvct.host.nvml.condition_model import (
    CONDITION_VALUES,
    GpuCondition,
    MigInstance,
    NvmlConditions,
)
from nvct.host.nvml.messages import MalformedMessageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.host.nvml.answers import Types
    from nvct.oci.jsontext import Json

GPU: Types = {"uuid": (str,), "error": (str,), "code": (int,), "values": (dict,), "mig": (list,)}
MIG: Types = {"uuid": (str,), "gi": (int,), "ci": (int,)}


def conditions(value: Json) -> NvmlConditions:
    """Parse conditions.

    Raises:
        MalformedMessageError: the value is not conditions.
    """
    gpus = fields_of(value, "the conditions", {"gpus": (list,)})["gpus"]
    return NvmlConditions(gpus=tuple(_gpu(gpu) for gpu in gpus))


def _gpu(value: Json) -> GpuCondition:
    fields = fields_of(value, "the condition of a GPU", GPU)
    for name, number in fields["values"].items():
        if name not in CONDITION_VALUES or type(number) not in (int, float):
            raise MalformedMessageError(f"the condition of a GPU has a malformed value {name}")
    fields["mig"] = tuple(
        MigInstance(**fields_of(mig, "a MIG instance", MIG)) for mig in fields["mig"]
    )
    return GpuCondition(**fields)
