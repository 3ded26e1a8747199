# SPDX-License-Identifier: Apache-2.0
"""Load the driver's kernel modules, from the driver root where that is not the host's own."""

from __future__ import annotations

import os
import subprocess

from nvct.errors import HostError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

    # Runs a program; returns its exit status and what it said, and raises OSError without one.
    Run: TypeAlias = Callable[[Sequence[str]], tuple[int, str]]

MODULES = ("nvidia", "nvidia-uvm", "nvidia-modeset")
OPTIONAL = ("nvidia-modeset",)
"""Drivers that were installed for computing alone lack it, and containers do not need it."""
MODPROBE = "/sbin/modprobe"


def commands(driver_root: str) -> list[list[str]]:
    """Return the commands that load the modules; a driver root has its own modprobe and files."""
    enter = [] if driver_root == "/" else ["chroot", driver_root]
    return [[*enter, MODPROBE, name] for name in MODULES]


def run(argv: Sequence[str]) -> tuple[int, str]:
    """Run a program and return its exit status and the last line that it wrote."""
    done = subprocess.run(
        argv, check=False, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )  # fmt: skip
    lines = done.stdout.decode(errors="replace").strip().splitlines()
    return done.returncode, lines[-1] if lines else ""


def load(driver_root: str, run: Run, sys_root: str = "/sys") -> list[str]:
    """Load the modules, and return warnings about those that nobody needs and that failed.

    A module that is loaded is left alone: a host that may only be read has no modprobe.

    Raises:
        HostError: a module that every use of a GPU needs cannot be loaded.
    """
    warnings = []
    for argv in commands(driver_root):
        name = argv[-1]
        if os.path.isdir(f"{sys_root}/module/{name.replace('-', '_')}"):
            continue
        try:
            status, said = run(argv)
        except OSError as error:
            status, said = 1, error.strerror or str(error)
        if status == 0:
            continue
        text = f"cannot load module {name} ({' '.join(argv)}): {said or f'status {status}'}"
        if name not in OPTIONAL:
            raise HostError(
                text, hint="is the driver built for this kernel? run as root; see dmesg"
            )
        warnings.append(text)
    return warnings
