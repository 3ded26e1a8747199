# SPDX-License-Identifier: Apache-2.0
"""The limits of a claim's `mpsConfig`: threads and memory of each client. Pure functions.

Fields and units are those of NVIDIA's DRA driver: memory counts in whole MiB, and a device is
named by its UUID or by its place among the claim's devices in the order of their UUIDs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from nvct.agent.dra.devices import MIB
from nvct.agent.dra.tables import checked
from nvct.agent.kubernetes import quantity
from nvct.errors import RequestError

THREADS = "defaultActiveThreadPercentage"
MEMORY = "defaultPinnedDeviceMemoryLimit"
OF_DEVICES = "defaultPerDevicePinnedMemoryLimit"


class Limits(NamedTuple):
    """The limits.

    Attributes:
        percentage: of a GPU's threads; 0 sets nothing.
        memory_mib: of each device; 0 sets nothing.
        of_devices: of single devices by UUID or number, instead of `memory_mib`.
    """

    percentage: int
    memory_mib: int
    of_devices: Mapping[str, int]

    def of(self, uuids: Sequence[str]) -> dict[str, int]:
        """Return the memory in MiB by the place of the device.

        Raises:
            RequestError: the claim does not have a device that is named.
        """
        places = {str(place): place for place in range(len(uuids))}
        places |= {uuid: place for place, uuid in enumerate(uuids)}
        limits = {str(place): self.memory_mib for place in range(len(uuids)) if self.memory_mib}
        for name, mib in self.of_devices.items():
            if name not in places:
                raise RequestError(
                    f"{OF_DEVICES} names {name!r}, which is no device of the claim",
                    hint=f"a number from 0 to {len(uuids) - 1}, or one of {', '.join(uuids)}",
                )
            limits[str(places[name])] = mib
        return limits


NO_LIMITS = Limits(0, 0, {})


def read(table: object) -> Limits:
    """Return the limits of an `mpsConfig`.

    Raises:
        RequestError: a field is unknown, or a value is malformed.
    """
    config = checked(table, (THREADS, MEMORY, OF_DEVICES), "sharing.mpsConfig")
    percentage = config.get(THREADS)
    if percentage is not None and not (type(percentage) is int and 0 < percentage <= 100):
        raise RequestError(f"{THREADS} is a whole number from 1 to 100, not {percentage!r}")
    memory = config.get(MEMORY)
    devices = config.get(OF_DEVICES)
    if devices is None:
        devices = {}
    elif not isinstance(devices, dict):
        raise RequestError(f"{OF_DEVICES} is no object")
    return Limits(
        percentage=percentage or 0,
        memory_mib=0 if memory is None else _mib(memory, MEMORY),
        of_devices={name: _mib(value, f"{OF_DEVICES}.{name}") for name, value in devices.items()},
    )


def _mib(value: object, name: str) -> int:
    is_text = isinstance(value, (str, int)) and not isinstance(value, bool)
    number = quantity.parse(str(value)) if is_text else None
    if number is None:
        raise RequestError(f"{name} is no quantity: {value!r}", hint="such as 4Gi or 512Mi")
    if number < MIB:
        raise RequestError(f"{name} is {value}, less than 1Mi", hint="memory counts in whole MiB")
    return int(number) // MIB
