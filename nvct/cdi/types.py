# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: N815  the members have the names of the documents
"""The description of a CDI 1.1 document: the members of each object, their order and types.

`nvct.cdi.read.spec_fields` makes the readers of documents from these classes, so only this file
names the members. It imports nothing: importing `typing` would take longer than reading a spec.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeAlias, TypedDict

    from typing_extensions import Required

    Text: TypeAlias = str
    Flag: TypeAlias = bool
    Uint32: TypeAlias = int
    Int64: TypeAlias = int
    Major: TypeAlias = int
    Minor: TypeAlias = int
    Annotations: TypeAlias = dict[str, str]
else:

    class TypedDict:
        """Stands in for `typing.TypedDict`."""

        def __init_subclass__(cls, *, total: bool = True) -> None:
            """Accept the argument of `typing.TypedDict`."""


class DeviceNode(TypedDict, total=False):
    """A device node for the container."""

    path: Required[Text]
    hostPath: Text
    type: Text
    major: Major
    minor: Minor
    fileMode: Uint32
    permissions: Text
    uid: Uint32
    gid: Uint32


class NetDevice(TypedDict, total=False):
    """A network interface that moves into the container."""

    hostInterfaceName: Required[Text]
    name: Required[Text]


class Mount(TypedDict, total=False):
    """A mount for the container."""

    hostPath: Required[Text]
    containerPath: Required[Text]
    options: list[Text]
    type: Text


class Hook(TypedDict, total=False):
    """An OCI hook."""

    hookName: Required[Text]
    path: Required[Text]
    args: list[Text]
    env: list[Text]
    timeout: Int64


class IntelRdt(TypedDict, total=False):
    """Intel Resource Director Technology; replaces `intelRdt` of config.json."""

    closID: Text
    l3CacheSchema: Text
    memBwSchema: Text
    schemata: list[Text]
    enableCMT: Flag  # these two in 0.7.0 to 1.0.0 only
    enableMBM: Flag
    enableMonitoring: Flag


class ContainerEdits(TypedDict, total=False):
    """The changes that a device or a whole spec makes to a container."""

    env: list[Text]
    deviceNodes: list[DeviceNode]
    netDevices: list[NetDevice]
    hooks: list[Hook]
    mounts: list[Mount]
    intelRdt: IntelRdt
    additionalGids: list[Uint32]


class Device(TypedDict, total=False):
    """One selectable device."""

    name: Required[Text]
    annotations: Annotations
    containerEdits: Required[ContainerEdits]


class Spec(TypedDict, total=False):
    """A CDI spec file's content."""

    cdiVersion: Required[Text]
    kind: Required[Text]
    annotations: Annotations
    devices: Required[list[Device]]
    containerEdits: ContainerEdits
