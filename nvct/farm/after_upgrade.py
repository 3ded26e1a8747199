# SPDX-License-Identifier: Apache-2.0
"""The driver's files for a loaded module after an upgrade of its package on the disk.

An unattended upgrade installs a new user space beside the running kernel module. Until the next
boot no file on the disk fits the module, but the view of the loaded version does.
`discover_or_view` then returns the view's files, with the container paths of the driver's own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from operator import itemgetter

from nvct.errors import DriverNotFoundError, HostError
from nvct.farm import build, folder
from nvct.farm.folder import Farm
from nvct.farm.model import SAVING, Entry, Manifest
from nvct.host import procfs
from nvct.host.discovery_options import DiscoveryOptions
from nvct.host.driver import libraries, programs
from nvct.host.driver import names as driver_names
from nvct.host.gpu import gpus, nodes
from nvct.host.model import Findings, Inventory
from nvct.host.roots import Roots


def discover_or_view(
    farm: Farm, roots: Roots, options: DiscoveryOptions, discover: Callable[[], Inventory]
) -> Inventory:
    """Return a machine's inventory, with files of a view if the disk has another driver.

    Raises DriverNotFoundError if no driver fits the loaded module, on the disk or in a view.
    """
    loaded = procfs.driver_version(roots)
    try:
        inventory = discover()
    except DriverNotFoundError:
        manifest = _of_version(farm, loaded)
        if manifest is None:
            raise
    else:
        manifest = _of_version(farm, loaded) if inventory.mode == "nvml" else None
        if manifest is None or not is_being_replaced(manifest, inventory):
            return inventory
    return _inventory_of_view(farm, roots, options, manifest)


def loaded_view(farm: Farm, roots: Roots, options: DiscoveryOptions) -> Inventory | None:
    """Return the inventory of the loaded driver's view, None if there is none; makes no view."""
    manifest = _of_version(farm, procfs.driver_version(roots))
    return None if manifest is None else _from_view(roots, options, manifest, _changed(manifest))


def _of_version(farm: Farm, version: str) -> Manifest | None:
    """Return the best usable view of a driver version, None if there is none."""
    if not version:
        return None
    try:
        farm.check()
    except HostError:
        return None
    usable = []
    for manifest in farm.manifests():
        if manifest.version != version or folder.lost_links(manifest):
            continue
        changed = _changed(manifest)
        if not any(entry.file.kind in ("library", "module") for entry in changed):
            usable.append((len(changed), is_orphaned(manifest), manifest))
    return min(usable, key=itemgetter(0, 1), default=(0, False, None))[2]


def _changed(manifest: Manifest) -> list[Entry]:
    return [entry for entry, _ in folder.changed(manifest)]


def is_being_replaced(manifest: Manifest, inventory: Inventory) -> bool:
    """Return whether another version is replacing the driver's libraries on the disk.

    Packages are unpacked one after the other, so discovery may find files of the old version.
    """
    disk_paths = {file.host_path for file in inventory.files}
    names: dict[str, list[str]] = {}
    for entry in manifest.entries:
        path = entry.file.host_path
        if entry.file.kind != "library" or path in disk_paths or os.path.lexists(path):
            continue
        directory, name = os.path.split(path)
        if directory not in names:
            names[directory] = procfs.list_directory(directory)
        if _has_other(names[directory], name, manifest.version):
            return True
    return False


def _has_other(names: Iterable[str], name: str, version: str) -> bool:
    head = driver_names.stem(name) + ".so."
    matches = (driver_names.DRIVER_SUFFIX.search(n) for n in names if n.startswith(head))
    return any(match and match[1] != version for match in matches)


def _inventory_of_view(
    farm: Farm, roots: Roots, options: DiscoveryOptions, manifest: Manifest
) -> Inventory:
    """Return the inventory of a view; make a new view of its intact files if it is damaged.

    A new view is also made if the files of a view of binds were deleted on the disk: the kernel
    cannot bind one of them by itself, and no other process could make the view again.
    """
    changed = _changed(manifest)
    inventory = _from_view(roots, options, manifest, changed)
    if not changed and not (manifest.method == "binds" and is_orphaned(manifest)):
        return inventory
    try:
        rebuilt = build.build(farm, inventory, allowed=SAVING, rebuild=True)
    except HostError as error:
        return replace(inventory, warnings=(*inventory.warnings, error.message))
    view_files = {file.container_path: file for file in rebuilt.held_files}
    files = tuple(view_files.get(file.container_path, file) for file in inventory.files)
    return replace(inventory, files=files)


def is_orphaned(manifest: Manifest) -> bool:
    """Return whether a view holds files that were deleted on the disk."""
    paths = (manifest.host_path(entry.path) for entry in manifest.entries)
    return any(os.stat(path).st_nlink == 0 for path in paths if os.path.exists(path))


def _from_view(
    roots: Roots, options: DiscoveryOptions, manifest: Manifest, changed: list[Entry]
) -> Inventory:
    """Return the machine's current GPUs and nodes, with the driver's files of a view."""
    findings = Findings()
    damaged = {manifest.host_path(entry.path) for entry in changed}
    for entry in changed:
        findings.warn(f"{manifest.host_path(entry.path)} was changed in place: left out")
    files = [file for file in manifest.held_files if file.host_path not in damaged]
    files += programs.find_sockets(roots, findings)
    nvml = options.nvml_of(libraries.host_path_of(files, "libnvidia-ml.so"))
    search = nodes.NodeSearch(roots, options.stat_node, findings)
    found_gpus, report = gpus.find_gpus(search, nvml)
    findings.warn(
        f"driver {manifest.version} is loaded, but another one is on the disk: "
        f"containers get the view {manifest.path} until the next boot"
    )
    return Inventory(
        driver_version=manifest.version,
        cuda_version=(report.cuda_version if report else "")
        or manifest.cuda_version
        or driver_names.cuda_version_of(manifest.version),
        gpus=found_gpus,
        control_nodes=nodes.control_nodes(search),
        files=tuple(sorted(files, key=lambda file: file.container_path)),
        warnings=tuple(findings.warnings),
        notes=tuple(findings.notes),
    )
