# SPDX-License-Identifier: Apache-2.0
"""Parses the values of the worker's answers strictly: all fields, each with its type."""

from __future__ import annotations

from nvct.host.nvml.messages import MalformedMessageError
from nvct.host.nvml.model import (
    GpuAttributes,
    GpuLink,
    GpuProperties,
    MigAttributes,
    NvmlEvents,
    NvmlGpu,
    NvmlMig,
    NvmlReport,
    NvmlTopology,
    XidEvent,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, TypeAlias

    from nvct.oci.jsontext import Json

    Types: TypeAlias = Mapping[str, tuple[type, ...]]

MIG: Types = {"index": (int,), "uuid": (str,), "gi": (int,), "ci": (int,), "profile": (str,)}
GPU: Types = {
    "index": (int,), "minor": (int,), "uuid": (str,), "bus_id": (str,), "name": (str,),
    "mig_enabled": (bool,), "mig": (list,), "coherent": (bool, type(None)),
}  # fmt: skip
REPORT: Types = {
    "driver_version": (str,), "cuda_version": (str,), "gpus": (list,), "warnings": (list,),
    "unanswered": (dict,),
}  # fmt: skip
ATTRIBUTES: Types = {
    "memory_mib": (int, type(None)), "compute": (list,), "ecc": (bool, type(None)),
    "mig_capable": (bool,), "clique": (str,), "mig": (dict,),
}  # fmt: skip
MIG_ATTRIBUTES: Types = dict.fromkeys(
    (
        "memory_mib", "multiprocessors", "gi_slices", "ci_slices",
        "copy", "decoder", "encoder", "jpeg", "ofa",
    ),
    (int,),
)  # fmt: skip
PROPERTIES: Types = {"brand": (str,), "arch": (str,), "addressing": (str,)}
TOPOLOGY: Types = {"links": (list,)}
LINK: Types = {"gpus": (list,), "ancestor": (int,), "nvlinks": (int,)}
EVENTS: Types = {
    "watch": (int,), "events": (list,), "unwatched": (dict,), "unanswered": (dict,),
}  # fmt: skip
XID: Types = {"uuid": (str,), "xid": (int,), "gi": (int,), "ci": (int,)}


def nothing(value: Json) -> None:
    """Accept null, the answer of a verb that returns nothing.

    Raises:
        MalformedMessageError: the value is not null.
    """
    if value is not None:
        raise MalformedMessageError("an answer has an unexpected value")


def report(value: Json) -> NvmlReport:
    """Parse a report.

    Raises:
        MalformedMessageError: the value is not a report.
    """
    fields = fields_of(value, "the report", REPORT)
    if not all(isinstance(warning, str) for warning in fields["warnings"]):
        raise MalformedMessageError("the report's field warnings is not a list of strings")
    check_texts(fields["unanswered"], "the report's field unanswered")
    fields["warnings"] = tuple(fields["warnings"])
    fields["gpus"] = tuple(_gpu(gpu) for gpu in fields["gpus"])
    return NvmlReport(**fields)


def properties(value: Json) -> dict[str, GpuProperties]:
    """Parse the properties of GPUs, by UUID.

    Raises:
        MalformedMessageError: the value is not an object of properties.
    """
    if not isinstance(value, dict):
        raise MalformedMessageError("the properties are not an object")
    return {
        uuid: GpuProperties(**fields_of(gpu, "the properties of a GPU", PROPERTIES))
        for uuid, gpu in value.items()
    }


def attributes(value: Json) -> dict[str, GpuAttributes]:
    """Parse the attributes of GPUs, by UUID.

    Raises:
        MalformedMessageError: the value is not an object of attributes.
    """
    if not isinstance(value, dict):
        raise MalformedMessageError("the attributes are not an object")
    return {uuid: _attributes(gpu) for uuid, gpu in value.items()}


def topology(value: Json) -> NvmlTopology:
    """Parse the connections of GPUs.

    Raises:
        MalformedMessageError: the value is not a topology.
    """
    links = fields_of(value, "the topology", TOPOLOGY)["links"]
    return NvmlTopology(links=tuple(_link(link) for link in links))


def events(value: Json) -> NvmlEvents:
    """Parse events.

    Raises:
        MalformedMessageError: the value is not events.
    """
    fields = fields_of(value, "the events", EVENTS)
    for name in ("unwatched", "unanswered"):
        check_texts(fields[name], f"the events' field {name}")
    fields["events"] = tuple(XidEvent(**fields_of(e, "an event", XID)) for e in fields["events"])
    return NvmlEvents(**fields)


def _attributes(value: Json) -> GpuAttributes:
    fields = fields_of(value, "the attributes of a GPU", ATTRIBUTES)
    compute = fields["compute"]
    if len(compute) != 2 or not all(type(number) is int for number in compute):
        raise MalformedMessageError("a GPU's field compute is not two numbers")
    fields["compute"] = tuple(compute)
    fields["mig"] = {
        uuid: MigAttributes(**fields_of(mig, "the attributes of a MIG device", MIG_ATTRIBUTES))
        for uuid, mig in fields["mig"].items()
    }
    return GpuAttributes(**fields)


def _link(value: Json) -> GpuLink:
    fields = fields_of(value, "a link", LINK)
    gpus = fields["gpus"]
    if len(gpus) != 2 or not all(isinstance(uuid, str) for uuid in gpus):
        raise MalformedMessageError("a link's field gpus is not two UUIDs")
    fields["gpus"] = tuple(gpus)
    return GpuLink(**fields)


def _gpu(value: Json) -> NvmlGpu:
    fields = fields_of(value, "a GPU", GPU)
    fields["mig"] = tuple(NvmlMig(**fields_of(mig, "a MIG device", MIG)) for mig in fields["mig"])
    return NvmlGpu(**fields)


def check_texts(texts: dict[str, Any], name: str) -> None:
    """Check that the members of an object are strings.

    Raises:
        MalformedMessageError: one is not.
    """
    if not all(isinstance(text, str) for text in texts.values()):
        raise MalformedMessageError(f"{name} has a value that is no string")


def fields_of(value: Json, name: str, types: Types) -> dict[str, Any]:
    """Return the members of an object that has exactly these fields; true is not an integer.

    Raises:
        MalformedMessageError: it has other fields, or a field has another type.
    """
    if not isinstance(value, dict):
        raise MalformedMessageError(f"{name} is not an object")
    if value.keys() != types.keys():
        wrong = sorted(value.keys() ^ types.keys())
        raise MalformedMessageError(f"{name} lacks or has in excess: {', '.join(wrong)}")
    for field, kinds in types.items():
        if type(value[field]) not in kinds:
            raise MalformedMessageError(f"{name}'s field {field} has a wrong type")
    return dict(value)
