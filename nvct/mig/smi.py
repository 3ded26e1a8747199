# SPDX-License-Identifier: Apache-2.0
"""Resets GPUs with nvidia-smi: of this system, or of the driver's root beside it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nvct.errors import HostError
from nvct.kernel import trusted_file

RESET_S = 300.0
PROGRAM = "nvidia-smi"
FOLDERS = ("/usr/bin", "/bin", "/opt/bin", "/usr/local/bin")
"""Below the driver's root."""
LOADERS = ("/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1")


@dataclass(frozen=True, slots=True)
class Smi:
    """How nvidia-smi is started.

    Attributes:
        env: its environment; None is this process's own.
    """

    command: Sequence[str] = ("nvidia-smi",)
    env: Mapping[str, str] | None = None


def find(root: str, library: str) -> Smi:
    """Return nvidia-smi of a driver's root.

    A root that is a whole system runs it with its own C library, which may be another one than
    that of this container.

    Raises:
        UnsafePathError: others than root can change it.
    """
    root = root.rstrip("/")
    path = trusted_file.find_program(root or "/", FOLDERS, PROGRAM)
    if path is None:
        return Smi()
    if root and any(os.path.exists(f"{root}{loader}") for loader in LOADERS):
        return Smi(("chroot", root, path))
    return Smi((f"{root}{path}",), {**os.environ, "LD_LIBRARY_PATH": os.path.dirname(library)})


def reset(bus_ids: Sequence[str], smi: Smi | None = None, limit_s: float = RESET_S) -> None:
    """Reset GPUs.

    Args:
        smi: nvidia-smi; None is that of this system.
        limit_s: how long it may take.

    Raises:
        HostError: it fails.
    """
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
