# SPDX-License-Identifier: Apache-2.0
"""Command: nvidia-ctk cdi generate. Options and call, no logic."""

from __future__ import annotations

import os
import sys

import click

from nvct.cdi import store
from nvct.cli.options import flat, say, words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.cdi.types import Spec

ENV = "NVIDIA_CTK_CDI_GENERATE_"


@click.command()
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
@words(
    "--library-search-path", env=f"{ENV}LIBRARY_SEARCH_PATHS", text="Search libraries only here."
)
@click.option("--vendor", "--cdi-vendor", envvar=f"{ENV}VENDOR", default="nvidia.com",
              show_default=True, help="Vendor of the devices' names.")  # fmt: skip
@click.option("--class", "--cdi-class", "cls", envvar=f"{ENV}CLASS", default="gpu",
              show_default=True, help="Class of the devices' names.")  # fmt: skip
@words("--device-name-strategy", env=f"{ENV}DEVICE_NAME_STRATEGIES",
       text="index, uuid, type-index.  [default: index,uuid]")  # fmt: skip
@words("--device-id", "--device-ids", "--device", "--devices", env=f"{ENV}DEVICE_IDS",
       text="Only these: indices, UUIDs, all, none.  [default: all]")  # fmt: skip
@click.option("--no-all-device", is_flag=True, envvar=f"{ENV}NO_ALL_DEVICE",
              help="Leave out the device that stands for all.")  # fmt: skip
@click.option("--nvidia-cdi-hook-path", "--nvidia-ctk-path", "hook",
              envvar="NVIDIA_CTK_CDI_HOOK_PATH",
              help="The hook program that the spec names.")  # fmt: skip
@words("--disable-hook", "--disable-hooks", env=f"{ENV}DISABLED_HOOKS",
       text="Hooks to leave out, or all.")  # fmt: skip
@words("--enable-hook", "--enable-hooks", env=f"{ENV}ENABLED_HOOKS",
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
    from nvct.host.wanted import Wanted
    from nvct.refresh import compiled
    from nvct.specgen import generate as specgen

    config = config or click.get_current_context().meta.get("nvct.config")
    path = config or config_load.path_from(os.environ)
    settings = config_load.load(path, required=bool(config))
    settings.driver_root = driver_root or settings.driver_root
    settings.dev_root = dev_root or settings.dev_root
    inventory = compiled.look(settings, Wanted(search_paths=flat(library_search_path)), mode)
    options = specgen.Options(
        vendor=vendor,
        cls=cls,
        device_name_strategies=flat(device_name_strategy) or ("index", "uuid"),
        device_ids=flat(device_id) or ("all",),
        all_device=not no_all_device,
        hook_path=hook or compiled.hook_path(settings),
        disabled_hooks=flat(disable_hook),
        enabled_hooks=flat(enable_hook),
        node_numbers=settings.plain_nodes,
    )
    spec = specgen.generate(inventory, options)
    for warning in inventory.warnings:
        say(f"warning: {warning}")
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
    say(f"wrote {len(spec['devices'])} devices to {path}")
