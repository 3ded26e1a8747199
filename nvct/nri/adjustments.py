# SPDX-License-Identifier: Apache-2.0
"""Edits of a plan in NRI's form, for engines that take no CDI names from plugins."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from nvct.errors import HostError
from nvct.nri import nri_pb2 as api

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.container.plan.model import Edits

HOOKS = {
    "prestart": "prestart", "createRuntime": "create_runtime",
    "createContainer": "create_container", "startContainer": "start_container",
    "poststart": "poststart", "poststop": "poststop",
}  # fmt: skip
"""Points of runtime-spec, and NRI's fields."""


def nodes(edits: Iterable[Edits]) -> list[dict[str, Any]]:
    """Return the device nodes of edits, as members of linux.devices."""
    return [json.loads(node["node"]) for edit in edits for node in edit["nodes"]]


def mounts(edits: Iterable[Edits]) -> Iterator[api.Mount]:
    """Yield the mounts of edits."""
    for _, text in (pair for edit in edits for pair in edit["mounts"]):
        mount = json.loads(text)
        yield api.Mount(
            destination=mount["destination"], type=mount.get("type", ""),
            source=mount.get("source", ""), options=mount.get("options", ()),
        )  # fmt: skip


def of(edits: Iterable[Edits]) -> api.ContainerAdjustment:
    """Return edits as an adjustment.

    Raises:
        HostError: NRI has no field for a part of them.
    """
    adjust = api.ContainerAdjustment()
    edits = list(edits)
    for node in nodes(edits):
        device = adjust.linux.devices.add(
            path=node["path"], type=node["type"], major=node.get("major", 0),
            minor=node.get("minor", 0),
        )  # fmt: skip
        for member, field in (("fileMode", "file_mode"), ("uid", "uid"), ("gid", "gid")):
            if member in node:
                getattr(device, field).value = node[member]
    for edit in edits:
        if edit["net"] or edit["rdt"]:
            raise HostError(
                "a CDI device has network devices or an RDT class, which this engine's NRI lacks",
                hint="use containerd 2.1 or CRI-O 1.34, or newer",
            )
        for text in edit["env"]:
            key, _, value = text.partition("=")
            adjust.env.add(key=key, value=value)
        for point, texts in edit["hooks"].items():
            for hook in map(json.loads, texts):
                added = getattr(adjust.hooks, HOOKS[point]).add(
                    path=hook["path"], args=hook.get("args", ()), env=hook.get("env", ())
                )
                if "timeout" in hook:
                    added.timeout.value = hook["timeout"]
    adjust.mounts.extend(mounts(edits))
    return adjust
