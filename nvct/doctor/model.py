# SPDX-License-Identifier: Apache-2.0
"""The values that `nvct status` shows about each part of a node."""

from __future__ import annotations

from dataclasses import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal, TypeAlias

    Health: TypeAlias = Literal["ok", "absent", "attention"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of a node.

    Attributes:
        name: config, driver, specs, plans, farm, engines or units.
        health: "absent" if the part does not exist, which is not a fault.
        lines: sentences, the first one a summary.
    """

    name: str
    health: Health
    lines: tuple[str, ...]
