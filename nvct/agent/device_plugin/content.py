# SPDX-License-Identifier: Apache-2.0
"""What the server of a resource offers and answers from: values only, without gRPC."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from nvct.agent.core.resources_mode import ResourcesMode
from nvct.agent.device_plugin.resources import Resource
from nvct.agent.device_plugin.settings import Settings


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
    """

    resource: Resource
    settings: Settings
    node: Node
    scores: Mapping[tuple[str, str], int] = field(default_factory=dict)
    unhealthy: Mapping[str, str] = field(default_factory=dict)
    mode: ResourcesMode | None = None
