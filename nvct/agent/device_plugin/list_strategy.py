# SPDX-License-Identifier: Apache-2.0
"""Resolves --device-list-strategy=auto: the best strategy that kubelet and engine support.

That is CDI names in the answer (cdi-cri) if both take them; else CDI names in annotations, which
need nvct's runtime; else the variable that every NVIDIA runtime reads. It is never two of them,
which would give devices twice.
"""

from __future__ import annotations

from dataclasses import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import TypeAlias

    from nvct.agent.device_plugin.settings import Settings

AUTO = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """Features of the kubelet and the container engine of this node.

    Attributes:
        takes_names: whether both take CDI names in the answer to Allocate.
        takes_annotations: whether the engine, or its NVIDIA runtime, reads CDI annotations.
        evidence: how that is known, e.g. "containerd 1.7.28, enable_cdi = true".
    """

    takes_names: bool
    takes_annotations: bool
    evidence: str


AskEngine: TypeAlias = "Callable[[Settings], Awaitable[Engine | str]]"
"""Returns why it is not known if the engine cannot be asked, or CDI is not possible here."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The strategies that are in force, and why."""

    strategies: tuple[str, ...]
    reason: str


async def nobody(_settings: Settings) -> Engine | str:
    """Return that the engine cannot be asked."""
    return "nobody can ask the container engine"


async def choose(settings: Settings, ask: AskEngine) -> Choice:
    """Return the strategies for settings; the engine is asked for auto alone."""
    if settings.device_list_strategy != (AUTO,):
        return Choice(settings.device_list_strategy, "as configured")
    engine = await ask(settings)
    if isinstance(engine, str):
        return Choice(("envvar",), f"auto: {engine}")
    if engine.takes_names:
        return Choice(("cdi-cri",), f"auto: kubelet and engine take CDI names ({engine.evidence})")
    if engine.takes_annotations:
        return Choice(("cdi-annotations",), f"auto: CDI annotations are read ({engine.evidence})")
    return Choice(("envvar",), f"auto: the engine does not take CDI names ({engine.evidence})")
