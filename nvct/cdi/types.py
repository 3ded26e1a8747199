# SPDX-License-Identifier: Apache-2.0
"""Types of the CDI specification 1.1. Import them only under TYPE_CHECKING."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, TypedDict

Permissions: TypeAlias = str
NodeType: TypeAlias = Literal["b", "c", "u", "p"]
HookName: TypeAlias = Literal[
    "prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"
]


class _DeviceNode(TypedDict):
    path: str


class DeviceNode(_DeviceNode, total=False):
    """A device node for the container."""

    hostPath: str
    type: NodeType
    major: int
    minor: int
    fileMode: int
    permissions: Permissions
    uid: int
    gid: int


class NetDevice(TypedDict):
    """A network interface that moves into the container."""

    hostInterfaceName: str
    name: str


class _Mount(TypedDict):
    hostPath: str
    containerPath: str


class Mount(_Mount, total=False):
    """A mount for the container."""

    options: list[str]
    type: str


class _Hook(TypedDict):
    hookName: HookName
    path: str


class Hook(_Hook, total=False):
    """An OCI hook."""

    args: list[str]
    env: list[str]
    timeout: int


class IntelRdt(TypedDict, total=False):
    """Intel Resource Director Technology; replaces the container's own."""

    closID: str
    l3CacheSchema: str
    memBwSchema: str
    schemata: list[str]
    enableCMT: bool
    enableMBM: bool
    enableMonitoring: bool


class ContainerEdits(TypedDict, total=False):
    """The changes that a device or a whole spec makes to a container."""

    env: list[str]
    deviceNodes: list[DeviceNode]
    netDevices: list[NetDevice]
    mounts: list[Mount]
    hooks: list[Hook]
    intelRdt: IntelRdt
    additionalGids: list[int]


class _Device(TypedDict):
    name: str
    containerEdits: ContainerEdits


class Device(_Device, total=False):
    """One selectable device."""

    annotations: dict[str, str]


class _Spec(TypedDict):
    cdiVersion: str
    kind: str
    devices: list[Device]


class Spec(_Spec, total=False):
    """A CDI spec file's content."""

    annotations: dict[str, str]
    containerEdits: ContainerEdits


class OciNode(TypedDict):
    """A device node, compiled: see `nvct.compile.oci_edits`."""

    path: str
    host: str
    node: dict[str, Any]
    rule: dict[str, Any] | None
    rdev: int | None
    own: bool
    uid_given: bool
    gid_given: bool


class Edit(TypedDict):
    """Container edits, compiled: see `nvct.compile.oci_edits`."""

    env: list[str]
    nodes: list[OciNode]
    mounts: list[dict[str, Any]]
    hooks: dict[str, list[dict[str, Any]]]
    gids: list[int]
    net: dict[str, dict[str, str]]
    rdt: dict[str, Any]
