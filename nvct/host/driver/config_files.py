# SPDX-License-Identifier: Apache-2.0
"""Configuration files by which loaders find the driver: Vulkan, EGL, OpenCL, Xorg, OptiX.

Contract: /etc and the data directories of the driver root are searched; of files with the same
name, the first is taken. It is mounted where the loaders of any image look. Files for another
machine are left out.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

from nvct.errors import NvctError, printable
from nvct.host.driver.libraries import Search
from nvct.host.driver.tree import Tree
from nvct.host.model import Capability, DriverFile
from nvct.host.roots import join

Location: TypeAlias = tuple[Tree, str]

# NixOS has the driver's files here, whatever $XDG_DATA_DIRS is.
NIXOS_DATA = "/run/opengl-driver/share"
# XDG base directory specification: the default of $XDG_DATA_DIRS.
DATA_DIRS = ("/usr/local/share", "/usr/share", NIXOS_DATA)
MACHINES = frozenset({"x86_64", "aarch64", "i686", "i386", "ppc64le", "armv7l", "armhf"})
TEXT_LIMIT = 1 << 16
NAME_LIMIT = 255


class Kind(NamedTuple):
    """Files of one loader: their folder, the pattern of their names, the folder in containers."""

    folder: str
    name: str
    container_root: str
    reason: str
    capability: Capability = "graphics"
    at_root: bool = False  # whether the driver root itself can have the folder, as on GKE


# The patterns match all names in the list of nvidia-container-toolkit v1.20. The container folders
# are the toolkit's. Group 1 is the machine in a name.
_MACHINE = r"(?:\.([a-z0-9_]+))?\.json"
KINDS = (
    Kind("glvnd/egl_vendor.d", r"\d+_nvidia\.json", "/usr/share", "EGL vendor of GLVND"),
    Kind("egl/egl_external_platform.d", r"\d+_nvidia_[a-z0-9]+\.json", "/usr/share",
         "EGL platform"),
    Kind("nvidia", r"nvoptix\.bin", "/usr/share", "data of OptiX"),
    Kind("X11/xorg.conf.d", r"(?:\d+-)?nvidia(?:-drm-outputclass)?\.conf", "/usr/share",
         "configuration of Xorg"),
    Kind("OpenCL/vendors", r"nvidia\.icd", "/etc", "OpenCL driver", capability="compute"),
    Kind("vulkan/icd.d", r"nvidia_(?:icd|layers)" + _MACHINE, "/etc", "Vulkan driver",
         at_root=True),
    Kind("vulkan/implicit_layer.d", "nvidia_layers" + _MACHINE, "/etc", "Vulkan layer",
         at_root=True),
    # Not in nvidia-container-toolkit v1.20, which mounts the library without its configuration.
    Kind("vulkansc/icd.d", "nvidia_icd(?:_vksc)?" + _MACHINE, "/etc", "Vulkan SC driver"),
)  # fmt: skip


def find_config_files(
    search: Search, search_paths: Sequence[str], *, data_dirs: Sequence[str] = DATA_DIRS
) -> list[DriverFile]:
    """Return the configuration files, sorted by container path.

    `search_paths`, absolute on the host, replace /etc and the data directories of the driver root.
    HostError if the host's root is not readable.
    """
    files: dict[str, DriverFile] = {}
    if search_paths:
        with Tree("/") as host:
            _search(search, [(host, path) for path in search_paths], files)
    else:
        _search(search, [(search.tree, path) for path in ("/etc", *data_dirs)], files)
    return sorted(files.values(), key=lambda file: file.container_path)


def _search(search: Search, locations: Sequence[Location], files: dict[str, DriverFile]) -> None:
    for kind in KINDS:
        candidates = [*locations, (search.tree, "/")] if kind.at_root else locations
        for tree, directory in candidates:
            if kind.folder.partition("/")[0] not in tree.name_set(directory):
                continue
            folder = join(directory, kind.folder)
            for name in tree.names(folder):
                match = re.fullmatch(kind.name, name)
                target = tree.file(join(folder, name)) if match else None
                if match and target and _is_ours(search, tree.host_path(target.path), match):
                    path = join(kind.container_root, f"{kind.folder}/{name}")
                    file = DriverFile(
                        host_path=tree.host_path(target.real),
                        container_path=path,
                        reason=kind.reason,
                        kind="config",
                        capability=kind.capability,
                    )
                    files.setdefault(path, file)


def _is_ours(search: Search, host_path: str, match: re.Match[str]) -> bool:
    machine = match[1] if match.re.groups else None
    if machine in (None, search.machine):
        return True
    if machine in MACHINES:
        search.findings.leave_out(host_path, f"for {machine}")
    return False


def check(search: Search, files: Sequence[DriverFile]) -> None:
    """Warn of each library that a configuration file names but containers do not get.

    HostError if the host's root is not readable.
    """
    loaded = [file for file in files if file.kind == "library"]
    container_paths = {file.container_path for file in loaded}
    container_paths |= {link.path for file in loaded for link in file.links}
    names = {os.path.basename(path) for path in container_paths}
    configs = [f for f in files if f.kind == "config" and f.host_path.endswith((".json", ".icd"))]
    # The host paths have no links below the driver root, so no link can lead out of it.
    with Tree("/") as host:
        for file in configs:
            for library in sorted(_named_libraries(search, host, file)):
                # A path with a slash is relative to the file (Vulkan loader, "driver discovery").
                directory = os.path.dirname(file.container_path)
                path = os.path.normpath(os.path.join(directory, library))
                if library not in names and ("/" not in library or path not in container_paths):
                    search.findings.warn(
                        f"{file.host_path} names {printable(library[:NAME_LIMIT])}, which is not "
                        "among the driver's libraries"
                    )


def _named_libraries(search: Search, host: Tree, file: DriverFile) -> set[str]:
    try:
        data = host.root.read_file(file.host_path, TEXT_LIMIT)
    except (OSError, NvctError) as error:
        search.findings.warn(f"{file.host_path} can't be read: {error}")
        return set()
    text = (data or b"").decode("utf-8", "replace")
    try:
        return libraries_in(text, is_icd=file.host_path.endswith(".icd"))
    except (ValueError, RecursionError) as error:
        search.findings.warn(f"{file.host_path} is not JSON: {error}")
        return set()


def libraries_in(text: str, *, is_icd: bool) -> set[str]:
    """Return the libraries that a configuration file names.

    An ICD of OpenCL has one in its first line, other files are JSON: ValueError if they are not,
    RecursionError if they are nested too deeply.
    """
    if is_icd:
        return {line.strip() for line in text.splitlines()[:1] if line.strip()}
    return {path for path in _library_paths(json.loads(text)) if path}


def _library_paths(document: object) -> Iterator[str]:
    """Yield every library_path: of an ICD, of a layer, of each of several layers."""
    entries: Iterable[object] = ()
    if isinstance(document, dict):
        path = document.get("library_path")
        if isinstance(path, str):
            yield path
        entries = document.values()
    elif isinstance(document, list):
        entries = document
    for entry in entries:
        yield from _library_paths(entry)
