# SPDX-License-Identifier: Apache-2.0
"""The IMEX channels that every container gets."""

from __future__ import annotations

from nvct.errors import HostError
from nvct.host.gpu import imex
from nvct.host.model import Findings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.agent.device_plugin.settings import Settings
    from nvct.agent.discovery import Discovery
    from nvct.agent.logs import Log


def wanted(settings: Settings, discovery: Discovery, journal: Log) -> tuple[int, ...]:
    """Return the numbers of the channels in the settings that this machine has.

    Raises:
        HostError: a channel is missing, and the settings require it.
    """
    numbers = settings.imex_channel_ids
    if not numbers:
        return ()
    existing = imex.channels(discovery.roots, discovery.stat_node, Findings())
    missing = [number for number in numbers if number not in existing]
    if missing and settings.imex_required:
        raise HostError(f"requested IMEX channel channel{missing[0]} does not exist")
    for number in missing:
        journal.warning(f"IMEX channel channel{number} does not exist: left out")
    return tuple(number for number in numbers if number in existing)
