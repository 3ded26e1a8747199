# SPDX-License-Identifier: Apache-2.0
"""Resolves --device-list-strategy=auto: the best strategy that kubelet and engine support.

The best is CDI names in annotations if the engine takes them, else the variable that every NVIDIA
runtime reads; never both, which would give devices twice. Names in the answer (cdi-cri) are not
chosen: a kubelet before 1.29 silently ignores them. A strategy that the engine is known to ignore
is a problem, because pods would start without GPUs.

The engine itself is asked what it supports. That stays unknown, with a reason, for an engine of
unknown kind, for several engines, and for an answer that is not JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from nvct.agent.core.context import Context
from nvct.agent.device_plugin.settings import AUTO, SPEC_FOLDER, Settings
from nvct.agent.device_plugin.spec_files import PluginFiles
from nvct.agent.machine.discovery import Discovery
from nvct.agent.nvml import engine_question
from nvct.errors import EngineError, NvmlError
from nvct.oci.jsontext import Json

IGNORED = frozenset({"cdi-cri"})  # Strategies that only the engine reads


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """Features of the container engine of this node."""

    takes_cdi: bool  # whether it takes the names of CDI devices
    evidence: str  # how that is known, e.g. "containerd 1.7.28, enable_cdi = true"
    # whether pods without a RuntimeClass are started by a runtime of NVIDIA's or nvct's; None if
    # the engine does not tell
    default_is_nvidia: bool | None = None


AskEngine: TypeAlias = Callable[[Settings], Awaitable[Engine | str]]
"""Returns the engine's features; or why they are unknown, or why CDI is not possible here."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The strategies in force, their reason, and why pods would get no GPU, if that is known."""

    strategies: tuple[str, ...]
    reason: str
    problem: str = ""


async def nobody(_settings: Settings) -> Engine | str:
    """Return that the engine cannot be asked."""
    return "the container engine cannot be asked"


async def choose(settings: Settings, ask: AskEngine) -> Choice:
    """Return the strategies for settings; ask the engine if they depend on it."""
    strategies = settings.device_list_strategy
    if strategies == (AUTO,):
        return _best(await ask(settings))
    if IGNORED.issuperset(strategies):
        engine = await ask(settings)
        if isinstance(engine, Engine) and not engine.takes_cdi:
            problem = f"pods would get no GPU: the engine ignores CDI names ({engine.evidence})"
            return Choice(strategies, "as configured", problem)
    return Choice(strategies, f"as configured{'' if settings.uses_cdi else _needs_class(None)}")


def check(choice: Choice) -> None:
    """Raise EngineError if the engine ignores the strategy: pods would get no GPU."""
    if choice.problem:
        raise EngineError(choice.problem, hint="enable CDI in the engine, or use another strategy")


def _best(engine: Engine | str) -> Choice:
    if isinstance(engine, str):
        return Choice(("envvar",), f"auto: {engine}{_needs_class(None)}")
    if engine.takes_cdi:
        return Choice(("cdi-annotations",), f"auto: CDI annotations are read ({engine.evidence})")
    reason = f"auto: the engine does not take CDI names ({engine.evidence})"
    return Choice(("envvar",), reason + _needs_class(engine.default_is_nvidia))


def _needs_class(default_is_nvidia: bool | None) -> str:  # noqa: FBT001  one fact
    """Return a note on which pods need a RuntimeClass to get GPUs, "" if none does."""
    if default_is_nvidia:
        return ""
    unless = " unless nvidia is the default runtime" if default_is_nvidia is None else ""
    return f"; pods need the RuntimeClass nvidia{unless}"


CONTAINERD, CRIO = "containerd", "cri-o"
SPEC_FOLDERS = ("/var/run/cdi", "/run/cdi")
"""Two names of the folder of the plugin's specifications."""
NUMBERS = re.compile(r"v?(\d+)\.(\d+)")
FIRST_CRIO = (1, 28)  # It takes CDI names since this version, and annotations since earlier ones
NVIDIA_RUNTIME = "nvidia-container-runtime"
CDI_SINCE, CDI_ON_SINCE = (1, 7), (2, 0)
"""containerd's first version that has CDI, and the first one that enables it by default."""


def features(answers: Json) -> Engine | str:
    """Return the features of the one engine that has answered, or why they are unknown.

    The kubelet does not tell whether it takes CDI names (it does from 1.29 on, and ignores them
    before); annotations work with every kubelet.
    """
    if not isinstance(answers, dict) or not answers:
        return "no container engine answers"
    if len(answers) > 1:
        return f"several container engines answer: {', '.join(answers)}"
    ((socket, answer),) = answers.items()
    if not isinstance(answer, dict):
        return f"{socket} gives a malformed answer"
    name, version = str(answer.get("name")), str(answer.get("version"))
    numbers = NUMBERS.match(version)
    if numbers is None:
        return f"{name} on {socket} has an unknown version: {version}"
    known = (int(numbers[1]), int(numbers[2]))
    if name == CRIO:
        return Engine(takes_cdi=known >= FIRST_CRIO, evidence=f"{name} {version}")
    if name == CONTAINERD:
        return _containerd(version, known, str(answer.get("config")))
    return Engine(takes_cdi=False, evidence=f"{name} {version}")


def _containerd(version: str, known: tuple[int, int], text: str) -> Engine | str:
    name = f"{CONTAINERD} {version}"
    if known < CDI_SINCE:
        return Engine(takes_cdi=False, evidence=f"{name} has no CDI")
    try:
        config = json.loads(text)
    except (ValueError, RecursionError):
        config = None
    if not isinstance(config, dict):
        return f"{name} does not tell its configuration"
    is_on = config.get("enableCDI", known >= CDI_ON_SINCE) is True
    evidence = f"{name}, enable_cdi = {str(is_on).lower()}"
    if is_on and not set(SPEC_FOLDERS) & set(config.get("cdiSpecDirs") or SPEC_FOLDERS):
        is_on, evidence = False, f"{name} does not read {SPEC_FOLDERS[0]}"
    return Engine(takes_cdi=is_on, evidence=evidence, default_is_nvidia=_default_is_nvidia(config))


def _default_is_nvidia(config: dict[str, Any]) -> bool | None:
    try:
        containerd = config["containerd"]
        runtime = containerd["runtimes"][containerd["defaultRuntimeName"]]
        return NVIDIA_RUNTIME in str(runtime["options"].get("BinaryName"))
    except (KeyError, TypeError, AttributeError):
        return None


async def ask(context: Context, machine: Discovery, settings: Settings) -> Engine | str:
    """Return what the engine supports; or why that is unknown, or why CDI is not possible here."""
    try:
        if (await machine.machine()).mode != "nvml":
            return "CDI is for machines with NVML"
        roots = tuple(engine_question.roots(context.env))
        files = PluginFiles(SPEC_FOLDER, context.journal, roots)
        reason = await files.why_not(settings, machine)
        return reason or features(await context.client.engine())
    except NvmlError as error:
        return error.message
