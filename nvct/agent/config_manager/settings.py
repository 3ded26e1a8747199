# SPDX-License-Identifier: Apache-2.0
"""The settings of `config-manager`: the flags and variables of NVIDIA's, 0.20."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nvct.agent.core.settings import OfNode, Program, option
from nvct.errors import UsageError

NAMED, SINGLE, EMPTY = "named", "single", "empty"
STRATEGIES = (NAMED, SINGLE, EMPTY)
"""Fallbacks if neither the label nor the default names a file: the file `default`, the only file,
an empty configuration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(OfNode):
    """The settings; `fallbacks` are of STRATEGIES, tried in order."""

    oneshot: bool = option(False, "Write the file once, and end")
    kubeconfig: str = option("", "A kubeconfig file; default: the pod's service account")
    node_name: str = option("", "The name of this node; default: the host's name")
    node_label: str = option(
        "nvidia.com/device-plugin.config", "The label of the node that names its config file"
    )
    source: str = option(
        "/available-configs", "The folder with the config files",
        flags="config-file-srcdir", env="CONFIG_FILE_SRCDIR",
    )  # fmt: skip
    target: str = option(
        "/config/config.yaml", "The file that programs read",
        flags="config-file-dst", env="CONFIG_FILE_DST",
    )  # fmt: skip
    default: str = option(
        "", "The config file of a node without the label",
        flags="default-config", env="DEFAULT_CONFIG",
    )  # fmt: skip
    fallbacks: tuple[str, ...] = option(
        (), "The fallbacks if neither label nor default names a file",
        flags="fallback-strategies", env="FALLBACK_STRATEGIES", choices=(*STRATEGIES, ""),
    )  # fmt: skip
    send_signal: bool = option(True, "Signal the program after a change")
    signal: int = option(int(signal.SIGHUP), "The number of the signal", kind="numbers")
    process: str = option(
        "nvidia-device-plugin", "The name of the program to signal",
        flags="process-to-signal", env="PROCESS_TO_SIGNAL",
    )  # fmt: skip


PROGRAM = Program(
    name="config-manager",
    title="NVIDIA Config Manager",
    version="0.20.0",
    summary="Gives this node's programs the config file that the Node's label names.",
    settings=Settings,
)


def resolve(words: Sequence[str], env: Mapping[str, str]) -> tuple[Settings, tuple[str, ...]]:
    """Return the settings; there are no warnings."""
    known = PROGRAM.values(words, env)
    numbers = known.get("signal")
    if numbers is not None:
        if len(numbers) != 1 or numbers[0] not in signal.valid_signals():
            raise UsageError("the signal must be one number", hint="such as --signal=1")
        known["signal"] = numbers[0]
    return Settings(**known), ()
