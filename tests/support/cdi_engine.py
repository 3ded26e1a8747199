# SPDX-License-Identifier: Apache-2.0
"""What an engine that reads CDI itself does with device names, by the rules of the CDI library."""

import json
from collections.abc import Sequence
from typing import Any

from nvct.cdi.make.oci_edits import fragments
from nvct.cdi.read import load
from nvct.cdi.types import ContainerEdits


def parsed(edits: ContainerEdits, source: str) -> dict[str, Any]:
    """Return container edits as parts of config.json, instead of texts."""
    texts = fragments(edits, source)
    return {
        **texts,
        "nodes": [
            {**n, "node": json.loads(n["node"]), "rule": json.loads(n["rule"] or "null")}
            for n in texts["nodes"]
        ],
        "mounts": [json.loads(text) for _, text in texts["mounts"]],
        "hooks": {point: list(map(json.loads, hooks)) for point, hooks in texts["hooks"].items()},
        "net": {name: json.loads(text) for name, text in texts["net"].items()},
        "rdt": json.loads(texts["rdt"] or "{}"),
    }


def inject(document: dict[str, Any], spec_path: str, names: Sequence[str]) -> dict[str, Any]:
    """Add the edits of a specification's devices to a config.json, and return it.

    The library sorts the mounts by the depth of their destination.
    """
    spec = load.load_file(spec_path)
    devices = {device["name"]: device["containerEdits"] for device in spec["devices"]}
    for edits in (*(devices[name] for name in names), spec.get("containerEdits", {})):
        added = parsed(edits, spec_path)
        document["process"].setdefault("env", []).extend(added["env"])
        linux = document["linux"]
        linux.setdefault("devices", []).extend(node["node"] for node in added["nodes"])
        rules = linux.setdefault("resources", {}).setdefault("devices", [])
        rules.extend(node["rule"] for node in added["nodes"] if node["rule"])
        document.setdefault("mounts", []).extend(added["mounts"])
        for point, hooks in added["hooks"].items():
            document.setdefault("hooks", {}).setdefault(point, []).extend(hooks)
    document["mounts"].sort(key=lambda mount: mount["destination"].rstrip("/").count("/"))
    return document
