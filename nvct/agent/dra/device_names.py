# SPDX-License-Identifier: Apache-2.0
"""The names of the driver's CDI devices: asked for by the agent, written by NVML's worker."""

from __future__ import annotations

DRIVER_CLASS, CLAIM_CLASS = "driver", "claim"
MPS = "-mps"
"""The end of the name of a claim's CDI device for MPS."""


def device_name(uid: str, device: str, *, is_admin: bool) -> str:
    """Return a name of CDI; a claim may have a device twice, once of them with admin access."""
    return f"{uid}-{device}{'-admin' if is_admin else ''}"
