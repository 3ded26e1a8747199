# SPDX-License-Identifier: Apache-2.0
"""What the server of a resource offers and answers from: values only, without gRPC."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from nvct.agent.core.logs import Log
from nvct.agent.core.resources_mode import ResourcesMode
from nvct.agent.device_plugin.resources import Resource
from nvct.agent.device_plugin.settings import Settings
from nvct.errors import HostError


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """The parts of an answer that do not depend on the devices of a resource.

    Attributes:
        control_nodes: paths of the driver's nodes that every container needs.
        imex_channels: the numbers of the channels that every container gets.
        features: the CDI classes beside GPUs for which a specification exists.
    """

    control_nodes: tuple[str, ...] = ()
    imex_channels: tuple[int, ...] = ()
    features: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """What an endpoint serves; replaced as a whole.

    Attributes:
        node: what else answers need.
        unhealthy: the reason for each device that is not healthy, by id.
        mode: what it shares with the DRA driver of the same agent, None without one.
        check: refuses containers while the driver is being replaced.
    """

    resource: Resource
    settings: Settings
    node: Node
    scores: Mapping[tuple[str, str], int] = field(default_factory=dict)
    unhealthy: Mapping[str, str] = field(default_factory=dict)
    mode: ResourcesMode | None = None
    check: Callable[[], None] = lambda: None


def imex_channels(settings: Settings, existing: Collection[int], journal: Log) -> tuple[int, ...]:
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
