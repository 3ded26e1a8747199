# SPDX-License-Identifier: Apache-2.0
"""The kubelet's device plugin API, v1beta1: messages by their public field numbers, and methods.

`message("AllocateRequest")` is a class of protobuf's; no generated file is needed.
"""

from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from google.protobuf.message import Message

PACKAGE = "v1beta1"
MESSAGES = {
    "Empty": (),
    "DevicePluginOptions": (
        "bool pre_start_required", "bool get_preferred_allocation_available",
    ),
    "RegisterRequest": (
        "string version", "string endpoint", "string resource_name", "DevicePluginOptions options",
    ),
    "NUMANode": ("int64 ID",),
    "TopologyInfo": ("repeated NUMANode nodes",),
    "Device": ("string ID", "string health", "TopologyInfo topology"),
    "ListAndWatchResponse": ("repeated Device devices",),
    "ContainerPreferredAllocationRequest": (
        "repeated string available_deviceIDs", "repeated string must_include_deviceIDs",
        "int32 allocation_size",
    ),
    "PreferredAllocationRequest": (
        "repeated ContainerPreferredAllocationRequest container_requests",
    ),
    "ContainerPreferredAllocationResponse": ("repeated string deviceIDs",),
    "PreferredAllocationResponse": (
        "repeated ContainerPreferredAllocationResponse container_responses",
    ),
    "ContainerAllocateRequest": ("repeated string devices_ids",),
    "AllocateRequest": ("repeated ContainerAllocateRequest container_requests",),
    "Mount": ("string container_path", "string host_path", "bool read_only"),
    "DeviceSpec": ("string container_path", "string host_path", "string permissions"),
    "CDIDevice": ("string name",),
    "ContainerAllocateResponse": (
        "map envs", "repeated Mount mounts", "repeated DeviceSpec devices", "map annotations",
        "repeated CDIDevice cdi_devices",
    ),
    "AllocateResponse": ("repeated ContainerAllocateResponse container_responses",),
}  # fmt: skip
"""Fields in the order of their numbers, from 1; a map has strings as keys and values."""
METHODS = {
    "GetDevicePluginOptions": ("Empty", "DevicePluginOptions"),
    "ListAndWatch": ("Empty", "ListAndWatchResponse"),
    "GetPreferredAllocation": ("PreferredAllocationRequest", "PreferredAllocationResponse"),
    "Allocate": ("AllocateRequest", "AllocateResponse"),
}
REGISTER = f"/{PACKAGE}.Registration/Register"
_FIELD = descriptor_pb2.FieldDescriptorProto
_KINDS = {"string": _FIELD.TYPE_STRING, "bool": _FIELD.TYPE_BOOL, "int32": _FIELD.TYPE_INT32,
          "int64": _FIELD.TYPE_INT64}  # fmt: skip


def message(name: str) -> type[Message]:
    """Return the class of a message."""
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"{PACKAGE}.{name}"))


def call(channel: grpc.Channel, method: str, request: dict[str, Any], timeout_s: float) -> Any:
    """Return the answer to a call as JSON data; for a stream, its first message.

    Raises:
        grpc.RpcError: the plugin refuses the call.
    """
    asks, answers = METHODS[method]
    path = f"/{PACKAGE}.DevicePlugin/{method}"
    encode, decode = message(asks).SerializeToString, message(answers).FromString
    asked = json_format.ParseDict(request, message(asks)())
    if method == "ListAndWatch":
        stream = channel.unary_stream(path, encode, decode)(asked, timeout=timeout_s)
        first = next(stream)
        stream.cancel()
        return data(first)
    return data(channel.unary_unary(path, encode, decode)(asked, timeout=timeout_s))


def data(answer: Message) -> Any:
    """Return a message as JSON data, with the API's field names."""
    return json_format.MessageToDict(answer, preserving_proto_field_name=True)


def _build() -> descriptor_pool.DescriptorPool:
    file = descriptor_pb2.FileDescriptorProto(
        name="deviceplugin.proto", package=PACKAGE, syntax="proto3"
    )
    for name, fields in MESSAGES.items():
        target = file.message_type.add(name=name)
        for number, words in enumerate(fields, 1):
            _add_field(target, number, words.split())
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool


def _add_field(target: descriptor_pb2.DescriptorProto, number: int, words: list[str]) -> None:
    *kinds, name = words
    repeated = kinds[0] in ("repeated", "map")
    label = _FIELD.LABEL_REPEATED if repeated else _FIELD.LABEL_OPTIONAL
    field = target.field.add(name=name, number=number, label=label)
    kind = kinds[-1]
    if kind == "map":
        kind = f"{target.name}.{name.capitalize()}Entry"
        entry = target.nested_type.add(name=kind.rpartition(".")[2])
        entry.options.map_entry = True
        for index, part in enumerate(("key", "value"), 1):
            entry.field.add(
                name=part, number=index, type=_FIELD.TYPE_STRING, label=_FIELD.LABEL_OPTIONAL
            )
    if kind in _KINDS:
        field.type = _KINDS[kind]
    else:
        field.type = _FIELD.TYPE_MESSAGE
        field.type_name = f".{PACKAGE}.{kind}"


_POOL = _build()
