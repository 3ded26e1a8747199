# SPDX-License-Identifier: Apache-2.0
"""Parses the answer of verb mig strictly: all fields, each with its type."""

from __future__ import annotations

from nvct.host.nvml.answers import fields_of
from nvct.host.nvml.messages import MalformedMessageError
from nvct.host.nvml.mig_model import (
    ComputeInstance,
    GpuInstance,
    MigGpu,
    MigProfile,
    MigState,
    Placement,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.host.nvml.answers import Types
    from nvct.oci.jsontext import Json

STATE: Types = {"gpus": (list,)}
GPU: Types = {
    "index": (int,), "uuid": (str,), "name": (str,), "bus_id": (str,), "minor": (int,),
    "device": (int,), "subsystem": (int,), "capable": (bool,), "enabled": (bool,),
    "pending": (bool,), "profiles": (list,), "instances": (list,),
}  # fmt: skip
PROFILE: Types = {
    "kind": (int,), "id": (int,), "name": (str,), "slices": (int,), "limit": (int,),
    "placements": (list,), "memory_mib": (int,), "multiprocessors": (int,), "copy": (int,),
    "decoder": (int,), "encoder": (int,), "jpeg": (int,), "ofa": (int,),
}  # fmt: skip
INSTANCE: Types = {"id": (int,), "kind": (int,), "placement": (list,), "compute": (list,)}
COMPUTE: Types = dict.fromkeys(("id", "kind", "engine", "start", "size"), (int,))


def mig(value: Json) -> MigState:
    """Parse the MIG state of a machine.

    Raises:
        MalformedMessageError: the value is not one.
    """
    gpus = fields_of(value, "the MIG state", STATE)["gpus"]
    return MigState(gpus=tuple(_gpu(gpu) for gpu in gpus))


def number(value: Json) -> int:
    """Parse an instance's id.

    Raises:
        MalformedMessageError: the value is not a number.
    """
    if type(value) is not int:
        raise MalformedMessageError("an id is not a number")
    return value


def boolean(value: Json) -> bool:
    """Parse a truth value.

    Raises:
        MalformedMessageError: the value is not one.
    """
    if not isinstance(value, bool):
        raise MalformedMessageError("an answer is neither true nor false")
    return value


def _gpu(value: Json) -> MigGpu:
    fields = fields_of(value, "a GPU", GPU)
    fields["profiles"] = tuple(_profile(profile) for profile in fields["profiles"])
    fields["instances"] = tuple(_instance(instance) for instance in fields["instances"])
    return MigGpu(**fields)


def _profile(value: Json) -> MigProfile:
    fields = fields_of(value, "a MIG profile", PROFILE)
    fields["placements"] = tuple(_placement(place) for place in fields["placements"])
    return MigProfile(**fields)


def _instance(value: Json) -> GpuInstance:
    fields = fields_of(value, "a GPU instance", INSTANCE)
    fields["placement"] = _placement(fields["placement"])
    fields["compute"] = tuple(
        ComputeInstance(**fields_of(compute, "a compute instance", COMPUTE))
        for compute in fields["compute"]
    )
    return GpuInstance(**fields)


def _placement(value: Json) -> Placement:
    if isinstance(value, list) and len(value) == 2:
        start, size = value
        if type(start) is int and type(size) is int:
            return Placement(start, size)
    raise MalformedMessageError("a placement is not two numbers")
