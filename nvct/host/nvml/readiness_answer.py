# SPDX-License-Identifier: Apache-2.0
"""Parses the worker's answer to `readiness` strictly: all fields, each with its type."""

from __future__ import annotations

from nvct.host.nvml.answers import fields_of
from nvct.host.nvml.readiness_model import GpuReadiness, NvmlReadiness

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.host.nvml.answers import Types
    from nvct.oci.jsontext import Json

GPU: Types = {
    "bus_id": (str,), "persistence": (bool, type(None)), "fabric": (int, type(None)),
    "fabric_status": (int,),
}  # fmt: skip


def readiness(value: Json) -> NvmlReadiness:
    """Parse the readiness of all GPUs.

    Raises:
        MalformedMessageError: the value is none.
    """
    gpus = fields_of(value, "the readiness of GPUs", {"gpus": (list,)})["gpus"]
    return NvmlReadiness(
        gpus=tuple(GpuReadiness(**fields_of(gpu, "the readiness of a GPU", GPU)) for gpu in gpus)
    )
