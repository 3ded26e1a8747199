# SPDX-License-Identifier: Apache-2.0
"""What the container engine of this node supports, from its own answer.

Contract: nothing is guessed. An engine of unknown kind, several engines, or an answer that is no
JSON is a reason why it is not known.
"""

from __future__ import annotations

import json
import re
from typing import Any

from nvct.agent.core.context import Context
from nvct.agent.device_plugin.list_strategy import Engine
from nvct.agent.device_plugin.settings import SPEC_FOLDER, Settings
from nvct.agent.device_plugin.spec_files import PluginFiles
from nvct.agent.machine.discovery import Discovery
from nvct.agent.nvml import engine_question
from nvct.errors import NvmlError
from nvct.oci.jsontext import Json

CONTAINERD, CRIO = "containerd", "cri-o"
SPEC_FOLDERS = ("/var/run/cdi", "/run/cdi")
"""The folder of the plugin's specifications, which is one by two names."""
NUMBERS = re.compile(r"v?(\d+)\.(\d+)")
FIRST_CRIO = (1, 28)
"""From then on it takes CDI names, and annotations longer."""
NVIDIA_RUNTIME = "nvidia-container-runtime"
CDI_SINCE, CDI_ON_SINCE = (1, 7), (2, 0)
"""containerd: the first version with CDI, and the first one with CDI unless it is off."""


def features(answers: Json) -> Engine | str:
    """Return what the only engine that has answered supports, or why that is not known.

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
        return f"{name} on {socket} has no version that is known: {version}"
    known = (int(numbers[1]), int(numbers[2]))
    if name == CRIO:
        return _engine(f"{name} {version}", takes=known >= FIRST_CRIO)
    if name == CONTAINERD:
        return _containerd(version, known, str(answer.get("config")))
    return _engine(f"{name} {version}", takes=False)


def _containerd(version: str, known: tuple[int, int], text: str) -> Engine | str:
    name = f"{CONTAINERD} {version}"
    if known < CDI_SINCE:
        return _engine(f"{name} has no CDI", takes=False)
    try:
        config = json.loads(text)
    except (ValueError, RecursionError):
        config = None
    if not isinstance(config, dict):
        return f"{name} does not tell its configuration"
    is_on = config.get("enableCDI", known >= CDI_ON_SINCE)
    folders = config.get("cdiSpecDirs") or list(SPEC_FOLDERS)
    default = _default_is_nvidia(config)
    if is_on is True and not set(SPEC_FOLDERS) & set(folders):
        return _engine(f"{name} does not read {SPEC_FOLDERS[0]}", takes=False, default=default)
    evidence = f"{name}, enable_cdi = {str(is_on is True).lower()}"
    return _engine(evidence, takes=is_on is True, default=default)


def _default_is_nvidia(config: dict[str, Any]) -> bool | None:
    try:
        containerd = config["containerd"]
        runtime = containerd["runtimes"][containerd["defaultRuntimeName"]]
        return NVIDIA_RUNTIME in str(runtime["options"].get("BinaryName"))
    except (KeyError, TypeError, AttributeError):
        return None


def _engine(evidence: str, *, takes: bool, default: bool | None = None) -> Engine:
    return Engine(
        takes_names=False, takes_annotations=takes, evidence=evidence, default_is_nvidia=default
    )


async def ask(context: Context, machine: Discovery, settings: Settings) -> Engine | str:
    """Return what the engine supports, or why that is not known, or CDI is not possible here."""
    try:
        if (await machine.machine()).mode != "nvml":
            return "CDI is for machines with NVML"
        roots = tuple(engine_question.roots(context.env))
        files = PluginFiles(SPEC_FOLDER, context.journal, roots)
        reason = await files.why_not(settings, machine)
        return reason or features(await context.client.engine())
    except NvmlError as error:
        return error.message
