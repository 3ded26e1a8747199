# SPDX-License-Identifier: Apache-2.0
"""A spec of this host in parts: what every container gets, and what each capability adds to it.

For plans, which put together what NVIDIA_DRIVER_CAPABILITIES asks for without a new compilation.
The parts are no CDI specs by themselves: a device may have no edit in one. Two of them may have
the same entry: what a library needs comes with it.
"""

from __future__ import annotations

from typing import cast

from nvct.specgen import capabilities
from nvct.specgen.generate import generate

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeAlias

    from nvct.cdi.types import Spec
    from nvct.host.model import Capability, Inventory
    from nvct.specgen.generate import Options

    Json: TypeAlias = dict[str, Any]


def in_parts(inventory: Inventory, options: Options) -> tuple[Spec, dict[str, Spec]]:
    """Return the spec of what belongs to no capability, and what each capability adds.

    Raises:
        UsageError, UnknownDeviceError, HostError: as `generate`.
    """
    base = generate(capabilities.filter(inventory, ()), options)
    parts: dict[str, Spec] = {}
    for name in sorted(_capabilities(inventory)):
        if name == "compat32":  # of all the others
            everything = generate(capabilities.filter(inventory, capabilities.NAMES), options)
            usual = generate(capabilities.filter(inventory, capabilities.DEFAULT), options)
            parts[name] = _part(everything, usual)
        else:
            whole = generate(capabilities.filter(inventory, (name,)), options)
            parts[name] = _part(whole, base)
    return base, parts


def _part(whole: Spec, base: Spec) -> Spec:
    devices = {device["name"]: device["containerEdits"] for device in base["devices"]}
    more: Json = {
        "containerEdits": _beyond(whole.get("containerEdits"), base.get("containerEdits")),
        "devices": [
            {
                "name": device["name"],
                "containerEdits": _beyond(device["containerEdits"], devices[device["name"]]),
            }
            for device in whole["devices"]
        ],
    }
    return cast("Spec", {**whole, **more})


def _capabilities(inventory: Inventory) -> set[Capability]:
    """Return the capabilities that anything belongs to."""
    devices = inventory.devices
    files = [*inventory.files, *(file for device in devices for file in device.files)]
    nodes = [*inventory.control_nodes, *(node for device in devices for node in device.nodes)]
    nodes += [node for gpu in inventory.gpus for node in gpu.drm_nodes]
    return ({file.capability for file in files} | {node.capability for node in nodes}) - {""}


def _beyond(whole: Any, base: Any) -> Json:  # noqa: ANN401  container edits, as plain dicts
    """Return the edits that are not in the base; of a hook, those arguments that are not."""
    whole, base = whole or {}, base or {}
    more = {
        key: [entry for entry in entries if entry not in base.get(key, [])]
        for key, entries in whole.items()
    }
    known = [arg for hook in base.get("hooks", []) for arg in hook["args"]]
    for at, hook in enumerate(more.get("hooks", [])):
        if "apply" in hook["args"]:
            more["hooks"][at] = {**hook, "args": _new_args(hook["args"], known)}
    return {key: entries for key, entries in more.items() if entries}


def _new_args(args: list[str], known: list[str]) -> list[str]:
    """Return the program, `apply`, and the options that are not known, with their values."""
    at = args.index("apply") + 1
    found, words = args[:at], iter(args[at:])
    for word in words:
        pair = [word, next(words)] if word in ("--link", "--folder") else [word]
        if pair[-1] not in known:
            found += pair
    return found
