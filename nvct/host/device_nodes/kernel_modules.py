# SPDX-License-Identifier: Apache-2.0
"""Loads the driver's kernel modules; those of another driver root by chroot."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from typing import TypeAlias

from nvct.errors import HostError

# Runs a program; returns its exit status and last line; raises OSError if it does not start.
Run: TypeAlias = Callable[[Sequence[str]], tuple[int, str]]

MODULES = ("nvidia", "nvidia-uvm", "nvidia-modeset")
OPTIONAL = ("nvidia-modeset",)
"""A driver that is installed for computing only lacks it, and containers do not need it."""
MODPROBE = "/sbin/modprobe"


def commands(driver_root: str) -> list[list[str]]:
    """Return the commands that load the modules; a driver root has its own modprobe and files."""
    enter = [] if driver_root == "/" else ["chroot", driver_root]
    return [[*enter, MODPROBE, name] for name in MODULES]


def run(argv: Sequence[str]) -> tuple[int, str]:
    """Run a program; return its exit status and the last line of its output."""
    completed = subprocess.run(
        argv, check=False, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )  # fmt: skip
    lines = completed.stdout.decode(errors="replace").strip().splitlines()
    return completed.returncode, lines[-1] if lines else ""


def load(driver_root: str, run: Run, sys_root: str = "/sys") -> list[str]:
    """Load the modules; return a warning for each optional one that fails.

    A loaded module is skipped: a host with a read-only root may have no modprobe.

    Raises:
        HostError: a required module cannot be loaded.
    """
    warnings = []
    for argv in commands(driver_root):
        name = argv[-1]
        if os.path.isdir(f"{sys_root}/module/{name.replace('-', '_')}"):
            continue
        try:
            status, output = run(argv)
        except OSError as error:
            status, output = 1, error.strerror or str(error)
        if status == 0:
            continue
        text = f"cannot load module {name} ({' '.join(argv)}): {output or f'status {status}'}"
        if name not in OPTIONAL:
            raise HostError(
                text, hint="is the driver built for this kernel? run as root; see dmesg"
            )
        warnings.append(text)
    return warnings
