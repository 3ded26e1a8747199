# SPDX-License-Identifier: Apache-2.0
"""The table plan["farm"], by which the shim gives containers the driver's files from a view.

Present unless config.toml has layout = "classic". A JSON object; capability "" stands for every
container, the others are those of NVIDIA_DRIVER_CAPABILITIES; several can have the same entry::

    {"view":    host folder of the view; "" if there is none,
     "why":     the reason that there is no view, a sentence, or "",
     "version": of the driver in the view,
     "facts":   [fact, ...]         fingerprints of the view: if one changes, the plan is stale,
     "cache":   {capability: [[name, path], ...]}       ld.so.cache entries of 64-bit libraries,
     "cache32": {capability: [[name, path], ...]}       of 32-bit ones, for containers with both
                                                        compat32 and that capability,
     "links":   {capability: [[where, path], ...]}      links to make in the container,
     "links32": {capability: [[where, path], ...]}      of 32-bit libraries, as "cache32",
     "mounts":  {capability: [[destination, text], ...]}  files with a fixed path: a link into the
                                view if the image has no such file and can be changed, or a mount,
     "env":     {capability: ["K=V", ...]},
     "params":  bool                config.toml requests the mask of the driver's params,
     "staged": bool}                each file is a mount of its own below the view

- `path` is relative to the view, e.g. "lib64/libcuda.so.1"; in the container, to the view's mount
  point. `name` is the linker's: the SONAME, or a development link.
- `where` is an absolute path in the container ("/usr/bin/nvidia-smi"), or begins with "LIBDIR/"
  ("LIBDIR/gbm/nvidia-drm_gbm.so"): the image's folder for libraries of this machine; or with
  "LIBDIR32/": that for 32-bit ones. Every name of a library has a link there, because compilers,
  absolute paths and programs that list the folder do not use ld.so.cache.
- a value in "env" may begin with "VIEW/": the view's mount point.
- `text` is JSON of an OCI mount. Its source is in the view if the view has the file, so the mount
  survives an upgrade of the driver on the disk; sockets are the host's own.
- "params" needs the plan's hook, even if that has no other work.

The table replaces mounts, env, links and folders in the common edits of nvct's own plan
(plan["specs"][0]["edits"]) and in their parts. Their nodes, gids and other work, and the edits of
devices, stay in force. The application profile is for graphics and display only.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from nvct.cdi.make import edits
from nvct.cdi.make.generate import VOID_ENV
from nvct.cdi.make.oci_edits import fragments
from nvct.container.plan import fingerprints, model
from nvct.container.rootfs import view_links
from nvct.farm.model import COMPAT32, Manifest
from nvct.host import capabilities
from nvct.host.model import Capability, DriverFile, Inventory

Pairs: TypeAlias = list[list[str]]

# The kernel loads the GSP firmware; only containers with this capability get it.
FIRMWARE: Capability = "graphics"
GRAPHICAL = ("graphics", "display")
MOUNTED = ("config", "firmware", "module", "socket", "directory")
LIBRARY_DIRS = ("lib64", "lib")
VIEW = "VIEW/"


def without_view(why: str, version: str = "") -> model.Farm:
    """Return the table of a host without a view."""
    return {
        "view": "", "why": why, "version": version, "facts": [], "cache": {}, "cache32": {},
        "links": {}, "links32": {}, "mounts": {}, "env": {},
        "params": False, "staged": False,
    }  # fmt: skip


def of_view(manifest: Manifest, inventory: Inventory, *, params: bool = False) -> model.Farm:
    """Return the table of a view."""
    files = [file for file in map(_mover(manifest), inventory.files) if file is not None]
    view = _View(manifest)
    native = [file for file in files if file.capability != COMPAT32]
    by_capability = capabilities.files_by_capability(native)
    by_capability_32 = {
        name: [file for file in share if file.capability == COMPAT32]
        for name, share in capabilities.files_by_capability(files, (COMPAT32,)).items()
    }
    return {
        "view": manifest.path,
        "why": "",
        "version": manifest.version,
        "cache": _table(by_capability, view.cache),
        "cache32": _table(by_capability_32, view.cache),
        "links": _table(by_capability, view.links),
        "links32": _table(by_capability_32, view.links),
        "mounts": _table(by_capability, _mounts),
        "env": {"": [VOID_ENV], "compute": [f"NVIDIA_CTK_LIBCUDA_DIR={VIEW}lib64"]},
        "params": params,
        "staged": manifest.method == "binds",
        "facts": _fingerprints(manifest),
    }


def _mover(manifest: Manifest) -> Callable[[DriverFile], DriverFile | None]:
    """Return a function that gives a file its path in the view, None if the view lacks it."""
    view_paths = {file.container_path: file.host_path for file in manifest.held_files}

    def move(file: DriverFile) -> DriverFile | None:
        capability = FIRMWARE if file.kind == "firmware" else file.capability
        if file.kind in ("socket", "directory"):
            return file
        path = view_paths.get(file.container_path)
        if path is None or (file.kind in MOUNTED and os.stat(path).st_nlink == 0):
            return None  # the kernel cannot bind a single file that has no name any more
        return replace(file, host_path=path, capability=capability)

    return move


def _table(
    by_capability: Mapping[Capability, Sequence[DriverFile]],
    show: Callable[[DriverFile, str], Iterable[list[str]]],
) -> dict[str, Pairs]:
    tables: dict[str, Pairs] = {
        name: [
            list(pair) for pair in sorted({tuple(p) for file in files for p in show(file, name)})
        ]
        for name, files in by_capability.items()
    }
    return {name: pairs for name, pairs in tables.items() if pairs}


class _View:
    def __init__(self, manifest: Manifest) -> None:
        self.root = manifest.path + "/"
        self.targets: dict[str, list[str]] = {}
        for link in manifest.links:
            target = os.path.normpath(os.path.join(os.path.dirname(link.path), link.target))
            self.targets.setdefault(target, []).append(link.path)

    def names(self, path: str) -> Iterator[str]:
        """Yield the links that lead to a path, directly or through other links."""
        for link in self.targets.get(path, ()):
            yield link
            yield from self.names(link)

    def cache(self, file: DriverFile, _: str) -> Iterator[list[str]]:
        """Yield the ld.so.cache entries of a file as ldconfig lists them: its links, or itself."""
        if file.kind != "library":
            return
        path = file.host_path.removeprefix(self.root)
        folder = os.path.dirname(path)
        beside = [link for link in self.names(path) if os.path.dirname(link) == folder]
        for link_or_file in beside or [path]:
            yield [os.path.basename(link_or_file), link_or_file]

    def links(self, file: DriverFile, capability: str) -> Iterator[list[str]]:
        """Yield the links that a container with a capability needs outside of the view."""
        path = file.host_path.removeprefix(self.root)
        name = os.path.basename(path)
        if file.kind == "binary":
            yield [f"{view_links.PROGRAMS}/{name}", path]
        if file.kind != "library":
            return
        for link in (*self.names(path), path):
            folder, _, below = link.partition("/")
            is_gbm = below.startswith("gbm/")
            if folder in LIBRARY_DIRS and (capability in GRAPHICAL or not is_gbm):
                yield [view_links.in_container(link), link]


def _mounts(file: DriverFile, _: str) -> Iterator[list[str]]:
    if file.kind in MOUNTED:
        compiled = fragments(edits.make(files=[file]), "")  # type: ignore[arg-type]  # plain
        yield from compiled["mounts"]


def _fingerprints(manifest: Manifest) -> list[fingerprints.Fingerprint]:
    """Return fingerprints that change if the view is removed or unmounted in this namespace.

    One file and its folder represent all files: a view never changes.
    """
    paths = [entry.path for entry in manifest.entries]
    first = next((path for path in paths if "/libcuda.so." in path), paths[0])
    return [
        fingerprints.take("stat", manifest.host_path(path))
        for path in (os.path.dirname(first), first)
    ]
