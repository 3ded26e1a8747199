# SPDX-License-Identifier: Apache-2.0
"""Commands: nvidia-ctk system …, nvct list, nvct snapshot. Options, call and print, no logic."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence

import click

from nvct.cli.context import say, settings_in_force, warn
from nvct.cli.gostyle import GoGroup, GoStyle
from nvct.cli.options import driver_roots, format_option, words
from nvct.cli.screen import columns
from nvct.compile import live_host
from nvct.host import capabilities as capability_sets
from nvct.host import dev_char, device_nodes, listing
from nvct.host.device_nodes import Kind
from nvct.host.discovery_options import DiscoveryOptions
from nvct.host.model import Findings, Inventory
from nvct.host.roots import Roots
from nvct.host.snapshot import document, record
from nvct.linux.kernel import KERNEL

DRY_RUN = click.option(
    "--dry-run", is_flag=True, envvar="DRY_RUN", help="Print the commands; change nothing."
)


@click.group(cls=GoGroup)
def system() -> None:
    """Make the driver's device nodes, and links to them in /dev/char."""


@system.command("create-device-nodes", cls=GoStyle)
@click.option("--root", "--driver-root", "driver_root", default="/", show_default=True,
              envvar=["ROOT", "NVIDIA_DRIVER_ROOT", "DRIVER_ROOT"],
              help="Root of modprobe, the kernel modules and dev/.")  # fmt: skip
@click.option("--dev-root", envvar=["NVIDIA_DEV_ROOT", "DEV_ROOT"],
              help="Where dev/ is.  [default: --root]")  # fmt: skip
@click.option("--control-devices", is_flag=True,
              help="nvidiactl, nvidia-modeset, nvidia-uvm, nvidia-uvm-tools.")  # fmt: skip
@click.option("--gpus", is_flag=True, help="nvidia0 and so on, for every GPU that has a driver.")
@click.option("--caps", is_flag=True,
              help="Those in nvidia-caps/: of MIG, its instances, and IMEX.")  # fmt: skip
@click.option("--all", "everything", is_flag=True, help="All three.")
@click.option("--load-kernel-modules", is_flag=True,
              help="First load nvidia, nvidia-uvm, nvidia-modeset.")  # fmt: skip
@DRY_RUN
def create_device_nodes(
    *,
    driver_root: str,
    dev_root: str | None,
    control_devices: bool,
    gpus: bool,
    caps: bool,
    everything: bool,
    load_kernel_modules: bool,
    dry_run: bool,
) -> None:
    """Make or correct the driver's device nodes.

    Majors come from /proc/devices, modes and owners from the driver's parameters. A node with
    wrong numbers is replaced, and so is a file that is not a device node.

    Example: nvidia-ctk system create-device-nodes --all --dry-run
    """
    roots = _roots(driver_root, dev_root or driver_root)
    requested = {"control": control_devices, "gpu": gpus, "cap": caps}
    kinds: list[Kind] = [kind for kind in device_nodes.KINDS if everything or requested[kind]]
    if load_kernel_modules:
        _load(roots.driver_root, dry_run=dry_run)
    elif not kinds:
        say("nothing to do: add --control-devices, --gpus, --caps or --all")
    _make_nodes(roots, kinds, dry_run=dry_run)


@system.command("create-dev-char-symlinks", cls=GoStyle)
@click.option("--dev-char-path", envvar="DEV_CHAR_PATH", default="/dev/char", show_default=True,
              help="Folder of the links.")  # fmt: skip
@click.option("--driver-root", envvar=["NVIDIA_DRIVER_ROOT", "DRIVER_ROOT"], default="/",
              show_default=True, help="Root of modprobe and the kernel modules.")  # fmt: skip
@click.option("--dev-root", envvar=["NVIDIA_DEV_ROOT", "DEV_ROOT"],
              help="Where dev/ is.  [default: in the driver root, else in /]")  # fmt: skip
@click.option("--create-all", is_flag=True, envvar="CREATE_ALL",
              help="Also for nodes that may come later: every GPU and MIG instance.")  # fmt: skip
@click.option("--load-kernel-modules", is_flag=True, envvar="LOAD_KERNEL_MODULES",
              help="With --create-all: first load the modules.")  # fmt: skip
@click.option("--create-device-nodes", "nodes", is_flag=True, envvar="CREATE_DEVICE_NODES",
              help="With --create-all: first make the control nodes.")  # fmt: skip
@DRY_RUN
def create_dev_char_symlinks(
    *,
    dev_char_path: str,
    driver_root: str,
    dev_root: str | None,
    create_all: bool,
    load_kernel_modules: bool,
    nodes: bool,
    dry_run: bool,
) -> None:
    """Link /dev/char/MAJOR:MINOR to device nodes.

    Without these links, systemd takes the GPUs away from running containers when it is reloaded.
    Links to another file, or for a number that the node no longer has, are corrected.

    Example: nvidia-ctk system create-dev-char-symlinks --create-all
    """
    for flag, is_set in (
        ("load-kernel-modules", load_kernel_modules), ("create-device-nodes", nodes)
    ):  # fmt: skip
        if is_set and not create_all:
            say(f"warning: --{flag} is ignored without --create-all")
    roots = _roots(driver_root, dev_root)
    if create_all and load_kernel_modules:
        _load(roots.driver_root, dry_run=dry_run)
    if create_all and nodes:
        _make_nodes(roots, ["control"], dry_run=dry_run)
    _make_links(roots, os.path.abspath(dev_char_path), create_all=create_all, dry_run=dry_run)


def _roots(driver_root: str, dev_root: str | None) -> Roots:
    """Return the roots: the driver's and dev from the options, /proc and /sys by config.toml."""
    settings = settings_in_force().replaced(
        driver_root=os.path.abspath(driver_root),
        dev_root=os.path.abspath(dev_root) if dev_root else "",
    )
    return live_host.roots_of(settings)


def _load(driver_root: str, *, dry_run: bool) -> None:
    if dry_run:
        for argv in device_nodes.commands(driver_root):
            click.echo(" ".join(argv))
        return
    warn(device_nodes.load(driver_root, device_nodes.run))


def _make_nodes(roots: Roots, kinds: Sequence[Kind], *, dry_run: bool) -> None:
    findings = Findings()
    planned = device_nodes.plan_nodes(roots, kinds, findings)
    if not dry_run:
        device_nodes.make_nodes(planned, KERNEL)
    warn(findings.warnings)
    for step in planned.steps:
        _print_step(
            device_nodes.shell_commands(step), device_nodes.describe(step), dry_run=dry_run
        )
    if planned.missing:
        raise device_nodes.missing_majors_error(planned.missing, roots)


def _make_links(roots: Roots, folder: str, *, create_all: bool, dry_run: bool) -> None:
    findings = Findings()
    planned = dev_char.plan_links(roots, folder, findings, create_all=create_all)
    if not dry_run:
        dev_char.update_links(planned, folder, KERNEL)
    warn(findings.warnings)
    for step in planned.steps:
        _print_step(dev_char.shell_commands(step), dev_char.describe(step), dry_run=dry_run)
    link_count = sum(step.action == "make" for step in planned.steps)
    if link_count and not dry_run:
        say(f"{link_count} links made in {folder}")
    if not planned.steps:
        say(f"{roots.dev} has no device node of the driver")
    if planned.missing:
        raise device_nodes.missing_majors_error(planned.missing, roots)


def _print_step(commands: Sequence[str], sentence: str, *, dry_run: bool) -> None:
    for command in commands if dry_run else ():
        click.echo(command)
    if sentence and not dry_run:
        say(sentence)


@click.command()
@click.option("--output", "-o", default="nvct-snapshot.tar.gz", show_default=True,
              help="A new FILE.tar.gz or folder; - is stdout.")  # fmt: skip
@driver_roots
@words("--library-search-path", env="NVIDIA_CTK_CDI_GENERATE_LIBRARY_SEARCH_PATHS",
       text="Search libraries only here.")  # fmt: skip
@words("--config-search-path", env="NVIDIA_CTK_CDI_GENERATE_CONFIG_SEARCH_PATHS",
       text="Search configuration files only here.")  # fmt: skip
@click.option("--no-nvml", is_flag=True, help="Do not ask NVML: it can hang on a broken host.")
@click.option("--keep-uuids", is_flag=True, help="Keep the real UUIDs of GPUs.")
def snapshot(
    *,
    output: str,
    driver_root: str | None,
    dev_root: str | None,
    library_search_path: tuple[str, ...],
    config_search_path: tuple[str, ...],
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
    settings = settings_in_force(None, driver_root, dev_root)
    options = DiscoveryOptions(
        stat_node=live_host.stat_node(settings),
        search_paths=library_search_path,
        config_search_paths=config_search_path,
    )
    recorded = record.record(live_host.roots_of(settings), options, ask_nvml=not no_nvml)
    recorded = document.redacted(recorded, hostname=platform.node(), keep_uuids=keep_uuids)
    if output == "-":
        sys.stdout.buffer.write(document.packed(recorded))
        return
    document.save(recorded, output)
    say(f"wrote {output}: {len(recorded.elf)} libraries, {len(recorded.nodes)} nodes, "
        f"discovery: {recorded.about['discovery']}")  # fmt: skip


@click.command("list", cls=GoStyle)
@format_option("table", "bind")
@click.option("--all", "everything", is_flag=True,
              help="Also what containers do not get, and why.")  # fmt: skip
@words("--capabilities", env="NVCT_LIST_CAPABILITIES",
       text="Only what these need: compute, utility, graphics, video, display, ngx, compat32, "
       "all.  [default: all but compat32]")  # fmt: skip
@click.option("--mode", default="auto", show_default=True,
              help="Discovery mode, as of nvidia-ctk cdi generate.")  # fmt: skip
@driver_roots
@click.option("--config", help="The config.toml with the roots.")
def inventory(
    *,
    form: str,
    everything: bool,
    capabilities: tuple[str, ...],
    mode: str,
    driver_root: str | None,
    dev_root: str | None,
    config: str | None,
) -> None:
    """Print what containers get from this host, each entry with its reason.

    Format bind is one SRC:DST:OPTIONS a line: ro for a file, rw for a socket, rwm for a device
    node. docker --volume, podman --volume and apptainer --bind take the lines of files and
    sockets, docker --device and podman --device those of nodes. Links are resolved.

    Format json is described by inventory.schema.json beside nvct/host/listing.py.

    Example: nvct list --capabilities compute,utility --format bind
    """
    settings = settings_in_force(config, driver_root, dev_root)
    needs = capability_sets.parse(capabilities)
    options = DiscoveryOptions(compat32="compat32" in needs)
    discovered = live_host.discover_or_view(
        settings, options, mode.lower(), elsewhere=bool(driver_root or dev_root)
    )
    _print_inventory(capability_sets.restrict(discovered, needs), form, everything=everything)


def _print_inventory(discovered: Inventory, form: str, *, everything: bool) -> None:
    if form == "bind":
        lines, impossible = listing.as_binds(discovered)
        click.echo("".join(f"{line}\n" for line in lines), nl=False)
        for path in impossible:
            say(f"warning: {path!r} cannot be written as SRC:DST:OPTIONS")
    elif form == "json":
        click.echo(listing.as_json(discovered, left_out=everything), nl=False)
    else:
        table = listing.as_table(discovered, left_out=everything, width=columns())
        click.echo(table, nl=False)
    warn(discovered.warnings)
