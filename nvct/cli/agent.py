# SPDX-License-Identifier: Apache-2.0
"""Command: nvct agent."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from typing import Any, NoReturn

import click

from nvct.agent.core import instance, logs, program
from nvct.agent.core.program import LISTEN_ENV, TASKS_ENV, WORKER_ENV
from nvct.agent.task_table import DEFAULT
from nvct.cli.context import say
from nvct.cli.gostyle import Command, GoGroup
from nvct.cli.options import words
from nvct.doctor import agent_status
from nvct.errors import HostError, unexpected

PYTHON = (3, 11)
RELEASE_S = 10  # Limit for an agent to close the driver
WORKER_SOCKET = "/run/nvct-nvml/nvml.sock"
"""Its folder is shared by two containers of a pod alone."""


def log_options(command: Command) -> Command:
    """Add the options of the log, which all programs of the agent have, to a command."""
    for name, env, choices, text in (
        ("--log-format", logs.FORMAT_ENV, logs.FORMATS, "A line of text or JSON for each event."),
        ("--log-level", logs.LEVEL_ENV, logs.LEVELS, "The lowest level that is logged."),
    ):
        default = getattr(logs.Log(), "form" if name == "--log-format" else "level")
        command = click.option(
            name, envvar=env, type=click.Choice(choices), default=default, show_default=True,
            help=text,
        )(command)  # fmt: skip
    return command


@click.group(cls=GoGroup, invoke_without_command=True)
@words("--tasks", env=TASKS_ENV, text=f"The tasks to run.  [default: {','.join(DEFAULT)}]")
@click.option(
    "--listen", metavar="ADDRESS", envvar=LISTEN_ENV,
    help="Serve /status, /metrics, /healthz, /livez and /readyz by HTTP here, such as :9400 or "
    "127.0.0.1:9400.  [default: no port]",
)  # fmt: skip
@click.option(
    "--worker", metavar="SOCKET", envvar=WORKER_ENV,
    help="Socket of `nvct agent worker`.  [default: NVML in a process of the agent's own]",
)  # fmt: skip
@log_options
@click.option("--status", "shows_status", is_flag=True, help="Print /status of this node's agent.")
@click.option(
    "--ready", "asks_ready", is_flag=True,
    help="Exit with 1 and print why if this host's agent does not serve the node.",
)  # fmt: skip
@click.option(
    "--leave", "leaves", is_flag=True,
    help="Stop this node's agent and remove what it wrote, for uninstallation.",
)  # fmt: skip
@click.option("--host-root", default="/", show_default=True, envvar="HOST_ROOT_MOUNT",
              help="For --leave: the host's root, as this process sees it.")  # fmt: skip
@click.pass_context
def agent(
    ctx: click.Context,
    *,
    tasks: tuple[str, ...],
    listen: str | None,
    worker: str | None,
    log_level: str,
    log_format: str,
    shows_status: bool,
    asks_ready: bool,
    leaves: bool,
    host_root: str,
) -> None:
    """Run this node's agent for Kubernetes: it needs `pip install '.[agent]'` in a checkout.

    Tasks: condition writes a condition of this Node, config-manager chooses the config file,
    device-plugin offers GPUs to the kubelet, dra offers them by dynamic resource allocation (with
    both, the Node's label nvct.dev/resources chooses: classic or dra), exporter serves metrics of
    GPUs, heal heals failed GPUs as far as NVCT_REMEDIATION allows, labels writes labels of this
    Node, mig-manager makes the MIG devices that a label names.
    A task takes its settings from the environment variables of NVIDIA's program (config-manager,
    nvidia-device-plugin, gpu-kubelet-plugin, dcgm-exporter, gpu-feature-discovery,
    nvidia-mig-manager), such as MIG_STRATEGY, and from the file that CONFIG_FILE names.

    Example: MIG_STRATEGY=mixed nvct agent
    """
    if ctx.invoked_subcommand is not None:
        return
    if shows_status or asks_ready:
        answer = instance.status()
        if shows_status:
            click.echo(json.dumps(answer, indent=2))
        if asks_ready:
            _check_ready(answer)
        return
    if leaves:
        from nvct.agent import leave

        done = leave.leave(host_root, os.environ)
        for sentence in done or ["no agent has served this node: there is nothing to remove"]:
            say(sentence)
        return
    settings = {LISTEN_ENV: listen, WORKER_ENV: worker}
    log = {logs.LEVEL_ENV: log_level, logs.FORMAT_ENV: log_format}
    _become("nvct.agent", tasks, {**settings, **log}, needs="grpc")


@agent.command("worker")
@click.option("--socket", envvar=WORKER_ENV, default=WORKER_SOCKET, show_default=True,
              help="The socket to listen on.")  # fmt: skip
@click.option("--driver-root", envvar="DRIVER_ROOT_CTR_PATH", default="/driver-root",
              show_default=True, help="The driver's root in this container.")  # fmt: skip
@log_options
def worker_command(*, socket: str, driver_root: str, log_level: str, log_format: str) -> None:
    """Serve NVML to the agent in another container: `nvct agent --worker SOCKET`.

    This container needs the devices; the agent's needs no privileges. Only root can connect.
    """
    settings = {WORKER_ENV: socket, "DRIVER_ROOT_CTR_PATH": driver_root}
    log = {logs.LEVEL_ENV: log_level, logs.FORMAT_ENV: log_format}
    _become("nvct.agent.nvml.worker", (), {**settings, **log}, needs="pynvml")


@agent.command("release")
@click.option("--limit", "minutes", type=click.IntRange(1, 1440), default=30, show_default=True,
              help="Minutes after which the agent uses the driver again.")  # fmt: skip
def release_command(*, minutes: int) -> None:
    """Make this node's agent close the driver, so that it can be replaced.

    Running pods stay; the kubelet is offered no healthy device until `nvct agent resume`.
    """
    from nvct.agent.nvml import release

    release.request(60 * minutes, instance.FOLDER)
    say(_released())
    say(f"the release ends after {minutes} min, or by `nvct agent resume`")


@agent.command("resume")
def resume_command() -> None:
    """Make this node's agent use the driver again, after `nvct agent release`."""
    from nvct.agent.nvml import release

    if not release.withdraw(instance.FOLDER):
        say("there is nothing to resume: `nvct agent release` did not run, or its time is over")
        return
    user = "this node's agent uses the driver as soon as one is loaded"
    try:
        instance.status()
    except HostError:
        user = "no agent serves this node"
    say(f"the release is over: {user}")


def _released() -> str:
    """Wait until the agent has closed the driver, and return a sentence that says so.

    HostError if it still uses the driver after RELEASE_S, or does not answer.
    """
    nvml: Mapping[str, Any] = {}
    end = time.monotonic() + RELEASE_S
    while time.monotonic() < end:
        try:
            nvml = instance.status()["nvml"]
        except HostError as error:
            if isinstance(error.__cause__, (FileNotFoundError, ConnectionRefusedError)):
                return "no agent serves this node; one that starts now leaves the driver alone"
            raise
        if nvml["state"] == "released":
            return "the agent of this node has closed the driver"
        time.sleep(0.1)
    raise HostError(
        f"the agent still uses the driver after {RELEASE_S} s: NVML {nvml['state']}",
        hint="its log says why; `nvct agent resume` withdraws the request",
    )


def _become(
    module: str, words: tuple[str, ...], settings: Mapping[str, str | None], *, needs: str
) -> NoReturn:
    """Replace this process by a module, which needs none of the command line's memory."""
    if sys.version_info < PYTHON:
        raise HostError("the agent needs Python 3.11 or newer")
    from importlib import util

    if util.find_spec(needs) is None:
        raise unexpected(ModuleNotFoundError(name=needs))
    from nvct.launcher.cold import interpreter

    env = {**os.environ, **{name: value for name, value in settings.items() if value}}
    python = interpreter()
    program.block()
    os.execve(python, [python, "-I", "-m", module, *words], env)


def _check_ready(answer: Mapping[str, Any]) -> None:
    from nvct.agent.core import status

    try:
        reason = status.why_not_ready(answer, os.uname().nodename)
    except agent_status.MALFORMED as error:
        raise HostError("the answer of this node's agent is not a /status") from error
    if reason:
        raise HostError(reason)
