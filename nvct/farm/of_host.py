# SPDX-License-Identifier: Apache-2.0
"""The farm of this host: the table of nvct's own plan, and what a CDI specification mounts.

A specification cannot look at the image, so its hook does what the shim does before a container
exists (`nvct.container.cdi_hook.show_view`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from contextlib import closing

from nvct import paths
from nvct.cdi.make.generate import VOID_ENV, MountedView, libcuda_directories
from nvct.cdi.make.hooks import enabled_names
from nvct.cdi.read import registry
from nvct.config.model import Config
from nvct.container.deliver.farm_table import FarmEntries
from nvct.container.plan import model
from nvct.container.plan.store import Store, run_dir
from nvct.container.rootfs import view_links
from nvct.errors import HostError
from nvct.farm import build, collect, table
from nvct.farm.collect import Needs
from nvct.farm.folder import NOT_YET, Farm
from nvct.farm.model import COMPAT32, LEAN, METHODS
from nvct.host import procfs
from nvct.host.model import Capability, Inventory
from nvct.host.roots import Roots

NEEDED = ("create-symlinks", "update-ldcache")
"""Hooks that the shim executes itself for a view; if one is disabled, the layout is classic."""


def farm_of(settings: Config, *, may_build: bool = True) -> Farm:
    """Return the farm of config.toml's farm-dir."""
    return Farm(path=settings.farm_dir.rstrip("/"), may_build=may_build)


def table_of(settings: Config, inventory: Inventory) -> model.Farm:
    """Return plan["farm"] for this driver; a missing view is made.

    If no view can be made, the table requests the classic layout. With layout auto, no view with
    a mount per file is made. An existing one is used, because it may hold a driver that was
    removed from the disk.
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
    """Return the layout of this host's containers and the reason, as part of a sentence."""
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


def view_of_spec(
    settings: Config,
    inventory: Inventory,
    given: Inventory,
    capabilities: Collection[Capability],
    *,
    hooks: Collection[str],
    must_be_farm: bool,
    is_of_this_host: bool,
    may_build: bool,
    say: Callable[[str], None],  # takes a line for the user
) -> MountedView | None:
    """Return what a specification mounts of a view, None for the classic layout.

    The view is made of `inventory`, which has the whole driver; `given` has what the specification
    describes. Raises HostError if no view can be made, although `must_be_farm` or this host's plan
    uses one.
    """
    if not is_of_this_host and not must_be_farm:
        return None
    try:
        _check_view(inventory.mode, hooks)
        allowed = METHODS if must_be_farm else LEAN
        farm = farm_of(settings, may_build=may_build)
        manifest = build.build(farm, inventory, settings.driver_root, allowed=allowed)
    except HostError as error:
        if must_be_farm:
            hint = "use --layout classic, which mounts each file"
            raise HostError(f"layout farm: {error.message}", hint=hint) from error
        if may_build and isinstance(error.__cause__, OSError) and _has_view():
            raise
        if error.message == NOT_YET:
            say(f"{NOT_YET}: once it is in {settings.farm_dir}, specifications mount it")
        return None
    shown = table.of_view(manifest, given)
    return _mounted(shown, given, capabilities)


def _check_view(mode: str, hooks: Collection[str]) -> None:
    if mode != "nvml":
        raise HostError(f"mode {mode} has no driver to make a view of")
    if off := set(NEEDED).difference(hooks):
        raise HostError(f"the hook {min(off)} is disabled")


def _has_view() -> bool:
    """Return whether the plan in force names a view, so that this host can make views."""
    try:
        with closing(Store(run_dir(os.environ))) as store:
            plan = store.read_plan(paths.OWN_PLAN)
    except HostError:
        return False  # another user's plans
    table = (plan or {}).get("farm")
    return isinstance(table, dict) and bool(table.get("view"))


def _mounted(
    table: model.Farm, inventory: Inventory, capabilities: Collection[str]
) -> MountedView:
    """Return what a specification mounts of a view, and what its hook shows in the container."""
    mount_point = view_links.OF_SPEC
    entries = FarmEntries(table, sorted(capabilities))
    keys = ("cache", "cache32") if COMPAT32 in capabilities else ("cache",)
    libraries = [path for key in keys for _, path in entries.of(key)]
    links, files = [], []
    for where, path in entries.links():
        if where != view_links.in_container(path):
            files.append([path, where])
        elif path not in libraries:
            links.append(path)
    files += [[path, mount[0]] for mount, path in entries.singles() if path]
    outside = {mount[0] for mount, path in entries.singles() if not path}
    env = [entry for entry in entries.env(mount_point) if entry != VOID_ENV]
    # The folder for links in images that have no folder for libraries.
    folder = next(iter(libcuda_directories(inventory.files)), "")
    return MountedView(
        source=table["view"],
        shown={
            "mount_point": mount_point,
            "libraries": libraries,
            "links": sorted(links),
            "files": sorted(files),
            "folder": folder,
        },
        files=[file for file in inventory.files if file.container_path in outside],
        env=env,
    )
