# SPDX-License-Identifier: Apache-2.0
"""Command: nvct ps. Options, call and print, no logic."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

import click

from nvct.cli import screen
from nvct.cli.gostyle import GoStyle
from nvct.cli.options import format_option, need_host, say_if_inside, show
from nvct.doctor import gpu_users
from nvct.doctor.containers import joined
from nvct.doctor.gpu_users import Use
from nvct.doctor.model import date
from nvct.host.roots import Roots

HEADER = ("GPU", "MIG", "PID", "MEMORY", "COMMAND", "CONTAINER", "SINCE")
"""SINCE is left out unless the NRI plugin recorded it."""
FREE_HEADER = ("GPU", "MIG", "PROFILE", "MEMORY", "IN USE", "UUID", "USED BY")
NOT_ROOT = "Only root sees everything: run it with sudo."
PAUSE_S = 2.0


@click.command(cls=GoStyle)
@click.option("--watch", is_flag=True, help="Repeat this every two seconds.")
@click.option("--free", is_flag=True, help="List the devices instead, with those that are free.")
@format_option("text")
def ps(*, watch: bool, free: bool, form: str) -> None:
    """Show which processes, containers and pods use which GPU or MIG device.

    A process uses a device that it has open. A container with a device that none of its processes
    uses is shown without a process. Containers are those of Docker, Podman, containerd, CRI-O and
    Kubernetes. Root sees all processes, others their own.

    With --free: a device is free if a container with NVIDIA_VISIBLE_DEVICES=free:1 could get it:
    no process computes on it, no container has it, and nobody has leased it.

    Example: sudo nvct ps
    """
    from nvct.cli.context import settings_in_force
    from nvct.compile import live_host

    need_host("ps")
    roots = live_host.roots_of(settings_in_force())
    while True:
        if free:
            _show_free(roots, form)
        else:
            _show_uses(roots, form)
        if not watch:
            return
        time.sleep(PAUSE_S)


def _show_uses(roots: Roots, form: str) -> None:
    uses = gpu_users.of_host(roots)
    show(form, [use.to_dict() for use in uses], text(uses, is_root=os.geteuid() == 0))
    if not uses:
        say_if_inside()


def _show_free(roots: Roots, form: str) -> None:
    from nvct.container import leases
    from nvct.doctor import free_gpus

    found = free_gpus.of_host(roots, leases.folder_of(os.environ))
    rows = [
        (
            str(one.device.gpu),
            one.device.instance or "-",
            one.profile or "-",
            f"{one.memory >> 20} MiB",
            f"{one.used >> 20} MiB",
            one.uuid,
            ", ".join(one.users) or "free",
        )
        for one in found
    ]
    lines = [*screen.table([FREE_HEADER, *rows], screen.columns())]
    lines += [NOT_ROOT] if os.geteuid() else []
    show(form, [one.to_dict() for one in found], lines)


def text(uses: Sequence[Use], *, is_root: bool = True) -> list[str]:
    """Return the lines of a table; a last line says that users other than root do not see all."""
    rows = [HEADER, *map(_row, uses)]
    if not any(use.since for use in uses):
        rows = [row[:-1] for row in rows]
    lines = [*screen.table(rows, screen.columns())]
    if not uses:
        lines = ["no process or container" + ("" if is_root else " of yours") + " uses a GPU"]
    return lines if is_root else [*lines, NOT_ROOT]


def _row(use: Use) -> tuple[str, ...]:
    return (
        str(use.device.gpu),
        use.device.instance or "-",
        str(use.pid or "-"),
        "-" if use.memory is None else f"{use.memory >> 20} MiB",
        use.command or "-",
        joined(use.labels) or use.unit or "-",
        date(use.since) if use.since else "-",
    )
