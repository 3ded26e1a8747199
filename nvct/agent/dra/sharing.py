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

GROUP = "resource.nvidia.com/"
KINDS = ("GpuConfig", "MigDeviceConfig")
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
    version, kind = str(parameters.get("apiVersion", "")), parameters.get("kind")
    if not version.startswith(GROUP) or kind not in KINDS:
        raise RequestError(
            f"the claim's configuration is of kind {version}/{kind}",
            hint=f"{DRIVER} of nvct has {' and '.join(KINDS)} of {GROUP}v1beta1",
        )
    sharing = parameters.get("sharing")
    if sharing is None:
        return []
    strategy = _field(sharing, "strategy", "sharing") or TIME_SLICING
    if strategy == MPS:
        raise RequestError(
            "the claim asks for sharing by MPS, which nvct does not have yet",
            hint="without it, its containers share the GPU by time-slicing",
        )
    if strategy != TIME_SLICING:
        raise RequestError(f"unknown sharing strategy {strategy!r}", hint=TIME_SLICING)
    config = _field(sharing, "timeSlicingConfig", "sharing") or {}
    interval = _field(config, "interval", "sharing.timeSlicingConfig") or INTERVALS[0]
    if interval not in INTERVALS:
        raise RequestError(f"unknown interval {interval!r}", hint=f"one of {', '.join(INTERVALS)}")
    return (
        [] if interval == INTERVALS[0] else [f"the time-slicing interval {interval} has no effect"]
    )


def _field(table: Any, name: str, place: str) -> Any:  # noqa: ANN401 - of somebody's document
    if not isinstance(table, dict):
        raise RequestError(f"{place} of the claim's configuration is no object")
    return table.get(name)
