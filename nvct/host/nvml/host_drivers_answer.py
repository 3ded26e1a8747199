# SPDX-License-Identifier: Apache-2.0
"""Parses the worker's answer about the drivers of vGPUs' hosts."""

from __future__ import annotations

from nvct.host.gpu.vgpu import HostDriver
from nvct.host.nvml.messages import MalformedMessageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.oci.jsontext import Json


def host_drivers(value: Json) -> list[HostDriver]:
    """Parse the drivers of vGPUs' hosts.

    Raises:
        MalformedMessageError: the value is no list of them.
    """
    drivers: list[HostDriver] = []
    for driver in value if isinstance(value, list) else (None,):
        if not (isinstance(driver, list) and len(driver) == 2):
            raise MalformedMessageError("the drivers of vGPUs' hosts are no list of pairs")
        version, branch = driver
        if not (isinstance(version, str) and isinstance(branch, str)):
            raise MalformedMessageError("a driver of a vGPU's host has a value that is no string")
        drivers.append(HostDriver(version, branch))
    return drivers
