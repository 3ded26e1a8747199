# SPDX-License-Identifier: Apache-2.0
"""Fills a simulated node's /run/nvct-sim with programs that show its driver to its containers.

::

    bin/runc, bin/crun    low-level runtimes whose containers see the node (nvct_sim.oci_runtime)
    bin/with-proc-modules COMMAND...    runs a command with /proc/modules (nvct_sim.proc_modules)
    modules               the content of /proc/modules, for a kernel that has no such file
    proc, sys             file systems without the simulation on top

Rootless containers need proc and sys: the kernel mounts /proc or /sys in a user namespace only if
an instance without locked mounts on top is visible (fs/namespace.c, mnt_already_visible).
"""

from __future__ import annotations

import contextlib
import os
import shlex
import stat
from collections.abc import Callable
from pathlib import Path

from nvct.linux.constants import MS_NODEV, MS_NOEXEC, MS_NOSUID
from nvct.linux.kernel import Kernel
from nvct_sim import oci_runtime
from nvct_sim.oci_runtime import python_command

NAME = "nvct-sim"
PROGRAMS = oci_runtime.PROGRAMS
RUNTIMES = ("runc", "crun")
SCRIPT = """#!/bin/sh
exec {command} "$@"
"""
WITH_PROC_MODULES = "with-proc-modules"


def fill(folder: Path, kernel: Kernel) -> None:
    """Fill the folder that becomes /run/nvct-sim."""
    (folder / "bin").mkdir()
    for name in RUNTIMES:
        _write_program(folder / "bin" / name, python_command("oci_runtime.main()", name))
    _write_program(folder / "bin" / WITH_PROC_MODULES, python_command("proc_modules.main()"))
    for name, kind in (("proc", "proc"), ("sys", "sysfs")):
        (folder / name).mkdir()
        # Only rootless containers need this mount, and some machines do not allow it.
        with contextlib.suppress(PermissionError):
            kernel.mount(kind, str(folder / name), kind, MS_NOSUID | MS_NODEV | MS_NOEXEC)


def _write_program(path: Path, command: list[str]) -> None:
    path.write_text(SCRIPT.format(command=shlex.join(command)))
    path.chmod(0o755)


def mirror(entry: Path, target: Path, bind: Callable[[Path, Path], None]) -> None:
    """Make an entry of a folder appear in another one: copy a link, bind-mount all else."""
    if entry.is_symlink():
        target.symlink_to(os.readlink(entry))
        return
    if entry.is_dir():
        target.mkdir()
    else:
        target.touch()
    bind(entry, target)


def copy_node(source: Path, target: Path, kernel: Kernel) -> None:
    """Copy a character device with mode and owner, or a symbolic link; skip anything else."""
    try:
        status = source.lstat()
    except FileNotFoundError:
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if stat.S_ISLNK(status.st_mode):
        target.symlink_to(os.readlink(source))
    elif stat.S_ISCHR(status.st_mode):
        kernel.mknod(str(target), status.st_mode, status.st_rdev)
        target.chmod(stat.S_IMODE(status.st_mode))
        os.chown(target, status.st_uid, status.st_gid)
