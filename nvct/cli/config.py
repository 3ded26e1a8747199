# SPDX-License-Identifier: Apache-2.0
"""Commands: nvidia-ctk config, config default; nvct config show."""

from __future__ import annotations

import os
from collections.abc import Collection

import click

from nvct import paths
from nvct.cli.context import say
from nvct.cli.gostyle import GoGroup, GoStyle, is_incumbents
from nvct.config import editing, load
from nvct.config.editing import DEFAULT_TEXT
from nvct.config.model import Config
from nvct.config.toml_source import value_text
from nvct.errors import UsageError
from nvct.linux.files import write_atomic
from nvct.linux.folders import make_folders, missing_folders

OUTPUT = click.option("--output", "-o", default="", metavar="FILE",
                      help="Write to FILE.  [default: standard output]")  # fmt: skip
MODE = 0o644
WIDTH = 66  # columns before the origin of a value


@click.group(cls=GoGroup, invoke_without_command=True)
@click.option("--config-file", "--config", "-c", "file", default="", metavar="FILE",
              help="The config.toml to read.  [default: the one in force]")  # fmt: skip
@click.option("--set", "settings", multiple=True, metavar="KEY[=VALUE]",
              help="Set a key; ':' or ',' separates a list. Can be repeated.")  # fmt: skip
@click.option("--set-list-separator", "separator", default=":", hidden=True)
@click.option("--in-place", "-i", is_flag=True, help="Write the file that was read.")
@OUTPUT
@click.pass_context
def config(
    ctx: click.Context,
    *,
    file: str,
    settings: tuple[str, ...],
    separator: str,
    in_place: bool,
    output: str,
) -> None:
    """Print config.toml, or change keys of it; comments and order stay.

    Without a file, the default config.toml is used. If the file lacks keys, the default
    config.toml is printed, with the values that the file sets.

    Example: nvidia-ctk config --set nvidia-container-runtime.mode=cdi --in-place
    """
    if ctx.invoked_subcommand:
        ctx.meta["nvct.config-file"] = file
        return
    if in_place and output:
        raise UsageError("--in-place and --output exclude each other", hint="choose one")
    if not separator:
        raise UsageError("--set-list-separator is empty", hint="leave it out for a colon")
    path = file or _config_path()
    old_text = _text(path)
    changes = editing.parse(settings, separator)
    new_text = editing.change(old_text or DEFAULT_TEXT, changes, path)
    _warn(changes, new_text, path)
    if not in_place:
        new_text = editing.complete(new_text, path)
    where = path if in_place else output
    if not where:
        click.echo(new_text, nl=False)
    elif where != path or new_text != old_text:
        _write(where, new_text)


@config.command("default", cls=GoStyle)
@OUTPUT
def default(*, output: str) -> None:
    """Print the default config.toml."""
    if output:
        _write(output, DEFAULT_TEXT)
    else:
        click.echo(DEFAULT_TEXT, nl=False)


config.aliases = {"create-default": "default", "generate-default": "default"}


@config.command("show", cls=GoStyle)
@click.option("--origin", is_flag=True, help="Show where each value comes from.")
@click.pass_context
def show(ctx: click.Context, *, origin: bool) -> None:
    """Print every key with the value in force, and warnings about values without effect."""
    path = ctx.meta.get("nvct.config-file") or _config_path()
    settings = load.load(path)
    text = _text(path) or ""
    if origin:
        click.echo(f"# {_why(path, settings)}")
    for key, name in load.KEYS.items():
        row = f"{key} = {_toml(name, getattr(settings, name))}"
        click.echo(f"{row:{WIDTH}}  # {_origin(text, path, key, settings)}" if origin else row)
    if settings.policy:
        click.echo(f"# nvct.policy.engine-devices: {settings.engine_devices}")
    for number, rule in enumerate(settings.policy, 1):
        click.echo(f"# nvct.policy, rule {number}: {rule}")
    warnings = [
        *settings.warnings,
        *editing.unread_warnings(settings),
        *editing.unknown_keys(text),
    ]
    for warning in warnings:
        say(f"warning: {warning}")


def _warn(keys: Collection[str], text: str, path: str) -> None:
    for warning in editing.unread_warnings(load.from_toml(text.encode(), path)):
        if warning.partition(" ")[0] in keys:
            say(f"warning: {warning}")


def _config_path() -> str:
    option = click.get_current_context().meta.get("nvct.config")
    return str(option or load.path_from(os.environ))


def _why(path: str, settings: Config) -> str:
    if not settings.path:
        return f"{path} does not exist: these are the defaults"
    if os.environ.get(paths.CONFIG_ENV) == path:
        return f"{path}, which {paths.CONFIG_ENV} names"
    if path != paths.CONFIG_FILE and os.environ.get("XDG_CONFIG_HOME"):
        return f"{path}, by XDG_CONFIG_HOME"
    return path


def _origin(text: str, path: str, key: str, settings: Config) -> str:
    if not settings.path or not load.sets(text, key):
        return "default"
    line = editing.line_of(text, key)
    return f"{path}:{line}" if line else path


def _toml(name: str, value: object) -> str:
    if name in load.COMMA_LISTS and isinstance(value, tuple):
        value = ",".join(value)
    return value_text(value)


def _text(path: str) -> str | None:
    data = load.read(path)
    if data is not None:
        load.from_toml(data, path)  # raises if the file is invalid
    return None if data is None else load.text(data)


def _write(path: str, text: str) -> None:
    path = os.path.abspath(path)
    make_folders(missing_folders(path))
    exists = os.path.exists(path)
    write_atomic(path, text.encode(), mode=None if exists else MODE, follow=True)
    if not is_incumbents(click.get_current_context()):  # the incumbent prints nothing
        say(f"{path} written")
