# SPDX-License-Identifier: Apache-2.0
"""How a claim wants its devices to be shared: the opaque configuration of NVIDIA's DRA driver.

Containers and pods that use the same claim share its GPU by the driver's own time-slicing. A
configuration that asks for something else is refused, because a pod would run without the limits
that it asked for. Contract: pure functions.
"""

from __future__ import annotations

from nvct.agent.dra.devices import DRIVER
from nvct.errors import RequestError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Any

    from nvct.agent.kubernetes.cluster import Object

VERSION = "resource.nvidia.com/v1beta1"
KINDS = {
    "GpuConfig": ("strategy", "timeSlicingConfig", "mpsConfig"),
    "MigDeviceConfig": ("strategy", "mpsConfig"),
}
"""The kinds of configurations, and the fields of `sharing` of each."""
TIME_SLICING, MPS = "TimeSlicing", "MPS"
INTERVALS = ("Default", "Short", "Medium", "Long")


def check(claim: Object, requests: Collection[str]) -> list[str]:
    """Return a sentence for each setting of a claim that has no effect.

    Args:
        claim: as the API server has it.
        requests: names of its requests that have devices of this driver.

    Raises:
        RequestError: a configuration is malformed, or asks for what this driver does not have.
    """
    devices = claim.get("status", {}).get("allocation", {}).get("devices", {})
    warnings = []
    for entry in devices.get("config", ()):
        opaque = entry.get("opaque") or {}
        named = {name.partition("/")[0] for name in entry.get("requests") or requests}
        if opaque.get("driver") == DRIVER and named & set(requests):
            warnings += _check(opaque.get("parameters"))
    return warnings


def _check(parameters: object) -> list[str]:
    if not isinstance(parameters, dict):
        raise RequestError("the claim's configuration is no object")
    version, kind = str(parameters.get("apiVersion", "")), str(parameters.get("kind"))
    if version != VERSION or kind not in KINDS:
        raise RequestError(
            f"the claim's configuration is of kind {version}/{kind}",
            hint=f"{DRIVER} of nvct has {' and '.join(KINDS)} of {VERSION}",
        )
    _check_fields(parameters, ("apiVersion", "kind", "sharing"), "")
    if parameters.get("sharing") is None:
        return []
    sharing = _check_fields(parameters["sharing"], KINDS[kind], "sharing")
    strategy = sharing.get("strategy", TIME_SLICING)
    if strategy == MPS or sharing.get("mpsConfig") is not None:
        raise RequestError(
            "the claim asks for sharing by MPS, which nvct does not have yet",
            hint="without it, its containers share the GPU by time-slicing",
        )
    if strategy != TIME_SLICING:
        raise RequestError(f"unknown sharing strategy {strategy!r}", hint=TIME_SLICING)
    config = sharing.get("timeSlicingConfig")
    if config is None:
        return []
    config = _check_fields(config, ("interval",), "sharing.timeSlicingConfig")
    interval = config.get("interval", INTERVALS[0])
    if interval not in INTERVALS:
        raise RequestError(f"unknown interval {interval!r}", hint=f"one of {', '.join(INTERVALS)}")
    return (
        [] if interval == INTERVALS[0] else [f"the time-slicing interval {interval} has no effect"]
    )


def _check_fields(table: object, known: Collection[str], path: str) -> dict[str, Any]:
    """Return a table of somebody's document, if all of its fields are known."""
    where = f"{path} of the claim's configuration" if path else "the claim's configuration"
    if not isinstance(table, dict):
        raise RequestError(f"{where} is no object")
    unknown = sorted(str(name) for name in table.keys() - set(known))
    if unknown:
        raise RequestError(
            f"{where} has no field {unknown[0]}", hint=f"known are {', '.join(known)}"
        )
    return table
