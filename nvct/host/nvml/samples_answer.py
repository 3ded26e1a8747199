# SPDX-License-Identifier: Apache-2.0
"""Parses the worker's answer to `samples` strictly: all fields, each with its type."""

from __future__ import annotations

from nvct.host.nvml.answers import check_texts, fields_of
from nvct.host.nvml.messages import MalformedMessageError
from nvct.host.nvml.sample_model import (
    VALUES,
    GpuSample,
    MigSample,
    NvmlSamples,
    ProcessSample,
    XidCount,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from nvct.host.nvml.answers import Types
    from nvct.oci.jsontext import Json

NUMBER = (int, float)
SAMPLES: Types = {
    "driver_version": (str,), "nvml_version": (str,), "watch_start": NUMBER,
    "watch_failure": (str,), "gpus": (list,), "unanswered": (dict,),
}  # fmt: skip
GPU: Types = {
    "index": (int,), "minor": (int,), "uuid": (str,), "bus_id": (str,), "name": (str,),
    "vbios": (str,), "serial": (str,), "brand": (str,), "values": (dict,), "errors": (dict,),
    "mig": (list,), "processes": (list,), "xids": (list,),
}  # fmt: skip
MIG: Types = {
    "uuid": (str,), "gi": (int,), "ci": (int,), "profile": (str,), "values": (dict,),
    "errors": (dict,),
}  # fmt: skip
PROCESS: Types = {
    "pid": (int,), "memory": (int, type(None)), "gi": (int,), "ci": (int,),
    "sm": (int, type(None)),
}  # fmt: skip
XID: Types = {"xid": (int,), "count": (int,), "at": NUMBER, "gi": (int,), "ci": (int,)}


def samples(value: Json) -> NvmlSamples:
    """Parse samples.

    Raises:
        MalformedMessageError: the value is not samples.
    """
    fields = fields_of(value, "the samples", SAMPLES)
    check_texts(fields["unanswered"], "the samples' field unanswered")
    fields["gpus"] = tuple(_gpu(gpu) for gpu in fields["gpus"])
    return NvmlSamples(**fields)


def _gpu(value: Json) -> GpuSample:
    fields = fields_of(value, "the sample of a GPU", GPU)
    _check_values(fields)
    fields["mig"] = tuple(_mig(mig) for mig in fields["mig"])
    fields["processes"] = tuple(
        ProcessSample(**fields_of(process, "a process", PROCESS))
        for process in fields["processes"]
    )
    fields["xids"] = tuple(XidCount(**fields_of(xid, "an XID", XID)) for xid in fields["xids"])
    return GpuSample(**fields)


def _mig(value: Json) -> MigSample:
    fields = fields_of(value, "the sample of a MIG device", MIG)
    _check_values(fields)
    return MigSample(**fields)


def _check_values(fields: dict[str, Any]) -> None:
    values = fields["values"]
    if not values.keys() <= VALUES.keys() or not all(type(v) in NUMBER for v in values.values()):
        raise MalformedMessageError("the sample's field values has an unknown or malformed value")
    check_texts(fields["errors"], "the sample's field errors")
