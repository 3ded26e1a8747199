# SPDX-License-Identifier: Apache-2.0
"""The table of the agent's tasks and programs. A new one is a folder, and a line here.

A folder has `task.py`, with `make` and, if the task imports modules late, their names in LATER. A
folder with options has `settings.py` with PROGRAM and `resolve`, which is loaded first.
In the agent, a task takes its settings from the environment variables of NVIDIA's program for the
same job. `resolve` and `make` raise UsageError or DocumentError if a setting is wrong; `make`
raises ClusterError if the task needs the cluster and has no access to it.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any, NamedTuple


class Entry(NamedTuple):
    """A folder below nvct.agent."""

    folder: str
    task: str = ""  # its name in --tasks, "" if the agent does not run it
    program: str = ""  # the name of NVIDIA's program for the same job, "" if there is none

    def module(self, name: str) -> Any:  # noqa: ANN401 - a module
        """Return a module of the folder."""
        return importlib.import_module(f"nvct.agent.{self.folder}.{name}")


ENTRIES = (
    Entry("condition", "condition"),
    Entry("config_manager", "config-manager", "config-manager"),
    Entry("device_plugin", "device-plugin", "nvidia-device-plugin"),
    Entry("dra", "dra", "gpu-kubelet-plugin"),
    Entry("exporter", "exporter", "dcgm-exporter"),
    Entry("heal", "heal"),
    Entry("labels", "labels", "gpu-feature-discovery"),
    Entry("mig_manager", "mig-manager", "nvidia-mig-manager"),
    Entry("mps", program="mps-control-daemon"),
)
TASKS = {entry.task: entry for entry in ENTRIES if entry.task}
PROGRAMS = {entry.program: entry for entry in ENTRIES if entry.program}
OFFERING = ("device-plugin", "dra")
"""The tasks that offer devices; if an agent has both, a label of the Node chooses."""
NOT_BOTH = ("dra", "mig-manager")
"""Tasks that exclude each other: mig-manager does not know which MIG devices claims have."""
CONFIG_MANAGER = "config-manager"  # It writes the config file that the other tasks read
DEFAULT = ("device-plugin",)  # What runs if --tasks names none


def load(names: Iterable[str]) -> None:
    """Import the modules `task` of tasks, and the modules that these name in LATER."""
    for name in names:
        for module in getattr(TASKS[name].module("task"), "LATER", ()):
            importlib.import_module(f"nvct.agent.{module}")
