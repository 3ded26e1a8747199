# SPDX-License-Identifier: Apache-2.0
"""The tasks that the agent can run, by their names in --tasks. A new task is a line here.

A task takes its settings from the environment variables of NVIDIA's program for the same job. Its
modules are imported when it starts.
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import TypeAlias

    from nvct.agent.logs import Log
    from nvct.agent.nvml.client import NvmlClient
    from nvct.agent.tasks import Document, Runs

    Factory: TypeAlias = Callable[[Mapping[str, str], NvmlClient, Log, Document], Runs]


def _device_plugin(
    env: Mapping[str, str], client: NvmlClient, journal: Log, _status: Document
) -> Runs:
    from nvct.agent.device_plugin import main

    return main.make((), env, client, journal, in_agent=True)


def _labels(env: Mapping[str, str], client: NvmlClient, journal: Log, _status: Document) -> Runs:
    from nvct.agent.labels import main

    return main.make((), env, client, journal, in_agent=True)


def _config_manager(
    env: Mapping[str, str], _client: NvmlClient, journal: Log, _status: Document
) -> Runs:
    from nvct.agent.config_manager import main

    return main.make_in_agent(env, journal)


def _condition(
    env: Mapping[str, str], _client: NvmlClient, journal: Log, status: Document
) -> Runs:
    from nvct.agent.condition import main

    return main.make(env, journal, status, OFFERING)


def _dra(env: Mapping[str, str], client: NvmlClient, journal: Log, _status: Document) -> Runs:
    from nvct.agent.dra import main

    return main.make((), env, client, journal)


def _exporter(env: Mapping[str, str], client: NvmlClient, journal: Log, _status: Document) -> Runs:
    from nvct.agent.exporter import main

    return main.make((), env, client, journal)


def _mig_manager(
    env: Mapping[str, str], client: NvmlClient, journal: Log, status: Document
) -> Runs:
    from nvct.agent.mig_manager import main

    return main.make_in_agent(env, client, journal, status)


OFFERING = ("device-plugin", "dra")
"""The tasks that offer devices; if an agent has both, a label of the Node chooses."""
NOT_BOTH = ("dra", "mig-manager")
"""A configuration by a label knows nothing of the MIG devices that claims have."""
CONFIG_MANAGER = "config-manager"
"""It writes the file that the others read."""
TASKS: Mapping[str, Factory] = {
    "condition": _condition,
    CONFIG_MANAGER: _config_manager,
    "device-plugin": _device_plugin,
    "dra": _dra,
    "exporter": _exporter,
    "labels": _labels,
    "mig-manager": _mig_manager,
}
DEFAULT = ("device-plugin",)
"""What runs if --tasks names none."""

_MODULES: Mapping[str, tuple[str, ...]] = {
    "condition": ("condition.task", "kubernetes.cluster"),
    "config-manager": ("config_manager.task", "kubernetes.cluster"),
    "device-plugin": ("device_plugin.task", "device_plugin.registration"),
    "dra": ("dra.task", "kubelet.dra_service", "kubernetes.cluster"),
    "exporter": ("exporter.task",),
    "labels": ("labels.task", "kubernetes.cluster"),
    "mig-manager": ("mig_manager.task", "kubernetes.cluster"),
}
"""What a task imports when it starts, below nvct.agent."""


def load(names: Iterable[str]) -> None:
    """Import what tasks import when they start."""
    for name in names:
        for module in _MODULES[name]:
            importlib.import_module(f"nvct.agent.{module}")
