# SPDX-License-Identifier: Apache-2.0
"""Resolves --device-list-strategy=auto: the best strategy that kubelet and engine support.

A strategy that the engine is known to ignore is a problem, because pods would start without GPUs.

That is CDI names in the answer (cdi-cri) if both take them; else CDI names in annotations, which
need nvct's runtime; else the variable that every NVIDIA runtime reads. It is never two of them,
which would give devices twice.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

from nvct.agent.device_plugin.settings import AUTO, Settings
from nvct.errors import EngineError

IGNORED = frozenset({"cdi-cri"})
"""Strategies that nothing but the engine reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """Features of the kubelet and the container engine of this node.

    Attributes:
        takes_names: whether both take CDI names in the answer to Allocate.
        takes_annotations: whether the engine, or its NVIDIA runtime, reads CDI annotations.
        evidence: how that is known, e.g. "containerd 1.7.28, enable_cdi = true".
        default_is_nvidia: whether pods without a RuntimeClass are started by a runtime of NVIDIA's
            or nvct's; None if the engine does not tell.
    """

    takes_names: bool
    takes_annotations: bool
    evidence: str
    default_is_nvidia: bool | None = None


AskEngine: TypeAlias = Callable[[Settings], Awaitable[Engine | str]]
"""Returns why it is not known if the engine cannot be asked, or CDI is not possible here."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The strategies that are in force, and why.

    Attributes:
        problem: why pods would get nothing by them, "" unless that is known.
    """

    strategies: tuple[str, ...]
    reason: str
    problem: str = ""


async def nobody(_settings: Settings) -> Engine | str:
    """Return that the engine cannot be asked."""
    return "nobody can ask the container engine"


async def choose(settings: Settings, ask: AskEngine) -> Choice:
    """Return the strategies for settings; the engine is asked where it matters."""
    strategies = settings.device_list_strategy
    if strategies == (AUTO,):
        return _best(await ask(settings))
    if IGNORED.issuperset(strategies):
        engine = await ask(settings)
        if isinstance(engine, Engine) and not (engine.takes_names or engine.takes_annotations):
            problem = f"pods would get no GPU: the engine ignores CDI names ({engine.evidence})"
            return Choice(strategies, "as configured", problem)
    return Choice(strategies, f"as configured{'' if settings.uses_cdi else _needs_class(None)}")


def check(choice: Choice) -> None:
    """Refuse a strategy by which pods would get nothing.

    Raises:
        EngineError: the engine does not read it.
    """
    if choice.problem:
        raise EngineError(choice.problem, hint="enable its CDI, or use another strategy")


def _best(engine: Engine | str) -> Choice:
    if isinstance(engine, str):
        return Choice(("envvar",), f"auto: {engine}{_needs_class(None)}")
    if engine.takes_names:
        return Choice(("cdi-cri",), f"auto: kubelet and engine take CDI names ({engine.evidence})")
    if engine.takes_annotations:
        return Choice(("cdi-annotations",), f"auto: CDI annotations are read ({engine.evidence})")
    reason = f"auto: the engine does not take CDI names ({engine.evidence})"
    return Choice(("envvar",), reason + _needs_class(engine.default_is_nvidia))


def _needs_class(default_is_nvidia: bool | None) -> str:  # noqa: FBT001  one fact
    """Return a note: which pods need a RuntimeClass to get GPUs; "" if none does."""
    if default_is_nvidia:
        return ""
    unless = " unless nvidia is the default runtime" if default_is_nvidia is None else ""
    return f"; pods need the RuntimeClass nvidia{unless}"
