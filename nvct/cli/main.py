# SPDX-License-Identifier: Apache-2.0
"""The programs nvct and nvidia-ctk: one command line, with more commands in nvct."""

from __future__ import annotations

import re
import sys
from typing import NoReturn

import click

from nvct import version
from nvct.cli import ending
from nvct.cli.ending import INCUMBENT
from nvct.cli.gostyle import LazyGroup, global_options
from nvct.errors import UsageError

OWN, CDI = "nvct.cli.main", "nvct.cli.cdi.commands"
CONFIGURE, STATUS = "nvct.cli.runtime.configure", "nvct.cli.runtime.status"
MIGRATE = "nvct.cli.migrate"
CTK_COMMANDS = {
    "cdi": (OWN, "cdi", "Make, list and check CDI specifications."),
    "config": ("nvct.cli.config", "config", "Print config.toml, or change keys of it."),
    "hook": (OWN, "hook", "Run a CDI hook, as nvidia-cdi-hook does."),
    "runtime": (OWN, "runtime_ctk", "Register the runtime with an engine."),
    "system": ("nvct.cli.system", "system", "Make the driver's device nodes and their links."),
}
NVCT_COMMANDS = {
    **CTK_COMMANDS,
    "agent": ("nvct.cli.agent", "agent", "Run this node's agent for Kubernetes."),
    "cluster": ("nvct.cli.cluster", "cluster", "Show the GPU nodes of a cluster."),
    "convert": ("nvct.cli.cluster", "convert", "Convert old manifests into current ones."),
    "demo": ("nvct.cli.sim", "demo", "Run the main job on a simulated node."),
    "doctor": ("nvct.cli.doctor", "doctor", "Find out why containers get no GPU."),
    "explain": ("nvct.cli.explain", "explain", "Print what a container would get, and why."),
    "list": ("nvct.cli.system", "inventory", "Print what containers get from this host."),
    "farm": ("nvct.cli.farm", "farm", "Keep the driver's files as views for containers."),
    "heal": ("nvct.cli.heal", "heal", "Show how failed GPUs are healed."),
    "install": ("nvct.cli.install", "install", "Install nvct on this container's host."),
    "launchers": ("nvct.cli.launchers", "launchers", "Install the runtime shim's launchers."),
    "runtime": (OWN, "runtime", "Configure container engines, and undo it."),
    "mig": ("nvct.cli.mig.group", "mig", "Divide GPUs into MIG devices."),
    "migrate": (OWN, "migrate", "Move from NVIDIA's programs to nvct, and back."),
    "log": ("nvct.cli.log", "log", "Show nvct's decisions about containers."),
    "ps": ("nvct.cli.ps", "ps", "Show who uses which GPU."),
    "publish": ("nvct.cli.refresh", "publish", "Keep the specification that engines read."),
    "refresh": (
        "nvct.cli.refresh",
        "refresh",
        "Compile configuration and plans ahead of time.",
    ),
    "reset": ("nvct.cli.mig.commands", "reset", "Reset GPUs that have failed, beside the agent."),
    "sim": ("nvct.cli.sim", "sim", "Build and use simulated GPU nodes."),
    "status": ("nvct.cli.doctor", "status", "Show the health of this node."),
    "snapshot": ("nvct.cli.system", "snapshot", "Record this host, for a bug report or a test."),
    "validate": ("nvct.cli.validate", "validate", "Write the status files of operators."),
}

PROGRAMS = {
    "nvct": (
        NVCT_COMMANDS, "GPU containers that start fast, never drift and explain themselves."
    ),
    INCUMBENT: (
        {**CTK_COMMANDS, "info": (OWN, "info", "No commands yet, as in the incumbent.")},
        "The commands of nvct under the incumbent's name.",
    ),
}  # fmt: skip

cdi = LazyGroup(
    "cdi",
    {
        "check": (CDI, "check", "Compare specifications with this host."),
        "diff": (CDI, "diff", "Compare two CDI specifications, or one with the host."),
        "generate": (CDI, "generate", "Write a CDI specification of this host's GPUs."),
        "list": (CDI, "list_devices", "Print the name of every CDI device."),
        "transform": (OWN, "transform", "Change CDI specifications."),
        "validate": (CDI, "validate", "Check CDI specification files."),
    },
    "Make, list and check CDI specifications.",
)
transform = LazyGroup(
    "transform",
    {"root": (CDI, "root", "Move paths from one root to another.")},
    "Change CDI specifications.",
)
runtime_ctk = LazyGroup(
    "runtime",
    {"configure": (CONFIGURE, "configure_ctk", "Register the runtime nvidia with an engine.")},
    "Container engines: register the runtime.",
)
runtime = LazyGroup(
    "runtime",
    {
        "configure": (CONFIGURE, "configure", "Register the runtimes, reload the engine."),
        "explain": (STATUS, "explain", "Explain why docker run --gpus fails here."),
        "list": (STATUS, "list_", "List the engines of this host."),
        "plan": (CONFIGURE, "plan", "Print what configure would change, as a diff."),
        "status": (STATUS, "status", "Show the status of the engines."),
        "undo": (CONFIGURE, "undo", "Restore the engines' files."),
    },
    "Container engines: show and change their configuration, and undo it.",
)  # fmt: skip
migrate = LazyGroup(
    "migrate",
    {
        "apply": (MIGRATE, "apply", "Move this host completely, or change nothing."),
        "back": (MIGRATE, "back", "Undo apply."),
        "plan": (MIGRATE, "plan", "Print what apply would change."),
    },
    "Move a host that NVIDIA's programs set up to nvct, and back.",
)
info = LazyGroup(
    "info", {}, "No commands yet, as in the incumbent; nvct status shows a node's health."
)


@click.command(
    context_settings={"ignore_unknown_options": True, "help_option_names": []},
    add_help_option=False,
)
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def hook(args: tuple[str, ...]) -> None:
    """Run a CDI hook: what nvidia-cdi-hook does, with its options."""
    from nvct.container.cdi_hook.main import main

    sys.exit(main(list(args)))


def program(name: str) -> click.Group:
    """Return the command line of nvct or nvidia-ctk, with the incumbent's global options."""
    group: click.Group = LazyGroup(name, *PROGRAMS[name])
    message = version.PROGRAMS[name].rstrip()
    click.version_option(version.__version__, "--version", "-v", message=message)(group)
    for add in global_options(hidden=False):
        add(group)
    return group


def run(name: str, group: click.Group | None = None) -> NoReturn:
    """Run a program."""
    ending.run(name, lambda: _invoke(name, group or program(name)))


def _invoke(name: str, group: click.Group) -> int:
    """Run a group of commands; return the exit status."""
    try:
        status = group.main(prog_name=name, standalone_mode=False)
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        if type(error).__name__ == "NoArgsIsHelpError" and context:  # since click 8.2
            click.echo(context.get_help())
            return 0
        refused = _refused(name, error)
        refused.exit_status = error.exit_code
        raise refused from error
    except click.Abort:
        click.echo(f"{name}: stopped", err=True)
        return ending.STOPPED
    return status if isinstance(status, int) else 0


def _refused(name: str, error: click.ClickException) -> UsageError:
    context = getattr(error, "ctx", None)
    suggestions = list(getattr(error, "possibilities", None) or _similar(error.message, context))
    text = error.message if suggestions else error.format_message()
    text = " ".join(text.split()).rstrip(".")
    where = context.command_path if isinstance(context, click.Context) else name
    guess = f"did you mean {' or '.join(suggestions[:2])}? " if suggestions else ""
    hint = f"{guess}see {where} --help"
    return UsageError(text[:1].lower() + text[1:], hint=hint)


def _similar(message: str, context: click.Context | None) -> list[str]:
    import difflib

    word = re.match(r"No such command '(.{1,40})'", message, re.I)
    if word is None or context is None or not isinstance(context.command, click.Group):
        return []
    return difflib.get_close_matches(word[1], context.command.list_commands(context))


def nvct() -> None:
    """Program nvct."""
    run("nvct")


def nvidia_ctk() -> None:
    """Program nvidia-ctk."""
    run(INCUMBENT)
