# SPDX-License-Identifier: Apache-2.0
"""The view that a CDI specification mounts, and the decision between it and layout classic.

A specification cannot look at the image, so its hook does what the shim does before a container
exists (`nvct.container.cdi_hook.show_view`).
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from contextlib import closing

from nvct import paths
from nvct.cdi.make.capabilities import restrict
from nvct.cdi.make.generate import VOID_ENV, MountedView
from nvct.compile import farm_plan, farm_table
from nvct.config.model import Config
from nvct.container.deliver.farm_table import FarmEntries
from nvct.container.plan import model
from nvct.container.plan.store import Store, run_dir
from nvct.container.rootfs import view_links
from nvct.errors import HostError
from nvct.farm import build
from nvct.farm.model import COMPAT32, LEAN, METHODS
from nvct.host.model import Capability, DriverFile, Inventory


def view(
    settings: Config,
    inventory: Inventory,
    capabilities: Collection[Capability],
    *,
    hooks: Collection[str],
    must_be_farm: bool,
    is_of_this_host: bool,
) -> tuple[MountedView | None, str]:
    """Return the view to mount, or None and the reason.

    Args:
        inventory: of all capabilities; a view has the whole driver.
        hooks: the functions of the hook that are switched on.
        must_be_farm: whether the user wants no other layout.
        is_of_this_host: whether the driver is that of config.toml.

    Raises:
        HostError: this host has views, but none of this driver could be made now.
    """
    off = set(farm_plan.NEEDED).difference(hooks)
    if inventory.mode != "nvml":
        return None, f"mode {inventory.mode} has no driver to make a view of"
    if off:
        return None, f"the hook {min(off)} is disabled"
    if not is_of_this_host and not must_be_farm:
        return None, "the driver is not the one of config.toml"
    try:
        allowed = METHODS if must_be_farm else LEAN
        farm = farm_plan.farm_of(settings)
        manifest = build.build(farm, inventory, settings.driver_root, allowed=allowed)
    except HostError as error:
        if not must_be_farm and _is_unwritable(error) and _has_view():
            raise
        return None, error.message
    given = restrict(inventory, capabilities)
    return _mounted(farm_table.of_view(manifest, given), given, capabilities), ""


def _is_unwritable(error: HostError) -> bool:
    return isinstance(error.__cause__, OSError)


def _has_view() -> bool:
    """Return whether the plan in force names a view: this host can make views."""
    try:
        with closing(Store(run_dir(os.environ))) as store:
            plan = store.read_plan(paths.OWN_PLAN)
    except HostError:
        return False  # of another user
    table = (plan or {}).get("farm")
    return isinstance(table, dict) and bool(table.get("view"))


def _mounted(
    table: model.Farm, inventory: Inventory, capabilities: Collection[str]
) -> MountedView:
    """Return what a specification mounts of a view, and what its hook makes visible."""
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
    return MountedView(
        source=table["view"],
        shown={
            "mount_point": mount_point,
            "libraries": libraries,
            "links": sorted(links),
            "files": sorted(files),
            "folder": _library_folder(inventory.files),
        },
        files=[file for file in inventory.files if file.container_path in outside],
        env=[entry for entry in entries.env(mount_point) if entry != VOID_ENV],
    )


def _library_folder(files: Iterable[DriverFile]) -> str:
    """Return the folder of the host's libcuda, "" if there is none."""
    for file in files:
        folder, name = os.path.split(file.container_path)
        if name.startswith("libcuda.so.") and file.capability != COMPAT32:
            return folder
    return ""
