# SPDX-License-Identifier: Apache-2.0
"""A spec of this host in parts: what every container gets, and what each capability adds to it.

For plans, which put together what NVIDIA_DRIVER_CAPABILITIES asks for without a new compilation.
The parts are no CDI specs by themselves: a device may have no edit in one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from nvct.specgen.generate import generate

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
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
    base = generate(_only(inventory, ("",)), options)
    parts: dict[str, Spec] = {}
    for name in sorted(_capabilities(inventory)):
        whole = generate(_only(inventory, ("", name)), options)
        devices = {device["name"]: device for device in base["devices"]}
        more: Json = {
            "containerEdits": _beyond(whole.get("containerEdits"), base.get("containerEdits")),
            "devices": [
                {
                    "name": device["name"],
                    "containerEdits": _beyond(
                        device["containerEdits"], devices[device["name"]]["containerEdits"]
                    ),
                }
                for device in whole["devices"]
            ],
        }
        parts[name] = cast("Spec", {**whole, **more})
    return base, parts


def _capabilities(inventory: Inventory) -> set[Capability]:
    nodes = [*inventory.control_nodes, *(n for gpu in inventory.gpus for n in gpu.drm_nodes)]
    found = {file.capability for file in inventory.files} | {node.capability for node in nodes}
    return found - {""}


def _only(inventory: Inventory, names: Iterable[Capability]) -> Inventory:
    """Return an inventory less what belongs to other capabilities."""
    wanted = set(names)
    return replace(
        inventory,
        files=tuple(f for f in inventory.files if f.capability in wanted),
        control_nodes=tuple(n for n in inventory.control_nodes if n.capability in wanted),
        gpus=tuple(
            replace(gpu, drm_nodes=tuple(n for n in gpu.drm_nodes if n.capability in wanted))
            for gpu in inventory.gpus
        ),
    )


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
