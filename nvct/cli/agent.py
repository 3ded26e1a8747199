# SPDX-License-Identifier: Apache-2.0
"""Command: nvct agent."""

from __future__ import annotations

import os
import sys

import click

from nvct.cli.options import flat, words
from nvct.errors import HostError

PYTHON = (3, 11)


@click.command()
@words("--tasks", env="NVCT_AGENT_TASKS", text="What the agent does.  [default: all]")
@click.option(
    "--status", "shows_status", is_flag=True, help="Print the /status of this node's agent."
)
@click.option(
    "--ready", "asks_ready", is_flag=True,
    help="Exit with 1 and the reason unless the agent of this host serves the node.",
)  # fmt: skip
def agent(*, tasks: tuple[tuple[str, ...], ...], shows_status: bool, asks_ready: bool) -> None:
    """Run this node's agent for Kubernetes: it needs `pip install 'nvct[agent]'`.

    Tasks: device-plugin offers GPUs to the kubelet. A task takes its settings from the environment
    variables of NVIDIA's program of that name, as MIG_STRATEGY, and from the file in CONFIG_FILE.

    Example: MIG_STRATEGY=mixed nvct agent
    """
    if shows_status or asks_ready:
        answer = _status()
        if shows_status:
            click.echo(answer, nl=False)
        if asks_ready:
            _check_ready(answer)
        return
    if sys.version_info < PYTHON:
        raise HostError("the agent needs Python 3.11 or newer")
    from importlib import util

    if util.find_spec("grpc") is None:
        raise HostError("no module grpc", hint="pip install 'nvct[agent]'")
    from nvct.launcher.cold import interpreter

    # A process of its own is free of the command line's memory, for as long as it runs.
    python = interpreter()
    os.execv(python, [python, "-I", "-m", "nvct.agent", *flat(tasks)])


def _check_ready(answer: str) -> None:
    import json

    from nvct.agent import status

    reason = status.why_not_ready(json.loads(answer), os.uname().nodename)
    if reason:
        raise HostError(reason)


def _status() -> str:
    import asyncio

    from nvct.agent import instance, status

    path = f"{instance.FOLDER}/{instance.SOCKET}"
    try:
        _, body = asyncio.run(status.ask(path, "GET", "/status"))
    except OSError as error:
        raise HostError(
            f"no agent answers on {path}: {error.strerror or error}", hint="nvct agent starts one"
        ) from error
    return body
