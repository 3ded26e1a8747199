# SPDX-License-Identifier: Apache-2.0
"""CDI container edits as fragments of an OCI config.json: nodes, device rules, mounts, hooks.

Cold side. Missing fields of a device node are read from the host's node at each call; the argument
is not changed. The rules are those of the CDI library 1.1, with one addition: if the host's node
has other numbers than the spec, the spec is refused as stale. The library would give the container
another device, the one that has these numbers now.
"""

from __future__ import annotations

import os
import stat
from typing import Any

from nvct.cdi.types import ContainerEdits, DeviceNode, Hook, Mount
from nvct.container.plan import model
from nvct.errors import CdiSpecError, HostError, StaleSpecError
from nvct.oci.jsontext import dumps

DEFAULT_ACCESS = "rwm"
NO_ACCESS = "none"
REGENERATE = "regenerate the spec, for NVIDIA: nvidia-ctk cdi generate"


def fragments(edits: ContainerEdits, source: str) -> model.Edits:
    """Return valid edits as JSON texts to paste into config.json; messages name the `source`.

    Raises HostError if a device node is missing, StaleSpecError or CdiSpecError if it has other
    numbers or another type than in the spec.
    """
    hooks: dict[str, list[str]] = {}
    for hook in edits.get("hooks", ()):
        hooks.setdefault(hook["hookName"], []).append(_hook(hook))
    rdt = edits.get("intelRdt")
    return {
        "env": list(edits.get("env", ())),
        "nodes": [_node(node, source) for node in edits.get("deviceNodes", ())],
        "mounts": [_mount(mount) for mount in edits.get("mounts", ())],
        "hooks": hooks,
        "gids": list(dict.fromkeys(gid for gid in edits.get("additionalGids", ()) if gid > 0)),
        "net": {
            device["hostInterfaceName"]: dumps({"name": device["name"]})
            for device in edits.get("netDevices", ())
        },
        "rdt": dumps(dict(rdt)) if rdt else "",
    }


def _hook(hook: Hook) -> str:
    oci_hook: dict[str, Any] = {"path": hook["path"]}
    for key in ("args", "env"):
        if hook.get(key):
            oci_hook[key] = hook[key]
    if "timeout" in hook:
        oci_hook["timeout"] = hook["timeout"]
    return dumps(oci_hook)


def _mount(mount: Mount) -> list[str]:
    """Return destination and OCI mount, without a type if the spec gives none (CDI library)."""
    oci_mount: dict[str, Any] = {"destination": mount["containerPath"]}
    if mount.get("type"):
        oci_mount["type"] = mount["type"]
    oci_mount["source"] = mount["hostPath"]
    if mount.get("options"):
        oci_mount["options"] = mount["options"]
    return [mount["containerPath"], dumps(oci_mount)]


def _node(node: DeviceNode, source: str) -> model.DeviceNode:
    host = node.get("hostPath") or node["path"]
    entry = _filled(node, host, source)
    for key in ("uid", "gid"):
        if key in node:
            entry[key] = node[key]
    return {"path": node["path"], "host": host, "node": dumps(entry), "rule": _rule(node, entry)}


def _filled(node: DeviceNode, host: str, source: str) -> dict[str, Any]:
    """Return the OCI device, completed from the host's node.

    A node with type and major number, or of type FIFO, is complete: the host's node can be missing
    or different (CDI library: "minimally specified").
    """
    kind = node.get("type", "")
    is_complete = kind == "p" or bool(kind and node.get("major"))
    status = _status(host, source, may_be_missing=is_complete)
    host_kind = _kind(status.st_mode) if status else ""
    rdev = status.st_rdev if status and host_kind in {"b", "c"} else None
    if not is_complete:
        if not host_kind:
            raise CdiSpecError(
                f"{source}: {host} is not a device node", hint="correct its hostPath"
            )
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


def _rule(node: DeviceNode, entry: dict[str, Any]) -> str:
    """Return the device rule; "" for types that cgroups do not support, or without access."""
    access = node.get("permissions") or DEFAULT_ACCESS
    if entry["type"] not in {"b", "c"} or access == NO_ACCESS:
        return ""
    numbers = {key: entry[key] for key in ("type", "major", "minor")}
    return dumps({"allow": True, **numbers, "access": access})
