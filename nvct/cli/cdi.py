# SPDX-License-Identifier: Apache-2.0
"""Commands: nvidia-ctk cdi generate, list, validate. Options and call, no logic."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from nvct import paths
from nvct.cdi import store
from nvct.errors import NvctError, line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeAlias

    from nvct.cdi.types import Spec

    Command: TypeAlias = Callable[..., Any]
    ParamType: TypeAlias = click.ParamType[tuple[str, ...]]
else:
    ParamType = click.ParamType  # not generic before click 8.4

ENV = "NVIDIA_CTK_CDI_GENERATE_"


class Words(ParamType):
    """A repeatable option whose values are also split at commas, as the incumbent's."""

    name = "list"
    envvar_list_splitter = ","

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        """Split one value."""
        del param, ctx
        if isinstance(value, tuple):
            return value
        return tuple(word.strip() for word in str(value).split(",") if word.strip())


def _flat(values: tuple[tuple[str, ...], ...]) -> tuple[str, ...]:
    return tuple(word for value in values for word in value)


def _say(text: str) -> None:
    """Say on stderr what --quiet keeps back."""
    if not click.get_current_context().meta.get("nvct.quiet"):
        click.echo(text, err=True)


def _list(*names: str, env: str, text: str) -> Callable[[Command], Command]:
    return click.option(*names, type=Words(), multiple=True, envvar=env, help=text)


@click.group()
def cdi() -> None:
    """Make, list and check CDI specifications."""


@cdi.command()
@click.option("--output", envvar="NVIDIA_CTK_CDI_OUTPUT_FILE_PATH", default="-",
              help="File to write.  [default: stdout]")  # fmt: skip
@click.option("--format", "form", envvar=f"{ENV}OUTPUT_FORMAT",
              type=click.Choice(store.FORMATS, case_sensitive=False),
              help="[default: by the ending of --output, else yaml]")  # fmt: skip
@click.option("--mode", "--discovery-mode", envvar=f"{ENV}MODE", default="auto",
              type=click.Choice(["auto", "nvml"], case_sensitive=False), show_default=True,
              help="Both look at procfs, and ask NVML for the rest.")  # fmt: skip
@click.option("--driver-root", envvar="NVIDIA_CTK_DRIVER_ROOT",
              help="Where the driver's files are.  [default: config.toml's, else /]")  # fmt: skip
@click.option("--dev-root", envvar="NVIDIA_CTK_DEV_ROOT",
              help="Where dev/ is.  [default: in the driver root, else in /]")  # fmt: skip
@_list(
    "--library-search-path", env=f"{ENV}LIBRARY_SEARCH_PATHS", text="Search libraries only here."
)
@click.option("--vendor", "--cdi-vendor", envvar=f"{ENV}VENDOR", default="nvidia.com",
              show_default=True, help="Vendor of the devices' names.")  # fmt: skip
@click.option("--class", "--cdi-class", "cls", envvar=f"{ENV}CLASS", default="gpu",
              show_default=True, help="Class of the devices' names.")  # fmt: skip
@_list("--device-name-strategy", env=f"{ENV}DEVICE_NAME_STRATEGIES",
       text="index, uuid, type-index.  [default: index,uuid]")  # fmt: skip
@_list("--device-id", "--device-ids", "--device", "--devices", env=f"{ENV}DEVICE_IDS",
       text="Only these: indices, UUIDs, all, none.  [default: all]")  # fmt: skip
@click.option("--no-all-device", is_flag=True, envvar=f"{ENV}NO_ALL_DEVICE",
              help="Leave out the device that stands for all.")  # fmt: skip
@click.option("--nvidia-cdi-hook-path", "--nvidia-ctk-path", "hook",
              envvar="NVIDIA_CTK_CDI_HOOK_PATH",
              help="The hook program that the spec names.")  # fmt: skip
@_list("--disable-hook", "--disable-hooks", env=f"{ENV}DISABLED_HOOKS",
       text="Hooks to leave out, or all.")  # fmt: skip
@_list("--enable-hook", "--enable-hooks", env=f"{ENV}ENABLED_HOOKS",
       text="Hooks to put in, whatever --disable-hook says.")  # fmt: skip
@click.option("--config",
              help="config.toml to take the roots from.")  # fmt: skip
def generate(
    *,
    output: str,
    form: str | None,
    mode: str,
    driver_root: str | None,
    dev_root: str | None,
    library_search_path: tuple[tuple[str, ...], ...],
    vendor: str,
    cls: str,
    device_name_strategy: tuple[tuple[str, ...], ...],
    device_id: tuple[tuple[str, ...], ...],
    no_all_device: bool,
    hook: str | None,
    disable_hook: tuple[tuple[str, ...], ...],
    enable_hook: tuple[tuple[str, ...], ...],
    config: str | None,
) -> None:
    """Write a CDI specification of this host's GPUs.

    Example: nvidia-ctk cdi generate --output /var/run/cdi/nvidia.yaml
    """
    from nvct.config import load as config_load
    from nvct.refresh import compiled
    from nvct.specgen import generate as specgen

    del mode  # auto and nvml are the same model; the other modes are not there yet
    config = config or click.get_current_context().meta.get("nvct.config")
    path = config or config_load.path_from(os.environ)
    settings = config_load.load(path, required=bool(config))
    settings.driver_root = driver_root or settings.driver_root
    settings.dev_root = dev_root or settings.dev_root
    inventory = compiled.look(settings, _flat(library_search_path))
    options = specgen.Options(
        vendor=vendor,
        cls=cls,
        device_name_strategies=_flat(device_name_strategy) or ("index", "uuid"),
        device_ids=_flat(device_id) or ("all",),
        all_device=not no_all_device,
        hook_path=hook or compiled.hook_path(settings),
        disabled_hooks=_flat(disable_hook),
        enabled_hooks=_flat(enable_hook),
        node_numbers=settings.plain_nodes,
    )
    spec = specgen.generate(inventory, options)
    for warning in inventory.warnings:
        _say(f"warning: {warning}")
    write_spec(spec, output, form)


def write_spec(spec: Spec, output: str, form: str | None) -> None:
    """Write a spec to a file, or to stdout for "-"; say on stderr what was done.

    Raises:
        HostError: the file cannot be written.
    """
    if output in ("", "-"):
        sys.stdout.write(store.dumps(spec, form or "yaml").decode())
        return
    path = store.save(spec, output, form)
    _say(f"wrote {len(spec['devices'])} devices to {path}")


@cdi.command("list")
@click.option("--spec-dir", type=Words(), multiple=True, envvar="NVIDIA_CTK_CDI_SPEC_DIRS",
              help="Folders to look in.  [default: /etc/cdi,/var/run/cdi]")  # fmt: skip
def list_devices(spec_dir: tuple[tuple[str, ...], ...]) -> None:
    """Print the name of every CDI device, one a line.

    Example: nvidia-ctk cdi list
    """
    from nvct.cdi import registry

    found = registry.scan(_flat(spec_dir) or paths.CDI_SPEC_DIRS)
    for name in sorted(found.devices):
        click.echo(name)
    for error in found.errors.values():
        _say(line("warning", error))
    for name, files in sorted(found.conflicts.items()):
        _say(f"warning: {name} is defined by {' and '.join(files)}")
    _say(f"found {len(found.devices)} CDI devices")


@cdi.command()
@click.argument("files", nargs=-1, type=click.Path(path_type=Path), required=True)
def validate(files: tuple[Path, ...]) -> None:
    """Check CDI specification files; exit with 1 if one is not right.

    Example: nvidia-ctk cdi validate /etc/cdi/*.yaml
    """
    from nvct.cdi import load, schema  # jsonschema alone takes longer than --help may

    bad = 0
    for path in files:
        try:
            spec = load.load_file(str(path))
            schema.check(spec, source=str(path))
        except NvctError as error:
            click.echo(line("invalid", error))
            bad += 1
        else:
            click.echo(f"valid: {path} ({spec['kind']}, {len(spec['devices'])} devices)")
    sys.exit(1 if bad else 0)
