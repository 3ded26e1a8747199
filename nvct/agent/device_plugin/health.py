# SPDX-License-Identifier: Apache-2.0
"""Finds the devices that an XID error makes unhealthy: pure functions.

As in NVIDIA's device plugin, errors of applications are ignored, and DP_DISABLE_HEALTHCHECKS names
more of them, or all. DP_ENABLE_HEALTHCHECKS names exceptions; unlike there, also if all are off.
An error of a MIG device concerns all ids of that device; one of a GPU, all devices on it.
"""

from __future__ import annotations

from dataclasses import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from nvct.agent.device_plugin.resources import Device
    from nvct.host.nvml.model import XidEvent

APPLICATION = frozenset({13, 31, 43, 45, 68, 109})
"""XIDs that an application causes; the GPU works on."""
ALL = ("all", "xids")
DISABLE_ENV, ENABLE_ENV = "DP_DISABLE_HEALTHCHECKS", "DP_ENABLE_HEALTHCHECKS"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checks:
    """Which XIDs count.

    Attributes:
        ignored: XIDs that do not count.
        counted: XIDs that count though they are ignored.
        ignores_all, counts_all: whether all XIDs are in that set.
        malformed: words of the variables that are no XID.
    """

    ignored: frozenset[int] = APPLICATION
    counted: frozenset[int] = frozenset()
    ignores_all: bool = False
    counts_all: bool = False
    malformed: tuple[str, ...] = ()

    def counts(self, xid: int) -> bool:
        """Return whether an XID makes a device unhealthy."""
        if self.counts_all or xid in self.counted:
            return True
        return not self.ignores_all and xid not in self.ignored


def checks(env: Mapping[str, str]) -> Checks:
    """Return what the variables say."""
    ignored, ignores_all, wrong = _xids(env.get(DISABLE_ENV, ""))
    counted, counts_all, more_wrong = _xids(env.get(ENABLE_ENV, ""))
    return Checks(
        ignored=APPLICATION | ignored,
        counted=counted,
        ignores_all=ignores_all,
        counts_all=counts_all,
        malformed=(*wrong, *more_wrong),
    )


def affected(devices: Iterable[Device], event: XidEvent) -> list[str]:
    """Return the ids of the devices that an event concerns; all if its GPU is unknown."""
    return [device.id for device in devices if _concerns(event, device)]


def _concerns(event: XidEvent, device: Device) -> bool:
    if not event.uuid:
        return True
    if event.uuid not in (device.gpu, device.uuid):
        return False
    is_whole = event.gi < 0 or event.ci < 0
    return is_whole or device.instance is None or device.instance == (event.gi, event.ci)


def _xids(text: str) -> tuple[frozenset[int], bool, tuple[str, ...]]:
    words = [word.strip().lower() for word in text.split(",") if word.strip()]
    numbers = frozenset(int(word) for word in words if word.isascii() and word.isdigit())
    wrong = tuple(w for w in words if w not in ALL and not (w.isascii() and w.isdigit()))
    return numbers, any(word in ALL for word in words), wrong
