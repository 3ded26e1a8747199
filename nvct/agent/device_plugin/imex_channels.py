# SPDX-License-Identifier: Apache-2.0
"""The IMEX channels that every container gets."""

from __future__ import annotations

from collections.abc import Collection

from nvct.agent.core.logs import Log
from nvct.agent.device_plugin.settings import Settings
from nvct.errors import HostError


def wanted(settings: Settings, existing: Collection[int], journal: Log) -> tuple[int, ...]:
    """Return the numbers of the channels in the settings that this machine has.

    Args:
        existing: the channels of this machine.

    Raises:
        HostError: a channel is missing, and the settings require it.
    """
    numbers = settings.imex_channel_ids
    if not numbers:
        return ()
    missing = [number for number in numbers if number not in existing]
    if missing and settings.imex_required:
        raise HostError(f"requested IMEX channel channel{missing[0]} does not exist")
    for number in missing:
        journal.warning(f"IMEX channel channel{number} does not exist: left out")
    return tuple(number for number in numbers if number in existing)
