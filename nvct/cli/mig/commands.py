# SPDX-License-Identifier: Apache-2.0
"""Commands of nvidia-mig-parted and nvct mig, with NVIDIA's options and messages; nvct reset."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import click

from nvct.cli.gostyle import GoStyle
from nvct.cli.mig.machine import failing, hooks, machine_of, read, require, write
from nvct.errors import HostError, NvctError
from nvct.host.nvml.mig_model import MigState
from nvct.mig import apply as carry_out
from nvct.mig import config, export, plan
from nvct.mig import journal as checkpoints
from nvct.mig.config import Spec
from nvct.mig.layout import Layout, layout_of
from nvct.mig.plan import Plan
from nvct.mig.smi import reset_gpus

PARTED = "nvidia-mig-parted"
FORMATS = ("yaml", "json")
NOT_APPLIED = "assertion failure: selected configuration not currently applied"
output_format = click.option(
    "--output-format", "-o", envvar="MIG_PARTED_OUTPUT_FORMAT", default="yaml", show_default=True,
    help="yaml or json.", metavar="FORMAT",
)  # fmt: skip
ignore_holders = click.option(
    "--ignore-holders", is_flag=True, envvar="NVCT_MIG_IGNORE_HOLDERS",
    help="Do not look for processes that use the devices; the driver may still refuse.",
)  # fmt: skip


def option(name: str, short: str, env: str, text: str, default: str = "") -> Callable[..., Any]:
    """Return an option that has a value, with NVIDIA's variable."""
    return click.option(
        f"--{name}", f"-{short}", envvar=f"MIG_PARTED_{env}", default=default, help=text,
        metavar="NAME" if name.endswith(("config", "label")) else "FILE",
    )  # fmt: skip


def switch(name: str, short: str, env: str, text: str) -> Callable[..., Any]:
    """Return an option without a value, with NVIDIA's variable."""
    return click.option(
        f"--{name}", f"-{short}", envvar=f"MIG_PARTED_{env}", is_flag=True, help=text
    )


config_file = option(
    "config-file", "f", "CONFIG_FILE",
    "The configuration file; - is standard input. Without it, nvct mig uses the configurations "
    "that nvct mig configs prints.",
)  # fmt: skip
selected_config = option(
    "selected-config", "c", "SELECTED_CONFIG",
    "The name of the configuration. Optional if a file has only one.",
)  # fmt: skip
hooks_file = option(
    "hooks-file", "k", "HOOKS_FILE", "The file of commands to run before and after."
)
checkpoint_file = option("checkpoint-file", "f", "CHECKPOINT_FILE", "The checkpoint file.")
mode_only = switch(
    "mode-only", "m", "MODE_CHANGE_ONLY", "Change or check only the MIG mode, not the MIG devices."
)


@click.command(cls=GoStyle)
@config_file
@selected_config
@hooks_file
@switch("skip-reset", "s", "SKIP_RESET", "Do not reset GPUs whose MIG mode needs that.")
@mode_only
@ignore_holders
@click.pass_obj
def apply(
    given: object,
    *,
    config_file: str,
    selected_config: str,
    hooks_file: str,
    skip_reset: bool,
    mode_only: bool,
    ignore_holders: bool,
) -> None:
    """Apply a configuration to the GPUs, unless they have it.

    Every GPU's layout is computed before any GPU is changed. MIG devices that the configuration
    has, too, are kept. After a failure, the former layout is restored.
    """
    specs = selected(lambda: _state(given), config_file, selected_config)
    hook = hooks(
        hooks_file,
        {
            "CONFIG_FILE": config_file,
            "SELECTED_CONFIG": selected_config,
            "HOOKS_FILE": hooks_file,
            "SKIP_RESET": skip_reset,
            "MODE_CHANGE_ONLY": mode_only,
        },
    )
    resolve = partial(plan.make, specs=specs, mode_only=mode_only)
    with failing("error applying MIG configuration with hooks"):
        _apply(given, resolve, hook, skip_reset=skip_reset, may_be_held=ignore_holders)
    click.echo("MIG configuration applied successfully")


@click.command("assert", cls=GoStyle)
@config_file
@selected_config
@mode_only
@switch("valid-config", "a", "VALID_CONFIG", "Only check that the file is valid and has it.")
@click.pass_obj
def assert_(
    given: object, *, config_file: str, selected_config: str, mode_only: bool, valid_config: bool
) -> None:
    """Exit with 0 if the GPUs have a configuration, with 1 otherwise."""
    specs = selected(lambda: _state(given), config_file, selected_config)
    if valid_config:
        click.echo("Selected MIG configuration is valid")
        return
    try:
        state = _state(given)
        is_applied = plan.is_applied(state, specs, mode_only=mode_only)
    except NvctError as error:
        raise HostError(NOT_APPLIED, hint=error.message) from error
    if not is_applied:
        reason = "" if _is_parted() else plan.differing(state, specs, mode_only=mode_only)
        raise HostError(NOT_APPLIED, hint=reason)
    what = "mode settings from configuration" if mode_only else "configuration"
    click.echo(f"Selected MIG {what} currently applied")


@click.command("export", cls=GoStyle)
@output_format
@option("config-label", "l", "CONFIG_LABEL", "Name of the configuration.", default="current")
@click.pass_obj
def export_(given: object, *, output_format: str, config_label: str) -> None:
    """Print the GPUs' current configuration."""
    _check_format(output_format)
    with failing("error initializing NVML"):
        document = export.current(_state(given), config_label)
    click.echo(_text(document, output_format), nl=False)


@click.command("generate-config", cls=GoStyle)
@option("output-file", "f", "OUTPUT_FILE", "The file to write.  [default: standard output]")
@output_format
@click.pass_obj
def generate_config(given: object, *, output_file: str, output_format: str) -> None:
    """Print configurations for these GPUs: one for each profile, balanced, all on, all off."""
    _check_format(output_format)
    with failing("error generating MIG config"):
        text = _text(export.generated(_state(given)), output_format)
    if output_file:
        write(output_file, text)
    else:
        click.echo(text, nl=False)


@click.command(cls=GoStyle)
@checkpoint_file
@click.pass_obj
def checkpoint(given: object, *, checkpoint_file: str) -> None:
    """Write every instance of every GPU, with its place, to a file."""
    require(checkpoint_file=checkpoint_file)
    with failing("error fetching MIG state"):
        state = _state(given)
    with failing("error creating checkpoint file"):
        write(checkpoint_file, checkpoints.text_of(checkpoints.of_state(state)))
    click.echo("MIG configuration checkpointed successfully")


@click.command(cls=GoStyle)
@checkpoint_file
@hooks_file
@mode_only
@ignore_holders
@click.pass_obj
def restore(
    given: object, *, checkpoint_file: str, hooks_file: str, mode_only: bool, ignore_holders: bool
) -> None:
    """Restore the instances of a checkpoint, at the same places."""
    require(checkpoint_file=checkpoint_file)
    with failing("error parsing checkpoint file"):
        saved = checkpoints.parse(read(checkpoint_file))
    hook = hooks(
        hooks_file,
        {
            "CHECKPOINT_FILE": checkpoint_file,
            "HOOKS_FILE": hooks_file,
            "MODE_CHANGE_ONLY": mode_only,
        },
    )

    def resolve(state: MigState, *, held: object) -> Plan:
        del held  # a checkpoint has places
        checkpoints.check(saved, state)
        return _modes_of(saved, state) if mode_only else saved

    with failing("error applying MIG configuration with hooks"):
        _apply(given, resolve, hook, may_be_held=ignore_holders)
    click.echo("MIG configuration restored successfully")


COMMANDS = (apply, assert_, export_, generate_config, checkpoint, restore)


def _apply(
    given: object,
    resolve: carry_out.Resolve,
    hook: Callable[[str], None],
    *,
    may_be_held: bool,
    skip_reset: bool = False,
) -> None:
    machine = replace(machine_of(given), hook=hook, skip_reset=skip_reset, may_be_held=may_be_held)
    carry_out.apply(machine, resolve)


def selected(
    find_state: Callable[[], MigState], config_file: str, selected_config: str
) -> Sequence[Spec]:
    """Return a file's configuration, or without a file ("") one made for this hardware.

    UsageError or HostError if there is no such file or configuration, or the file is malformed.
    NVIDIA's program needs a file.
    """
    if not config_file and not _is_parted():
        require(selected_config=selected_config)
        return export.find(find_state(), "", selected_config)
    require(config_file=config_file)
    with failing("error parsing config file"):
        text = read(config_file)
        with failing("unmarshal error"):
            configs = config.parse(text)
    with failing("error selecting MIG config"):
        return config.select(configs, selected_config)


def _is_parted() -> bool:
    """Report whether the program is NVIDIA's, whose messages scripts may parse."""
    return click.get_current_context().find_root().info_name == PARTED


def _state(given: object) -> MigState:
    return machine_of(given).session.mig()


def _modes_of(saved: Plan, state: MigState) -> Plan:
    has = {gpu.uuid: layout_of(gpu) for gpu in state.gpus}
    return plan.Plan(
        layouts={
            uuid: has[uuid]
            if has[uuid].enabled == layout.enabled
            else Layout(enabled=layout.enabled)
            for uuid, layout in saved.layouts.items()
        }
    )


def _check_format(output_format: str) -> None:
    if output_format not in FORMATS:
        raise HostError(f"unrecognized 'output-format': {output_format}")


def _text(document: export.Document, output_format: str) -> str:
    return export.as_json(document) if output_format == "json" else export.as_yaml(document)


@click.command(cls=GoStyle)
@click.argument("gpus", metavar="GPU...", nargs=-1, required=True)
@click.pass_obj
def reset(given: object, *, gpus: tuple[str, ...]) -> None:
    """Reset failed GPUs, named by index or UUID.

    No process may use them. Meanwhile, this node's agent gives them to no pod, and closes NVML,
    which would make nvidia-smi --gpu-reset fail. After its probation, the agent offers a failed
    GPU again.

    Example: nvct reset 3
    """
    for gpu in reset_gpus(machine_of(given), gpus):
        click.echo(f"reset GPU {gpu.index}, {gpu.uuid}")
