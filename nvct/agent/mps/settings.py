# SPDX-License-Identifier: Apache-2.0
"""The settings of `mps-control-daemon`: flags and precedence are those of NVIDIA's, 0.20."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nvct.agent.core import config_file
from nvct.agent.core.settings import Program
from nvct.agent.device_plugin.settings import Settings


def _mount_shm() -> None:
    from nvct.agent.mps import shm

    shm.mount()


PROGRAM = Program(
    name="mps-control-daemon",
    title="NVIDIA MPS Control Daemon",
    version="0.20.0",
    summary="Keeps the MPS control daemons of this node's shared GPUs.\n\n"
    "mps-control-daemon mount-shm mounts their shared memory at /mps/shm.",
    settings=Settings,
    only=("config_file", "mig_strategy"),
    commands={"mount-shm": _mount_shm},
)


def resolve(words: Sequence[str], env: Mapping[str, str]) -> tuple[Settings, tuple[str, ...]]:
    """Return the device plugin's settings, of which this program reads a few, and warnings."""
    known, warnings = config_file.resolve(PROGRAM, words, env)
    return Settings(**known), warnings
