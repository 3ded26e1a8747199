# SPDX-License-Identifier: Apache-2.0
"""Command: nvidia-ctk cdi generate. Options and one call, no logic."""

from __future__ import annotations

from typing import Any

import click

from nvct.cli.cdi.generate import write
from nvct.cli.options import GoStyle, words

ENV = "NVIDIA_CTK_CDI_GENERATE_"
MODES = "auto, nvml, csv, wsl, management, gdrcopy, gds, imex, mofed or nvswitch"


@click.command(cls=GoStyle)
@click.option("--output", envvar="NVIDIA_CTK_CDI_OUTPUT_FILE_PATH", default="-",
              help="File to write.  [default: stdout]")  # fmt: skip
@click.option("--format", "form", envvar=f"{ENV}OUTPUT_FORMAT", metavar="[yaml|json]",
              help="[default: by the ending of --output, else yaml]")  # fmt: skip
@click.option("--cdi-version-max", envvar=f"{ENV}CDI_VERSION_MAX", metavar="VERSION",
              help="Leave out what engines that know CDI up to this cannot read.")  # fmt: skip
@click.option("--mode", "--discovery-mode", envvar=f"{ENV}MODE", default="auto",
              show_default=True, metavar="MODE", help=f"How to look: {MODES}.")  # fmt: skip
@words("--capabilities", env=f"{ENV}CAPABILITIES",
       text="Only what these need: compute, utility, graphics, video, display, ngx, compat32, or "
       "all, which is all but compat32.  [default: all]")  # fmt: skip
@click.option("--layout", envvar=f"{ENV}LAYOUT", metavar="[auto|farm|classic]",
              help="One mount of a view of the driver, or one per file.  [default: config.toml's]",
              )  # fmt: skip
@click.option("--driver-root", envvar="NVIDIA_CTK_DRIVER_ROOT",
              help="Where the driver's files are.  [default: config.toml's, else /]")  # fmt: skip
@click.option("--dev-root", envvar="NVIDIA_CTK_DEV_ROOT",
              help="Where dev/ is.  [default: in the driver root, else in /]")  # fmt: skip
@words("--library-search-path", env=f"{ENV}LIBRARY_SEARCH_PATHS",
       text="Search libraries only here.")  # fmt: skip
@words("--config-search-path", env=f"{ENV}CONFIG_SEARCH_PATHS",
       text="Search configuration files only here.")  # fmt: skip
@click.option("--vendor", "--cdi-vendor", envvar=f"{ENV}VENDOR",
              help="Vendor of the devices' names.  [default: the mode's; nvidia.com]")  # fmt: skip
@click.option("--class", "--cdi-class", "cls", envvar=f"{ENV}CLASS",
              help="Class of the devices' names.  [default: the mode's; gpu]")  # fmt: skip
@words("--device-name-strategy", env=f"{ENV}DEVICE_NAME_STRATEGIES",
       text="index, uuid, type-index.  [default: index,uuid]")  # fmt: skip
@words("--device-id", "--device-ids", "--device", "--devices", env=f"{ENV}DEVICE_IDS",
       text="Only these: indices, UUIDs, all, none.  [default: all]")  # fmt: skip
@click.option("--no-all-device", is_flag=True, envvar=f"{ENV}NO_ALL_DEVICE",
              help="Leave out the device that stands for all.")  # fmt: skip
@click.option("--node-numbers", is_flag=True, envvar=f"{ENV}NODE_NUMBERS",
              help="Write the numbers of device nodes; a boot may change them.")  # fmt: skip
@click.option("--nvidia-cdi-hook-path", "--nvidia-ctk-path", "hook",
              envvar="NVIDIA_CTK_CDI_HOOK_PATH",
              help="The hook program that the spec names.")  # fmt: skip
@words("--disable-hook", "--disable-hooks", env=f"{ENV}DISABLED_HOOKS",
       text="Hooks to leave out, or all.")  # fmt: skip
@words("--enable-hook", "--enable-hooks", env=f"{ENV}ENABLED_HOOKS",
       text="Hooks to put in, whatever --disable-hook says.")  # fmt: skip
@click.option("--ldconfig-path", envvar=f"{ENV}LDCONFIG_PATH",
              help="Without effect: the hook writes ld.so.cache itself.")  # fmt: skip
@words("--csv.file", "csv_files", env=f"{ENV}CSV_FILES", text="Tegra: the CSV files to read.")
@words("--csv.ignore-pattern", "csv_ignore", env=f"{ENV}CSV_IGNORE_PATTERNS",
       text="Tegra: symbolic links to leave out.")  # fmt: skip
@click.option("--csv.compat-container-root", "csv_compat",
              envvar=f"{ENV}CSV_CONTAINER_COMPAT_ROOT",
              help="Orin: where containers have CUDA's compat libraries.")  # fmt: skip
@words("--feature-flag", "--feature-flags", env=f"{ENV}FEATURE_FLAGS",
       text="Flags of nvidia-container-toolkit, e.g. enable-coherent-annotations.")  # fmt: skip
@click.option("--staged", hidden=True, help="Folder to write to; all else is as for --output.")
@click.option("--config", help="config.toml to take the roots from.")
def generate(**values: Any) -> None:  # noqa: ANN401  the options above, each with its own type
    """Write a CDI specification of this host's GPUs.

    Example: nvidia-ctk cdi generate --output /var/run/cdi/nvidia.yaml
    """
    write(**values)
