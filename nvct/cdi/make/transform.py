# SPDX-License-Identifier: Apache-2.0
"""Changes to container edits and CDI specs: tidying, other roots of paths. No I/O."""

from __future__ import annotations

import json
from functools import partial

from nvct.host.roots import join

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, TypeAlias

    Json: TypeAlias = dict[str, Any]

PATH_OF = {"deviceNodes": "path", "mounts": "containerPath"}
# runtime-spec, "POSIX-platform Hooks": both run in the container's namespace; createContainer's
# program is looked up in the runtime's namespace, startContainer's in the container's.
CONTAINER_HOOKS = ("createContainer", "startContainer")


def tidy(edits: Json, common: Json) -> Json:
    """Return edits without duplicates and without the entries of the common edits, sorted.

    If no entry remains, the common entries stay: CDI refuses an empty device. Hooks and
    environment keep their order, which may matter; that of nodes and mounts does not.
    """
    tidied = {key: _unique(entries) for key, entries in edits.items()}
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


def move_host_root(spec: Json, source: str, target: str) -> Json:
    """Return a spec with the host paths below `source` moved to `target`.

    As nvidia-container-toolkit: host paths are those of nodes and mounts, the programs of hooks
    but startContainer's, and the arguments of hooks that run outside the container.
    """
    moved = partial(_moved, source, target)

    def node(entry: Json) -> Json:
        host_path = moved(entry.get("hostPath") or entry["path"])
        return _node(entry, entry["path"], host_path)

    def hook(entry: Json) -> Json:
        after = dict(entry)
        if entry["hookName"] != "startContainer":
            after["path"] = moved(entry["path"])
        if entry["hookName"] not in CONTAINER_HOOKS and "args" in entry:
            after["args"] = [_moved_argument(arg, moved) for arg in entry["args"]]
        return after

    def mount(entry: Json) -> Json:
        return {**entry, "hostPath": moved(entry["hostPath"])}

    return _each_edit(spec, {"deviceNodes": node, "mounts": mount, "hooks": hook})


def move_container_root(spec: Json, source: str, target: str) -> Json:
    """Return a spec with the container paths below `source` moved to `target`.

    As nvidia-container-toolkit: container paths are those of nodes and mounts, the programs of
    startContainer hooks, and the arguments of createContainer and startContainer hooks. Unlike
    there, a node that moves in the container keeps its host path.
    """
    moved = partial(_moved, source, target)

    def node(entry: Json) -> Json:
        return _node(entry, moved(entry["path"]), entry.get("hostPath") or entry["path"])

    def hook(entry: Json) -> Json:
        after = dict(entry)
        if entry["hookName"] == "startContainer":
            after["path"] = moved(entry["path"])
        if entry["hookName"] in CONTAINER_HOOKS and "args" in entry:
            after["args"] = [_moved_argument(arg, moved) for arg in entry["args"]]
        return after

    def mount(entry: Json) -> Json:
        return {**entry, "containerPath": moved(entry["containerPath"])}

    return _each_edit(spec, {"deviceNodes": node, "mounts": mount, "hooks": hook})


def _each_edit(spec: Json, changes: dict[str, Callable[[Json], Json]]) -> Json:
    """Return a spec with changed entries in the common edits and in every device."""

    def edits(before: Json) -> Json:
        return {
            key: [changes[key](entry) for entry in entries] if key in changes else entries
            for key, entries in before.items()
        }

    devices = [
        {**device, "containerEdits": edits(device.get("containerEdits", {}))}
        for device in spec["devices"]
    ]
    after = {**spec, "devices": devices}
    if "containerEdits" in spec:
        after["containerEdits"] = edits(spec["containerEdits"])
    return after


def _moved(source: str, target: str, path: str) -> str:
    """Return a path with another root; roots end at component boundaries, "" is "/"."""
    source = "/" + source.strip("/")
    prefix = source if source == "/" else source + "/"
    if path == source:
        return join(target, "/")
    return join(target, path[len(prefix) :]) if path.startswith(prefix) else path


def _moved_argument(argument: str, moved: Callable[[str], str]) -> str:
    """Return an argument of a hook; `TARGET::LINK` has two paths, the first may be relative."""
    return "::".join(moved(part) for part in argument.split("::", 1))


def _node(node: Json, path: str, host_path: str) -> Json:
    """Return a node with other paths; an equal hostPath is omitted, it would need CDI 0.5.0."""
    rest = {k: v for k, v in node.items() if k not in ("path", "hostPath")}
    return {"path": path, **({"hostPath": host_path} if host_path != path else {}), **rest}


def _unique(entries: Iterable[Any]) -> list[Any]:
    by_text = {json.dumps(entry, sort_keys=True): entry for entry in entries}
    return list(by_text.values())
