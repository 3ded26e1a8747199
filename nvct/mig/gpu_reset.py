# SPDX-License-Identifier: Apache-2.0
"""Resets GPUs that have failed, beside an agent that offers the others.

While it lasts, the agent gives none of these GPUs to a pod and closes its handles of NVML, which
would be in the way.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from nvct.errors import HostError, UsageError
from nvct.host.nvml.mig_model import MigGpu
from nvct.mig.apply import Machine
from nvct.mig.holders import holders, own_processes

CLOSES_S = 15.0
"""How long the agent may take to close its handles: a call of NVML may be in progress."""
LOOK_S = 0.2


def reset_gpus(machine: Machine, names: Sequence[str], wait_s: float = CLOSES_S) -> list[MigGpu]:
    """Reset GPUs, and return them.

    Args:
        names: indices or UUIDs.
        wait_s: for the agent's handles to be closed.

    Raises:
        UsageError: there is no such GPU.
        HostError: a process has a GPU open, or nvidia-smi fails.
    """
    every = machine.session.mig().gpus
    gpus = [_find(every, name) for name in dict.fromkeys(names)]
    with machine.journal.lock(), machine.pause({gpu.uuid: frozenset() for gpu in gpus}):
        machine.session.close()
        _wait_for_holders(machine, gpus, wait_s)
        machine.reset([gpu.bus_id for gpu in gpus])
    return gpus


def _find(gpus: Sequence[MigGpu], name: str) -> MigGpu:
    for gpu in gpus:
        if name in (str(gpu.index), gpu.uuid):
            return gpu
    raise UsageError(f"there is no GPU {name!r}", hint="name its index or UUID: nvidia-smi -L")


def _wait_for_holders(machine: Machine, gpus: Sequence[MigGpu], wait_s: float) -> None:
    """Wait until no process has a GPU open.

    Raises:
        HostError: one still has.
    """
    end = time.monotonic() + wait_s
    while found := holders(machine.roots, gpus, ignore=own_processes(machine.roots)):
        if time.monotonic() >= end:
            raise HostError(
                f"a GPU is in use: {found[0]}",
                hint="end the processes that `nvct mig holders` prints, then reset the GPU",
            )
        time.sleep(LOOK_S)
