# SPDX-License-Identifier: Apache-2.0
"""Splits a spec into up to three: all devices, the coherent GPUs, the other GPUs. No I/O.

As nvidia-container-toolkit with the flag enable-coherent-annotations: schedulers on Grace systems
can request one class of GPUs. MIG devices are only in the whole spec, as there.
"""

from __future__ import annotations

from typing import cast

from nvct.cdi.make import transform
from nvct.cdi.make.generate import COHERENT_KEY, merge
from nvct.cdi.versions import minimum_version

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from nvct.cdi.types import Device, Spec

PARTS = {"true": "coherent", "false": "noncoherent"}


def split(spec: Spec) -> dict[str, Spec]:
    """Return specs by the suffix of their file names: "", "coherent", "noncoherent".

    The annotation that distinguishes the GPUs is removed, and a part without devices is omitted.
    Each part has a device `all` if the spec has one.
    """
    specs = {"": _spec(spec, spec["kind"], [_plain(device) for device in spec["devices"]])}
    has_all = any(device["name"] == "all" for device in spec["devices"])
    for value, suffix in PARTS.items():
        devices = [
            _plain(device)
            for device in spec["devices"]
            if device.get("annotations", {}).get(COHERENT_KEY) == value
        ]
        if devices and has_all:
            devices.append(_all(devices))
        if devices:
            specs[suffix] = _spec(spec, f"{spec['kind']}.{suffix}", devices)
    return specs


def _plain(device: Device) -> Device:
    """Return a device without the annotation."""
    annotations = {k: v for k, v in device.get("annotations", {}).items() if k != COHERENT_KEY}
    rest = {key: value for key, value in device.items() if key != "annotations"}
    return cast("Device", {**rest, **({"annotations": annotations} if annotations else {})})


def _all(devices: Sequence[Device]) -> Device:
    edits = merge(cast("dict[str, object]", device["containerEdits"]) for device in devices)
    return cast("Device", {"name": "all", "containerEdits": transform.tidy(edits, {})})


def _spec(original: Spec, kind: str, devices: list[Device]) -> Spec:
    spec = cast("Spec", {**original, "kind": kind, "devices": devices})
    spec["cdiVersion"] = minimum_version(spec)
    return spec
