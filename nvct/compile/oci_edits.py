# SPDX-License-Identifier: Apache-2.0
"""CDI container edits as parts of an OCI config.json for this host.

Cold. Missing fields of a device node are read from the host's node at each call; the argument is
not changed. Rules as in the CDI library 1.1, with one addition: if the host's node has other
numbers than the spec, the spec is refused as stale. The library would give the container another
device, the one that has these numbers now.
"""

from __future__ import annotations

import os
import stat
from typing import Any, TypedDict

from nvct.cdi.types import ContainerEdits, DeviceNode, Hook, Mount
from nvct.errors import CdiSpecError, HostError, StaleSpecError

DEFAULT_ACCESS = "rwm"
NO_ACCESS = "none"
REGENERATE = "regenerate the spec, for NVIDIA: nvidia-ctk cdi generate"


class OciNode(TypedDict):
    """A device node.

    Attributes:
        node: the entry for linux.devices.
        rule: the one for linux.resources.devices, None if there is none.
    """

    path: str
    host: str
    node: dict[str, Any]
    rule: dict[str, Any] | None


class Edit(TypedDict):
    """Parts of config.json: hooks by point; `net`: linux.netDevices, `rdt`: linux.intelRdt."""

    env: list[str]
    nodes: list[OciNode]
    mounts: list[dict[str, Any]]
    hooks: dict[str, list[dict[str, Any]]]
    gids: list[int]
    net: dict[str, dict[str, str]]
    rdt: dict[str, Any]


def oci_edits(edits: ContainerEdits, *, source: str) -> Edit:
    """Return valid container edits as parts of config.json; messages name their source.

    Raises:
        HostError: a device node is missing.
        StaleSpecError: it has other numbers than in the spec.
        CdiSpecError: it has another type than in the spec.
    """
    hooks: dict[str, list[dict[str, Any]]] = {}
    for hook in edits.get("hooks", ()):
        hooks.setdefault(hook["hookName"], []).append(_hook(hook))
    gids = [gid for gid in edits.get("additionalGids", ()) if gid > 0]
    return {
        "env": list(edits.get("env", ())),
        "nodes": [_node(node, source) for node in edits.get("deviceNodes", ())],
        "mounts": [_mount(mount) for mount in edits.get("mounts", ())],
        "hooks": hooks,
        "gids": list(dict.fromkeys(gids)),
        "net": {
            device["hostInterfaceName"]: {"name": device["name"]}
            for device in edits.get("netDevices", ())
        },
        "rdt": dict(edits.get("intelRdt", {})),
    }


def _hook(hook: Hook) -> dict[str, Any]:
    oci_hook: dict[str, Any] = {"path": hook["path"]}
    if hook.get("args"):
        oci_hook["args"] = list(hook["args"])
    if hook.get("env"):
        oci_hook["env"] = list(hook["env"])
    if "timeout" in hook:
        oci_hook["timeout"] = hook["timeout"]
    return oci_hook


def _mount(mount: Mount) -> dict[str, Any]:
    """Return the OCI mount, without a type if the spec gives none, as the CDI library does."""
    oci_mount: dict[str, Any] = {"destination": mount["containerPath"]}
    if mount.get("type"):
        oci_mount["type"] = mount["type"]
    oci_mount["source"] = mount["hostPath"]
    if mount.get("options"):
        oci_mount["options"] = list(mount["options"])
    return oci_mount


def _node(node: DeviceNode, source: str) -> OciNode:
    host = node.get("hostPath") or node["path"]
    entry = _filled(node, host, source)
    for key in ("uid", "gid"):
        if key in node:
            entry[key] = node[key]
    return {"path": node["path"], "host": host, "node": entry, "rule": _rule(node, entry)}


def _filled(node: DeviceNode, host: str, source: str) -> dict[str, Any]:
    """Return the OCI device, completed from the host's node.

    A node with type and major number, or of type FIFO, is complete: the host's node may be missing
    or another one (CDI library: "minimally specified").
    """
    kind = node.get("type", "")
    is_complete = kind == "p" or bool(kind and node.get("major"))
    status = _status(host, source, may_be_missing=is_complete)
    host_kind = _kind(status.st_mode) if status else ""
    rdev = status.st_rdev if status and host_kind in {"b", "c"} else None
    if not is_complete:
        if not host_kind:
            raise CdiSpecError(f"{source}: {host} is no device node", hint="correct its hostPath")
        if kind and _plain(kind) != host_kind:
            raise CdiSpecError(f"{source}: {host} is of type {host_kind}, the spec says {kind}")
    kind = kind or host_kind
    entry: dict[str, Any] = {"path": node["path"], "type": kind}
    if kind != "p":
        entry["major"], entry["minor"] = node.get("major", 0), node.get("minor", 0)
        if not entry["major"] and rdev is not None:
            entry["major"], entry["minor"] = os.major(rdev), os.minor(rdev)
        if not is_complete and rdev is not None:
            _check_numbers(host, entry, rdev, source)
    if "fileMode" in node:
        entry["fileMode"] = node["fileMode"]
    elif status and host_kind == _plain(kind):
        entry["fileMode"] = stat.S_IMODE(status.st_mode)
    return entry


def _status(host: str, source: str, *, may_be_missing: bool) -> os.stat_result | None:
    """Return the status of the host's node; a symbolic link is not followed."""
    try:
        return os.lstat(host)
    except OSError as error:
        if may_be_missing:
            return None
        missing = isinstance(error, FileNotFoundError)
        problem = "is missing" if missing else f"cannot be used: {error.strerror}"
        raise HostError(f"{source}: device node {host} {problem}", hint=REGENERATE) from error


def _check_numbers(host: str, entry: dict[str, Any], rdev: int, source: str) -> None:
    numbers = (entry["major"], entry["minor"])
    if numbers != (os.major(rdev), os.minor(rdev)):
        raise StaleSpecError(
            f"{source}: {host} is device {os.major(rdev)}:{os.minor(rdev)}, "
            f"the spec says {numbers[0]}:{numbers[1]}",
            hint=REGENERATE,
        )


def _kind(mode: int) -> str:
    """Return the OCI type of a node by its mode, "" if it is not a node."""
    if stat.S_ISCHR(mode):
        return "c"
    if stat.S_ISBLK(mode):
        return "b"
    return "p" if stat.S_ISFIFO(mode) else ""


def _plain(kind: str) -> str:
    """Return the type as the host reports it: c for an unbuffered character device."""
    return "c" if kind == "u" else kind


def _rule(node: DeviceNode, entry: dict[str, Any]) -> dict[str, Any] | None:
    """Return the device rule; None for types that cgroups do not support, or without access."""
    access = node.get("permissions") or DEFAULT_ACCESS
    if entry["type"] not in {"b", "c"} or access == NO_ACCESS:
        return None
    return {
        "allow": True,
        "type": entry["type"],
        "major": entry["major"],
        "minor": entry["minor"],
        "access": access,
    }
