# SPDX-License-Identifier: Apache-2.0
"""The driver's files for a loaded module whose package has been replaced on the disk.

An unattended upgrade puts a new user space beside the running kernel module; until the next boot
nothing on the disk fits it, but the view of the loaded version does. `look` then answers with the
view's files, under the paths that the driver's own had.
"""

from __future__ import annotations

import os
from dataclasses import replace

from nvct.errors import DriverNotFoundError, HostError
from nvct.farm import build, folder
from nvct.farm.model import SAVING
from nvct.host import procfs
from nvct.host.driver import cuda_version, libraries
from nvct.host.driver import names as driver_names
from nvct.host.gpu import gpus, ipc, nodes
from nvct.host.model import Findings, Inventory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nvct.farm.folder import Farm
    from nvct.farm.model import Entry, Manifest
    from nvct.host.discovery_options import DiscoveryOptions
    from nvct.host.roots import Roots


def look(
    farm: Farm, roots: Roots, options: DiscoveryOptions, find: Callable[[], Inventory]
) -> Inventory:
    """Return what a machine has, its driver's files from a view where the disk has others.

    Args:
        farm: where views are.
        roots: of the host.
        options: of the discovery.
        find: discovery.

    Raises:
        DriverNotFoundError: no driver fits the loaded module, on the disk or in a view.
        HostError: as `find`.
    """
    loaded = procfs.driver_version(roots)
    try:
        found = find()
    except DriverNotFoundError:
        manifest, changed = _of_version(farm, loaded)
        if manifest is None:
            raise
        return _answer(farm, roots, options, manifest, changed)
    if not loaded or found.mode != "nvml":
        return found
    manifest, changed = _of_version(farm, loaded)
    if manifest is not None and is_being_replaced(manifest, found):
        return _answer(farm, roots, options, manifest, changed)
    return found


def loaded_view(farm: Farm, roots: Roots, options: DiscoveryOptions) -> Inventory | None:
    """Return what `look` would answer with were the driver gone from the disk; makes nothing."""
    manifest, changed = _of_version(farm, procfs.driver_version(roots))
    return None if manifest is None else _from_view(roots, options, manifest, changed)


def _of_version(farm: Farm, version: str) -> tuple[Manifest | None, list[Entry]]:
    """Return the best view of a driver that programs can run with, and what is spoilt in it."""
    if not version:
        return None, []
    try:
        farm.check()
    except HostError:
        return None, []
    usable = []
    for manifest in farm.manifests():
        if manifest.version != version or folder.lost_links(manifest):
            continue
        changed = [entry for entry, _ in folder.changed(manifest)]
        if not any(entry.file.kind in ("library", "module") for entry in changed):
            usable.append((manifest, changed))
    return min(usable, key=lambda pair: (len(pair[1]), is_orphaned(pair[0])), default=(None, []))


def is_being_replaced(manifest: Manifest, found: Inventory) -> bool:
    """Tell whether another version is taking the place of the driver's libraries on the disk.

    Packages are unpacked one after the other: discovery then finds what is left of the old one.
    """
    there = {file.host_path for file in found.files}
    names: dict[str, list[str]] = {}
    for entry in manifest.entries:
        path = entry.file.host_path
        if entry.file.kind != "library" or path in there or os.path.lexists(path):
            continue
        directory, name = os.path.split(path)
        if directory not in names:
            names[directory] = procfs.list_directory(directory)
        if _has_other(names[directory], name, manifest.version):
            return True
    return False


def _has_other(names: Iterable[str], name: str, version: str) -> bool:
    """Tell whether a folder has a library of another driver version."""
    head = driver_names.stem(name) + ".so."
    matches = (driver_names.DRIVER_SUFFIX.search(n) for n in names if n.startswith(head))
    return any(match and match[1] != version for match in matches)


def _answer(
    farm: Farm, roots: Roots, options: DiscoveryOptions, manifest: Manifest, changed: list[Entry]
) -> Inventory:
    """Return the inventory of a view; what is intact of a spoilt one is made a view again.

    So is one of binds whose files are gone from the disk: the whole of it can be mounted, but no
    single file, and no other process could make it anew.
    """
    found = _from_view(roots, options, manifest, changed)
    if not changed and not (manifest.method == "binds" and is_orphaned(manifest)):
        return found
    try:
        made = build.build(farm, found, ways=SAVING, anew=True)
    except HostError as error:
        return replace(found, warnings=(*found.warnings, error.message))
    held = {file.container_path: file for file in made.held_files}
    files = tuple(held.get(file.container_path, file) for file in found.files)
    return replace(found, files=files)


def is_orphaned(manifest: Manifest) -> bool:
    """Tell whether a view has files that have no other name any more."""
    paths = (manifest.host_path(entry.path) for entry in manifest.entries)
    return any(os.stat(path).st_nlink == 0 for path in paths if os.path.exists(path))


def _from_view(
    roots: Roots, options: DiscoveryOptions, manifest: Manifest, changed: list[Entry]
) -> Inventory:
    """Return the machine's GPUs and nodes as they are, with the driver's files of a view."""
    findings = Findings()
    spoilt = {manifest.host_path(entry.path) for entry in changed}
    for entry in changed:
        findings.warn(f"{manifest.host_path(entry.path)} was changed in place: left out")
    files = [file for file in manifest.held_files if file.host_path not in spoilt]
    files += ipc.find_sockets(roots, findings)
    nvml = options.nvml_of(libraries.host_path_of(files, "libnvidia-ml.so"))
    seen, report = gpus.find_gpus(gpus.GpuSearch(roots, options.stat_node, findings), nvml)
    findings.warn(
        f"another driver is on the disk, and {manifest.version} is loaded: "
        f"containers get its view {manifest.path} until the next boot"
    )
    return Inventory(
        driver_version=manifest.version,
        cuda_version=(report.cuda_version if report else "")
        or manifest.cuda_version
        or cuda_version.of_driver(manifest.version),
        gpus=seen,
        control_nodes=nodes.control_nodes(roots, options.stat_node, findings),
        files=tuple(sorted(files, key=lambda file: file.container_path)),
        warnings=tuple(findings.warnings),
        notes=tuple(findings.notes),
    )
