# SPDX-License-Identifier: Apache-2.0
"""What a container gets and does not get, as JSON data for `nvct explain`. Cold."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from nvct.config.model import Config
from nvct.container.plan import model
from nvct.container.plan.model import is_wanted
from nvct.container.request.model import OWN_KIND, RUNTIME_KIND, Request
from nvct.container.request.origin import Origin
from nvct.container.request.requirements import holds
from nvct.errors import NvctError
from nvct.oci.bundle import Bundle

FEATURE_WORDS = ("gds", "mofed", "gdrcopy", "nvswitch", "imex", "mig_config", "mig_monitor")


def left_out(
    request: Request, names: Sequence[str], plans: Sequence[model.Plan], config: Config
) -> list[dict[str, object]]:
    """Return the driver capabilities of the plans that a request does not get.

    Each has the number of paths that it would add, and the reason. `names` are the full CDI names
    of the request's devices, which the plans define.
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


def _contents(edits: model.Edits) -> set[str]:
    return {text for _, text in edits["mounts"]} | {node["path"] for node in edits["nodes"]}


def _edits(names: Sequence[str], plans: Sequence[model.Plan]) -> Iterator[model.Edits]:
    """Yield the edits of some devices and of the devices' specifications, each once."""
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


def policy_steps(origin: Origin | None) -> list[dict[str, object]]:
    """Return the policy's rules in the order of their evaluation."""
    steps = [] if origin is None else origin.results
    return [
        {"rule": one.rule, "then": one.then, "holds": one.holds, "why": one.why} for one in steps
    ]


def request_of(request: Request) -> dict[str, object]:
    """Return a container's request as JSON data."""
    extras = request.extras
    return {
        "source": request.source,
        "ids": request.ids,
        "mode": request.mode,
        "capabilities": request.capabilities,
        "besides": [word for word in FEATURE_WORDS if getattr(extras, word)],
    }


def requirements(request: Request, plans: list[model.Plan]) -> list[dict[str, object]]:
    """Return each requirement, the values that it is compared with, and whether it holds.

    Brand and architecture are compared for each requested GPU.
    """
    host = plans[0]["host"] if plans else {}
    facts = [{**host, **gpu} for gpu in _gpus(request, plans)] or [dict(host)]
    told: list[dict[str, object]] = []
    for name, expression in request.requirements:
        try:
            met: bool | None = all(holds(expression, one, name) for one in facts)
        except NvctError:
            met = None
        told.append({"variable": name, "expression": expression, "host": facts, "holds": met})
    return told


def _gpus(request: Request, plans: list[model.Plan]) -> list[dict[str, str]]:
    found: list[dict[str, str]] = []
    for plan in plans:
        known: dict[str, dict[str, str]] = plan.get("gpus", {})  # type: ignore[assignment]  # one plan alone has them
        for word in request.ids:
            device = word.rpartition("=")[2]
            for gpu in known.values() if device == "all" else [known.get(device, {})]:
                if gpu and gpu not in found:
                    found.append(gpu)
    return found


def devices(request: Request, plans: list[model.Plan]) -> list[dict[str, str | None]]:
    """Return the requested devices, and the CDI spec that defines each."""
    kind = OWN_KIND if request.kind == RUNTIME_KIND else request.kind
    names = [word if "=" in word else f"{kind}={word}" for word in request.ids]
    specs = {
        name: plan["specs"][plan["devices"][name]["spec"]]["path"]
        for plan in plans
        for name in names
        if name in plan["devices"]
    }
    return [{"name": name, "spec": specs.get(name)} for name in names]


def injected(bundle: Bundle) -> dict[str, list[Any]]:
    """Return what the edits add to config.json, and the prestart hooks that they remove."""
    before = json.loads(bundle.document.text)
    after = json.loads(bundle.document.render())
    points = after.get("hooks")
    hooks = {
        point: _new(before, after, "hooks", point)
        for point in (points if isinstance(points, dict) else ())
    }
    return {
        "env": _new(before, after, "process", "env"),
        "nodes": _new(before, after, "linux", "devices"),
        "rules": _new(before, after, "linux", "resources", "devices"),
        "mounts": _new(before, after, "mounts"),
        "hooks": [
            {"point": point, **hook}
            for point, new in hooks.items()
            for hook in new
            if isinstance(hook, dict)
        ],
        "gids": _new(before, after, "process", "user", "additionalGids"),
        "removed hooks": _new(after, before, "hooks", "prestart"),
    }


def _new(before: Any, after: Any, *path: str) -> list[Any]:  # noqa: ANN401  a config.json
    had, has = before, after
    for key in path:
        had = had.get(key) if isinstance(had, dict) else None
        has = has.get(key) if isinstance(has, dict) else None
    old = {json.dumps(item, sort_keys=True) for item in _listed(had)}
    return [item for item in _listed(has) if json.dumps(item, sort_keys=True) not in old]


def _listed(value: Any) -> list[Any]:  # noqa: ANN401  a config.json
    return value if isinstance(value, list) else []
