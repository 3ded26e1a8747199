# SPDX-License-Identifier: Apache-2.0
"""Changes of container edits and CDI specs: tidy, move to another root. No I/O."""

from __future__ import annotations

import json

from nvct.host.roots import join

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, TypeAlias

    Json: TypeAlias = dict[str, Any]

PATH_OF = {"deviceNodes": "path", "mounts": "containerPath"}


def tidy(edits: Json, common: Json) -> Json:
    """Return edits without doubles and without what the common edits have, sorted.

    What is in the common edits stays if nothing else would be left: CDI refuses an empty device.
    Hooks and environment keep their order, which may matter; node and mounts have none.
    """
    whole = {key: _unique(entries) for key, entries in edits.items()}
    rest = {
        key: [e for e in entries if e not in common.get(key, [])] for key, entries in whole.items()
    }
    if any(rest.values()):
        whole = rest
    for key, entries in whole.items():
        if key in PATH_OF:
            entries.sort(key=lambda entry: path_key(entry[PATH_OF[key]]))
        elif key == "additionalGids":
            entries.sort()
    return {key: entries for key, entries in whole.items() if entries}


def path_key(path: str) -> tuple[int, str]:
    """Return the order of mounts and nodes: parents before children, then by bytes."""
    return len([part for part in path.split("/") if part]), path


def move_host_root(spec: Json, source: str, target: str) -> Json:
    """Return a spec whose host paths below `source` are below `target`.

    Roots end at component boundaries. Hooks run on the host, their arguments name paths in the
    container, which stay.
    """
    source = "/" + source.strip("/")

    def moved(path: str) -> str:
        prefix = "/" if source == "/" else source + "/"
        if path != source and not path.startswith(prefix):
            return path
        return join(target, path[len(prefix) - 1 :] if path != source else "/")

    def edits(before: Json) -> Json:
        after = dict(before)
        if nodes := before.get("deviceNodes"):
            after["deviceNodes"] = [_moved_node(node, moved) for node in nodes]
        for key, name in (("mounts", "hostPath"), ("hooks", "path")):
            if entries := before.get(key):
                after[key] = [{**entry, name: moved(entry[name])} for entry in entries]
        return after

    devices = [
        {**device, "containerEdits": edits(device.get("containerEdits", {}))}
        for device in spec["devices"]
    ]
    return {**spec, "devices": devices, "containerEdits": edits(spec.get("containerEdits", {}))}


def _moved_node(node: Json, moved: Callable[[str], str]) -> Json:
    host_path = moved(str(node.get("hostPath", node["path"])))
    entry = {"path": node["path"]}
    if host_path != node["path"]:
        entry["hostPath"] = host_path
    return {**entry, **{k: v for k, v in node.items() if k not in ("path", "hostPath")}}


def _unique(entries: Iterable[Any]) -> list[Any]:
    by_text = {json.dumps(entry, sort_keys=True): entry for entry in entries}
    return list(by_text.values())
