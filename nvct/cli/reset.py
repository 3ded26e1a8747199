# SPDX-License-Identifier: Apache-2.0
"""Command: nvct reset."""

from __future__ import annotations

import click

from nvct.cli.mig.machine import machine_of
from nvct.cli.options import GoStyle
from nvct.mig.gpu_reset import reset_gpus


@click.command(cls=GoStyle)
@click.argument("gpus", metavar="GPU...", nargs=-1, required=True)
@click.pass_obj
def reset(given: object, *, gpus: tuple[str, ...]) -> None:
    """Reset GPUs that have failed, by index or UUID.

    No process may use them. While it lasts, this node's agent gives them to no pod, and closes
    NVML, which would be in the way of nvidia-smi --gpu-reset. The agent offers a GPU that had
    failed again after its probation.

    Example: nvct reset 3
    """
    for gpu in reset_gpus(machine_of(given), gpus):
        click.echo(f"reset GPU {gpu.index}, {gpu.uuid}")
