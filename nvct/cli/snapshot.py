# SPDX-License-Identifier: Apache-2.0
"""Command: nvct snapshot."""

from __future__ import annotations

import platform
import sys

import click

from nvct.cli.options import flat, say, settings_in_force, words


@click.command()
@click.option("--output", "-o", default="nvct-snapshot.tar.gz", show_default=True,
              help="A new FILE.tar.gz or folder; - is stdout.")  # fmt: skip
@click.option("--driver-root", envvar="NVIDIA_CTK_DRIVER_ROOT",
              help="Where the driver's files are.  [default: config.toml's, else /]")  # fmt: skip
@click.option("--dev-root", envvar="NVIDIA_CTK_DEV_ROOT",
              help="Where dev/ is.  [default: in the driver root, else in /]")  # fmt: skip
@words("--library-search-path", env="NVIDIA_CTK_CDI_GENERATE_LIBRARY_SEARCH_PATHS",
       text="Search libraries only here.")  # fmt: skip
@words("--config-search-path", env="NVIDIA_CTK_CDI_GENERATE_CONFIG_SEARCH_PATHS",
       text="Search configuration files only here.")  # fmt: skip
@click.option("--no-nvml", is_flag=True, help="Do not ask NVML: it may hang on a broken host.")
@click.option("--keep-uuids", is_flag=True, help="Leave the UUIDs of GPUs as they are.")
def snapshot(
    *,
    output: str,
    driver_root: str | None,
    dev_root: str | None,
    library_search_path: tuple[tuple[str, ...], ...],
    config_search_path: tuple[tuple[str, ...], ...],
    no_nvml: bool,
    keep_uuids: bool,
) -> None:
    """Record what nvct can see of this host, for a bug report or a test.

    The record has names, sizes and links of the driver's files, headers of its libraries, numbers
    of its device nodes, what the kernel and NVML report about the GPUs, and small configuration
    files of the driver. Invented UUIDs replace the real ones; serial numbers and the host's name
    are left out. The record is text: read it before you send it. `nvct sim replay` works on it.

    Example: nvct snapshot -o bug.tar.gz
    """
    from nvct.compile import live_host
    from nvct.host.discovery_options import DiscoveryOptions
    from nvct.host.snapshot import document, record

    settings = settings_in_force(None, driver_root, dev_root)
    options = DiscoveryOptions(
        stat_node=live_host.stat_node(settings),
        search_paths=flat(library_search_path),
        config_search_paths=flat(config_search_path),
    )
    recorded = record.record(live_host.roots_of(settings), options, ask_nvml=not no_nvml)
    recorded = document.redacted(recorded, hostname=platform.node(), keep_uuids=keep_uuids)
    if output == "-":
        sys.stdout.buffer.write(document.packed(recorded))
        return
    document.save(recorded, output)
    say(f"wrote {output}: {len(recorded.elf)} libraries, {len(recorded.nodes)} nodes, "
        f"discovery: {recorded.about['discovery']}")  # fmt: skip
