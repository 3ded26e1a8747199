# SPDX-License-Identifier: Apache-2.0
"""The farm's part of the plan of nvct's own spec, as config.toml wants it."""

from __future__ import annotations

from dataclasses import replace

from nvct.compile import farm_table as table
from nvct.errors import HostError
from nvct.farm import after_upgrade, build, collect
from nvct.farm.folder import Farm
from nvct.farm.model import LEAN, METHODS
from nvct.host.gpu import nodes
from nvct.spec.hooks import enabled_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from nvct.config.model import Config
    from nvct.container.plan.model import Farm as Table
    from nvct.farm.collect import Needs
    from nvct.host.discovery_options import DiscoveryOptions
    from nvct.host.model import Inventory
    from nvct.host.roots import Roots

NEEDED = ("create-symlinks", "update-ldcache")
"""Hooks whose work the shim does for a view: who wants none of it gets the classic layout."""


def of(settings: Config) -> Farm:
    """Return the farm that config.toml names."""
    return Farm(path=settings.farm_dir.rstrip("/"))


def look(
    settings: Config, roots: Roots, options: DiscoveryOptions, find: Callable[[], Inventory]
) -> Inventory:
    """Return what discovery finds, or the loaded driver's view where the disk has another one.

    Raises:
        HostError: as discovery does.
    """
    return after_upgrade.look(of(settings), roots, _named(settings, roots, options), find)


def loaded_view(settings: Config, roots: Roots, options: DiscoveryOptions) -> Inventory | None:
    """Return what containers get although the disk has another driver, None if nothing."""
    if not settings.wants_view:
        return None
    return after_upgrade.loaded_view(of(settings), roots, _named(settings, roots, options))


def _named(settings: Config, roots: Roots, options: DiscoveryOptions) -> DiscoveryOptions:
    if not settings.plain_nodes:
        return options
    return replace(options, stat_node=nodes.named_nodes(roots))


def table_of(settings: Config, inventory: Inventory) -> Table:
    """Return the plan's table of a view of this driver, which is made where it is not there.

    A view that cannot be made is no reason to fail: containers get the classic layout. So they
    do where layout is auto and every file would have to be a mount of its own, unless that has
    been done: after a driver is gone from the disk nothing else may be left of it.
    """
    off = set(NEEDED) - enabled_names(tuple(settings.jit_disable_hooks), ())
    if off:
        return table.none(f"config.toml disables the hook {min(off)}", inventory.driver_version)
    try:
        ways = METHODS if settings.layout == "farm" else LEAN
        manifest = build.build(of(settings), inventory, settings.driver_root, ways=ways)
    except HostError as error:
        return table.none(error.message, inventory.driver_version)
    return table.make(manifest, inventory, params=settings.params_mask == "true")


def choice(settings: Config, table: Table | None) -> str:
    """Return which layout this host's containers get and why, as a sentence's part.

    Args:
        settings: config.toml.
        table: of the own plan in force, None where there is none.
    """
    if not settings.wants_view:
        return "layout classic, as config.toml says"
    if table is None:
        return f"layout {settings.layout}: the first container shows whether it is farm or classic"
    if not table["view"]:
        return f"layout {settings.layout} is classic here: {table['why']}"
    made = "a mount for every file" if table["staged"] else "made of links"
    return f"layout {settings.layout} is farm here: the view {table['view']} is {made}"


def tend(settings: Config, needed: Needs) -> list[str]:
    """Compare every view with what was put there, remove those that nobody needs.

    Returns what is wrong, in sentences; a damaged view is made anew when a plan needs it.
    """
    farm = of(settings)
    if not farm.names():
        return []
    try:
        found = [problem for _, problems in collect.verify(farm) for problem in problems]
        collect.collect(farm, needed)
    except HostError as error:
        return [error.message]
    return found
