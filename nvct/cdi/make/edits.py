# SPDX-License-Identifier: Apache-2.0
"""Makes CDI container edits from an inventory; merges, tidies and re-roots them. No I/O."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, TypeAlias, cast

from nvct.cdi.types import Spec
from nvct.cdi.versions import objects
from nvct.host.model import DeviceNode, DriverFile
from nvct.host.roots import join

Json: TypeAlias = dict[str, Any]

FILE_OPTIONS = ("ro", "nosuid", "nodev", "rbind", "rprivate")
SOCKET_OPTIONS = ("nosuid", "nodev", "rbind", "rprivate", "noexec")
PATH_OF = {"deviceNodes": "path", "mounts": "containerPath"}
# runtime-spec, "POSIX-platform Hooks": both run in the container's namespace. The program of
# createContainer is looked up in the runtime's namespace, that of startContainer in the
# container's.
CONTAINER_HOOKS = ("createContainer", "startContainer")


def make(
    nodes: Iterable[DeviceNode] = (),
    files: Iterable[DriverFile] = (),
    *,
    env: Sequence[str] = (),
    hooks: Sequence[Json] = (),
    node_numbers: bool = False,
    gid_groups: bool = True,
) -> Json:
    """Return container edits without empty lists; `gid_groups` adds groups of restricted nodes."""
    nodes = list(nodes)
    groups = {n.gid for n in nodes if n.gid and n.mode & 0o006 != 0o006}
    edits = {
        "env": list(env),
        "deviceNodes": [_node(node, numbers=node_numbers) for node in nodes],
        "mounts": [_mount(file) for file in files],
        "hooks": list(hooks),
        "additionalGids": sorted(groups) if gid_groups else [],
    }
    return {key: value for key, value in edits.items() if value}


def _node(node: DeviceNode, *, numbers: bool) -> Json:
    entry: Json = {"path": node.path}
    if node.host_path != node.path:
        entry["hostPath"] = node.host_path
    if numbers:
        entry.update({"type": "c", "major": node.major, "minor": node.minor})
    if node.mode & 0o777:
        entry["fileMode"] = node.mode & 0o777
    entry["permissions"] = "rwm"
    if node.gid:
        entry["gid"] = node.gid
    return entry


def _mount(file: DriverFile) -> Json:
    # As nvidia-container-toolkit: programs write to sockets and into the MPS directory.
    options = SOCKET_OPTIONS if file.kind == "socket" else FILE_OPTIONS
    return mount(file.host_path, file.container_path, options)


def mount(source: str, target: str, options: Sequence[str] = FILE_OPTIONS) -> Json:
    """Return the entry of a mount; by default it is read-only."""
    return {"hostPath": source, "containerPath": target, "options": list(options)}


def combined(parts: Iterable[Json]) -> Json:
    """Return container edits with all entries of several."""
    merged: Json = {}
    for part in parts:
        for key, entries in part.items():
            merged.setdefault(key, []).extend(entries)
    return merged


def tidy(edits: Json, common: Json) -> Json:
    """Return edits without duplicates and without the entries of the common edits, sorted.

    If no entry would remain, the common entries stay, because CDI refuses an empty device. Hooks
    and variables keep their order, which can matter; nodes and mounts are sorted.
    """
    tidied = {
        key: list({json.dumps(entry, sort_keys=True): entry for entry in entries}.values())
        for key, entries in edits.items()
    }
    rest = {
        key: [e for e in entries if e not in common.get(key, [])]
        for key, entries in tidied.items()
    }
    if any(rest.values()):
        tidied = rest
    for key, entries in tidied.items():
        if key in PATH_OF:
            entries.sort(key=lambda entry: path_key(entry[PATH_OF[key]]))
        elif key == "additionalGids":
            entries.sort()
    return {key: entries for key, entries in tidied.items() if entries}


def path_key(path: str) -> tuple[int, str]:
    """Return the sort key of mounts and nodes: parents before children, then by bytes."""
    return len([part for part in path.split("/") if part]), path


def move_root(spec: Json, source: str, target: str, *, in_container: bool = False) -> Json:
    """Return a spec with the paths below `source` moved to `target`.

    As in nvidia-container-toolkit, host paths are those of nodes and mounts, the programs of all
    hooks except startContainer, and the arguments of hooks that run outside the container. All
    others are container paths. Unlike there, a node whose container path moves keeps its host
    path.
    """
    moved = partial(_moved, source, target)
    spec = json.loads(json.dumps(spec))  # a copy, in which names of a device share no edits
    document = cast("Spec", spec)
    for node in objects(document, "deviceNodes"):
        path, host_path = node["path"], node.pop("hostPath", "") or node["path"]
        if in_container:
            node["path"] = moved(path)
        else:
            host_path = moved(host_path)
        # An equal hostPath is omitted: it would need CDI 0.5.0.
        if host_path != node["path"]:
            node["hostPath"] = host_path
    for mount in objects(document, "mounts"):
        key = "containerPath" if in_container else "hostPath"
        mount[key] = moved(mount[key])
    for hook in objects(document, "hooks"):
        if (hook["hookName"] == "startContainer") is in_container:
            hook["path"] = moved(hook["path"])
        if (hook["hookName"] in CONTAINER_HOOKS) is in_container and "args" in hook:
            # TARGET::LINK has two paths, the first of which may be relative.
            hook["args"] = ["::".join(map(moved, arg.split("::", 1))) for arg in hook["args"]]
    return spec


def _moved(source: str, target: str, path: str) -> str:
    """Return a path with another root; roots end at component boundaries, "" is "/"."""
    source = "/" + source.strip("/")
    prefix = source if source == "/" else source + "/"
    if path == source:
        return join(target, "/")
    return join(target, path[len(prefix) :]) if path.startswith(prefix) else path
