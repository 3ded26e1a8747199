# SPDX-License-Identifier: Apache-2.0
"""The view that a CDI specification mounts, and the decision between it and layout classic.

A specification cannot look at the image, so its hook does what the shim does before a container
exists (`nvct.container.cdi_hook.show_view`).
"""

from __future__ import annotations

import os
from contextlib import closing

from nvct import paths
from nvct.compile import farm_plan, farm_table
from nvct.container.deliver.farm_table import FarmEntries
from nvct.container.plan.store import Store, run_dir
from nvct.container.rootfs import view_links
from nvct.errors import HostError
from nvct.farm import build
from nvct.farm.model import COMPAT32, LEAN, METHODS
from nvct.spec.capabilities import restrict
from nvct.spec.generate import VOID_ENV, MountedView
from nvct.spec.hooks import enabled_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from nvct.config.model import Config
    from nvct.container.plan.model import Farm as Table
    from nvct.host.model import Capability, DriverFile, Inventory
    from nvct.spec.layout import LayoutRequest


def view(
    settings: Config,
    inventory: Inventory,
    capabilities: Collection[Capability],
    request: LayoutRequest,
) -> tuple[MountedView | None, str]:
    """Return the view to mount, or None and the reason.

    Args:
        settings: config.toml.
        inventory: of all capabilities; a view has the whole driver.
        capabilities: of the specification.
        request: the requested layout.

    Raises:
        HostError: this host has views, but none of this driver could be made now.
    """
    why = _why_classic(inventory, request)
    if why:
        return None, why
    try:
        allowed = METHODS if request.must_be_farm else LEAN
        farm = farm_plan.farm_of(settings)
        manifest = build.build(farm, inventory, settings.driver_root, allowed=allowed)
    except HostError as error:
        if not request.must_be_farm and _is_unwritable(error) and _has_view():
            raise
        return None, error.message
    given = restrict(inventory, capabilities)
    return _mounted(farm_table.of_view(manifest, given), given, capabilities), ""


def _why_classic(inventory: Inventory, request: LayoutRequest) -> str:
    """Return why the layout is classic whatever files the driver has, "" if it may be farm."""
    off = set(farm_plan.NEEDED) - enabled_names(request.disabled_hooks, request.enabled_hooks)
    if inventory.mode != "nvml":
        return f"mode {inventory.mode} has no driver to make a view of"
    if off:
        return f"the hook {min(off)} is disabled"
    if not request.is_of_this_host and not request.must_be_farm:
        return "the driver is not the one of config.toml"
    return ""


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


def _mounted(table: Table, inventory: Inventory, capabilities: Collection[str]) -> MountedView:
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
