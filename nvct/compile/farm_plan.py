# SPDX-License-Identifier: Apache-2.0
"""The farm table of nvct's own plan, as config.toml requests it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from nvct import paths
from nvct.cdi.make.hooks import enabled_names
from nvct.cdi.read import registry
from nvct.compile import farm_table as table
from nvct.config.model import Config
from nvct.container.plan import model
from nvct.errors import HostError
from nvct.farm import after_upgrade, build, collect
from nvct.farm.collect import Needs
from nvct.farm.folder import Farm
from nvct.farm.model import LEAN, METHODS
from nvct.host import procfs
from nvct.host.discovery_options import DiscoveryOptions
from nvct.host.gpu import nodes
from nvct.host.model import Inventory
from nvct.host.roots import Roots

NEEDED = ("create-symlinks", "update-ldcache")
"""Hooks that the shim executes itself for a view; if one is disabled, the layout is classic."""


def farm_of(settings: Config) -> Farm:
    """Return the farm of config.toml's farm-dir."""
    return Farm(path=settings.farm_dir.rstrip("/"))


def discover_or_view(
    settings: Config, roots: Roots, options: DiscoveryOptions, discover: Callable[[], Inventory]
) -> Inventory:
    """Return the result of discovery, or the loaded driver's view if the disk has another driver.

    Raises:
        HostError: discovery fails.
    """
    return after_upgrade.discover_or_view(
        farm_of(settings), roots, _named(settings, roots, options), discover
    )


def loaded_view(settings: Config, roots: Roots, options: DiscoveryOptions) -> Inventory | None:
    """Return the inventory of the loaded driver's view, None if there is no view."""
    if not settings.wants_view:
        return None
    return after_upgrade.loaded_view(farm_of(settings), roots, _named(settings, roots, options))


def _named(settings: Config, roots: Roots, options: DiscoveryOptions) -> DiscoveryOptions:
    if not settings.plain_nodes:
        return options
    return replace(options, stat_node=nodes.named_nodes(roots))


def table_of(settings: Config, inventory: Inventory) -> model.Farm:
    """Return the table of this driver's view; a missing view is made.

    If no view can be made, the table requests the classic layout. With layout auto, no view with
    a mount per file is made; an existing one is used, because it may be all that is left of a
    driver that was removed from the disk.
    """
    off = set(NEEDED) - enabled_names(tuple(settings.jit_disable_hooks), ())
    if off:
        return table.without_view(
            f"config.toml disables the hook {min(off)}", inventory.driver_version
        )
    try:
        allowed = METHODS if settings.layout == "farm" else LEAN
        manifest = build.build(farm_of(settings), inventory, settings.driver_root, allowed=allowed)
    except HostError as error:
        return table.without_view(error.message, inventory.driver_version)
    return table.of_view(manifest, inventory, params=settings.params_mask == "true")


def describe_layout(settings: Config, table: model.Farm | None) -> str:
    """Return the layout of this host's containers and the reason, as part of a sentence.

    Args:
        table: of the own plan in force, None if there is none.
    """
    if not settings.wants_view:
        return "layout classic, as config.toml says"
    if table is None:
        return f"layout {settings.layout}: the first container shows whether it is farm or classic"
    if not table["view"]:
        return f"layout {settings.layout} is classic here: {table['why']}"
    description = "a mount for every file" if table["staged"] else "made of links"
    return f"layout {settings.layout} is farm here: the view {table['view']} is {description}"


def needs_in_force(settings: Config, roots: Roots, run_dir: str) -> Needs:
    """Return the users of views on this host, apart from processes."""
    return collect.read_needs(
        procfs.driver_version(roots),
        [f"{run_dir}/{paths.OWN_PLAN}"],
        registry.spec_paths(settings.spec_dirs),
    )


def verify_and_collect(settings: Config, needed: Needs) -> list[str]:
    """Verify every view, and remove the views that nobody needs.

    Returns the problems, in sentences; a damaged view is made again when a plan needs it.
    """
    farm = farm_of(settings)
    if not farm.names():
        return []
    try:
        problems = [problem for _, problems in collect.verify(farm) for problem in problems]
        collect.collect(farm, needed)
    except HostError as error:
        return [error.message]
    return problems
