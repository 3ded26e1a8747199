# SPDX-License-Identifier: Apache-2.0
"""Resets GPUs with the nvidia-smi of this system or of the driver's root."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from nvct.errors import HostError, UsageError
from nvct.host.nvml.mig_model import MigGpu
from nvct.kernel import trusted_file
from nvct.mig.apply import HARMLESS, Machine
from nvct.mig.holders import Holder

RESET_S = 300.0
PROGRAM = "nvidia-smi"
IN_USE = "a GPU is in use: "
FOLDERS = ("/usr/bin", "/bin", "/opt/bin", "/usr/local/bin")  # Below the driver's root
LOADERS = ("/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1")


@dataclass(frozen=True, slots=True)
class Smi:
    """Command and environment that start nvidia-smi."""

    command: Sequence[str] = ("nvidia-smi",)
    env: Mapping[str, str] | None = None


def find(root: str, library: str) -> Smi:
    """Return the nvidia-smi of a driver's root.

    In a root that is a whole system, it runs with that root's C library, which may differ from
    this container's. UnsafePathError if users other than root can change it.
    """
    root = root.rstrip("/")
    path = trusted_file.find_program(root or "/", FOLDERS, PROGRAM)
    if path is None:
        return Smi()
    if root and any(os.path.exists(f"{root}{loader}") for loader in LOADERS):
        return Smi(("chroot", root, path))
    return Smi((f"{root}{path}",), {**os.environ, "LD_LIBRARY_PATH": os.path.dirname(library)})


def reset(bus_ids: Sequence[str], smi: Smi | None = None, limit_s: float = RESET_S) -> None:
    """Reset GPUs; HostError if that fails."""
    import subprocess

    smi = smi or Smi()
    command = [*smi.command, "-r", "-i", ",".join(bus_ids)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=limit_s, check=False, env=smi.env
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HostError(f"{' '.join(command)} failed: {error}") from error
    if done.returncode:
        reason = " ".join((done.stdout + done.stderr).split())
        raise HostError(
            f"{' '.join(command)} failed: {reason}",
            hint="end the processes that use the GPUs (nvct mig holders), or reboot",
        )


CLOSES_S = 15.0
"""Limit for the agent to close its handles, which must wait for a running NVML call."""
LOOK_S = 0.2


def reset_gpus(machine: Machine, names: Sequence[str], wait_s: float = CLOSES_S) -> list[MigGpu]:
    """Reset GPUs and return them; UsageError if one does not exist, HostError if that fails."""
    every = machine.session.mig().gpus
    gpus = find_gpus(every, names)
    with machine.journal.lock(), machine.pause({gpu.uuid: frozenset() for gpu in gpus}):
        machine.session.close()
        _wait_for_holders(machine, gpus, wait_s)
        machine.reset([gpu.bus_id for gpu in gpus])
    return gpus


def find_gpus(gpus: Sequence[MigGpu], names: Sequence[str]) -> list[MigGpu]:
    """Return GPUs by index or UUID; UsageError if one does not exist."""
    found = {key: gpu for gpu in gpus for key in (str(gpu.index), gpu.uuid)}
    for name in names:
        if name not in found:
            hint = "nvidia-smi -L lists indices and UUIDs"
            raise UsageError(f"there is no GPU {name!r}", hint=hint)
    return [found[name] for name in dict.fromkeys(names)]


def blocking(found: Iterable[Holder]) -> list[Holder]:
    """Return the processes that must end before a reset.

    nvidia-persistenced need not: nvidia-smi asks it by its socket in the driver's root to close
    the GPU and open it again (github.com/NVIDIA/gpu-operator/issues/118).
    """
    return [holder for holder in found if holder.command not in HARMLESS]


def _wait_for_holders(machine: Machine, gpus: Sequence[MigGpu], wait_s: float) -> None:
    end = time.monotonic() + wait_s
    while found := blocking(machine.holders(gpus)):
        if time.monotonic() >= end:
            raise in_use(found)
        time.sleep(LOOK_S)


def in_use(found: Sequence[Holder]) -> HostError:
    """Return the error for a reset of a GPU that processes have open."""
    return HostError(
        f"{IN_USE}{found[0]}",
        hint="end the processes that `nvct mig holders` prints, then reset the GPU",
    )
