# SPDX-License-Identifier: Apache-2.0
"""What of the driver a container does not get, and why, for `nvct explain`. Cold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nvct.config.model import Config
from nvct.container.plan.model import Edits, Plan, is_wanted
from nvct.container.request.model import Request


def by_capability(
    request: Request, names: Sequence[str], plans: Sequence[Plan], config: Config
) -> list[dict[str, object]]:
    """Return the driver capabilities of the plans that a request does not get.

    Args:
        names: full CDI names of its devices.
        plans: that define the devices.

    Returns:
        Capability, number of paths that only it would bring, and the reason, as JSON has them.
    """
    present: set[str] = set()
    absent: dict[str, set[str]] = {}
    for edits in _edits(names, plans):
        for capability, part in {"": edits, **edits.get("parts", {})}.items():
            if not capability or is_wanted(capability, request.capabilities):
                present |= _contents(part)
            else:
                absent.setdefault(capability, set()).update(_contents(part))
    supported = config.supported_driver_capabilities
    return [
        {
            "capability": capability,
            "paths": len(contents - present),
            "why": "NVIDIA_DRIVER_CAPABILITIES does not ask for it"
            if "all" in supported or capability in supported
            else "supported-driver-capabilities of config.toml does not allow it",
        }
        for capability, contents in absent.items()
        if contents - present
    ]


def _contents(edits: Edits) -> set[str]:
    """Return the mounts of edits and the paths of their device nodes."""
    return {text for _, text in edits["mounts"]} | {node["path"] for node in edits["nodes"]}


def _edits(names: Sequence[str], plans: Sequence[Plan]) -> Iterator[Edits]:
    """Yield the edits of some devices and of their specifications, each once."""
    seen: set[tuple[int, str, int]] = set()
    for index, plan in enumerate(plans):
        for device in (plan["devices"][name] for name in names if name in plan["devices"]):
            spec = device["spec"]
            both = (
                ("spec", spec, plan["specs"][spec]["edits"]),
                ("device", device["edits"], plan["edits"][device["edits"]]),
            )
            for kind, number, edits in both:
                if (index, kind, number) not in seen:
                    seen.add((index, kind, number))
                    yield edits
