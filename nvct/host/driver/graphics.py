# SPDX-License-Identifier: Apache-2.0
"""Graphics: libraries with versions of their own, and modules that Xorg and gbm load by path.

Contract: `nvct.host.driver.libraries` finds the libraries with the driver's version. Xorg's
modules are in folders of their own and keep the host's path, because an xorg.conf can name it. Of
libraries with the same SONAME, only the one that the linker finds is taken.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby, product

from nvct.host import discovery_options
from nvct.host.driver import libraries
from nvct.host.driver import names as driver_names
from nvct.host.driver.libraries import Search
from nvct.host.driver.tree import TreeFile
from nvct.host.model import DriverFile, Link
from nvct.host.roots import join

# NVIDIA's EGL platform libraries are open source, each with its own version: egl-gbm,
# egl-wayland, egl-wayland2, egl-x11 (xcb and xlib). Some distributions have packages for them.
PREFIX = "libnvidia-egl-"
PLATFORM = re.compile(r"(libnvidia-egl-(?:gbm|wayland2?|xcb|xlib)\.so)\.(\d+(?:\.\d+)*)")

# Libraries that a loader searches at a path relative to its own.
PLUGINS = {
    "libnvidia-allocator": "gbm/nvidia-drm_gbm.so",
    "libvdpau_nvidia": "vdpau/libvdpau_nvidia.so.1",
}

# As nvidia-container-toolkit v1.20, in its order; "extensions/nvidia" is openSUSE's.
BESIDE_LIBRARIES = (
    "nvidia/xorg",
    "xorg/modules/drivers",
    "xorg/modules/extensions",
    "xorg/modules/extensions/nvidia",
    "xorg/modules/updates/drivers",
    "xorg/modules/updates/extensions",
)
XORG_PREFIXES = (
    ("/usr/lib", "xorg"), ("/usr/lib64", "xorg"), ("/usr", "X11R6/lib"), ("/usr", "X11R6/lib64"),
)  # fmt: skip
XORG_SUFFIXES = tuple(path.removeprefix("xorg/") for path in BESIDE_LIBRARIES[1:])

# Loaders of GLVND and OpenCL: most images have them, and no driver package owns them. The list is
# that of nvidia-container-toolkit v1.20, which searches the names without a number: a host has
# these only if development packages are installed.
EXPLICIT = (
    "libEGL.so.1", "libGL.so.1", "libGLESv1_CM.so.1", "libGLESv2.so.2", "libGLX.so.0",
    "libGLdispatch.so.0", "libOpenCL.so.1", "libOpenGL.so.0", "libnvidia-api.so.1",
)  # fmt: skip


def find_graphics(search: Search, version: str, dirs: Sequence[str]) -> list[DriverFile]:
    """Return EGL platform libraries and Xorg's modules, sorted by container path."""
    files = [*platform_libraries(search, dirs), *_xorg_modules(search, version, dirs)]
    return sorted(files, key=lambda file: file.container_path)


def find_loaders(
    search: Search, dirs: Sequence[str], known_files: Iterable[DriverFile] = ()
) -> list[DriverFile]:
    """Return the GLVND and OpenCL loaders of a host that are not among the known files."""
    known_paths = {file.host_path for file in known_files}
    paths = (join(directory, name) for directory, name in product(dirs, EXPLICIT))
    loaders = {file.real: file for path in paths if (file := search.tree.file(path))}
    reason = f"asked for by the feature flag {discovery_options.EXPLICIT_LIBRARIES}"
    files = (
        _library(search, loader, reason)
        for loader in loaders.values()
        if search.host_path(loader) not in known_paths
    )
    return sorted((file for file in files if file), key=lambda file: file.container_path)


def add_links(
    search: Search, dirs: Sequence[str], files: Iterable[DriverFile]
) -> list[DriverFile]:
    """Return the files, with links that graphics needs to libraries with the driver's version.

    libgbm loads gbm/<name of the kernel's driver>_gbm.so and libvdpau loads
    vdpau/libvdpau_nvidia.so.1, both relative to their own folder. GL loads
    libnvidia-vulkan-producer.so without a version.
    """
    linked = []
    for file in files:
        directory, name = os.path.split(file.container_path)
        stem = driver_names.stem(name)
        new = None
        if file.kind == "library" and stem in PLUGINS:
            new = _plugin(search, dirs, file, PLUGINS[stem])
        elif file.kind == "library" and stem == "libnvidia-vulkan-producer":
            new = Link(target=name, path=join(directory, f"{stem}.so"))
        if new is not None and new.path not in (existing.path for existing in file.links):
            file = replace(file, links=(*file.links, new))
        linked.append(file)
    return linked


def _plugin(search: Search, dirs: Sequence[str], file: DriverFile, plugin: str) -> Link | None:
    """Return the link by which a loader finds a library, None if it needs none.

    The link is at the host's path; if the host has none, gbm still gets one. Debian keeps the
    libraries in a folder of their own, and its links lead there through /etc/alternatives, which
    containers do not have.
    """
    directory, name = os.path.split(file.container_path)
    target = join(directory, file.soname or name)
    path = join(directory, plugin) if plugin.startswith("gbm/") else ""
    for folder in dirs:
        library = search.tree.file(join(folder, plugin))
        if library is not None and search.host_path(library) == file.host_path:
            path = search.container_path(library)
            break
    if os.path.dirname(path) in ("", directory):
        return None  # the library is where its loader looks
    return Link(target=os.path.relpath(target, os.path.dirname(path)), path=path)


def platform_libraries(search: Search, dirs: Sequence[str]) -> Iterator[DriverFile]:
    """Yield EGL's platform libraries for the machine of a search, one of each SONAME."""
    by_path: dict[str, DriverFile] = {}
    for directory in dirs:
        for name in search.tree.names(directory):
            if not (name.startswith(PREFIX) and PLATFORM.fullmatch(name)):
                continue
            library = search.tree.file_in(directory, name)
            if library is None or library.real in by_path:
                continue
            if file := _library(search, library, "platform library of EGL"):
                by_path[library.real] = file

    # Sorted in the order of the directories: the linker takes the first library of a SONAME.
    folders = list(dict.fromkeys(os.path.dirname(real) for real in by_path))

    def search_order(real: str) -> tuple[int, str]:
        return folders.index(os.path.dirname(real)), by_path[real].soname

    firsts: dict[str, str] = {}
    for (folder, soname), group in groupby(sorted(by_path, key=search_order), key=search_order):
        reals = list(group)
        chosen = reals[0] if len(reals) == 1 else _chosen(search, folders[folder], soname, reals)
        first = firsts.setdefault(soname or os.path.basename(chosen), chosen)
        for real in reals:
            if real == first:
                yield by_path[real]
            else:
                reason = f"{soname} is {os.path.basename(chosen)}"
                if first != chosen:
                    reason = f"{search.tree.host_path(first)} is found before it"
                search.leave_out(real, reason)


def _chosen(search: Search, directory: str, soname: str, reals: Sequence[str]) -> str:
    """Return the library that the linker takes: the target of the SONAME's link, or the newest."""
    target = search.tree.file(join(directory, soname))
    return target.real if target and target.real in reals else max(reals, key=_version_of)


def _version_of(path: str) -> tuple[int, ...]:
    match = PLATFORM.fullmatch(os.path.basename(path))
    return tuple(int(part) for part in match[2].split(".")) if match else ()


def _library(search: Search, library: TreeFile, reason: str) -> DriverFile | None:
    is_opencl = os.path.basename(library.real).startswith("libOpenCL.")
    return libraries.make_library(search, library, reason, "compute" if is_opencl else "graphics")


def _fits(search: Search, module: TreeFile) -> bool:
    """Return whether a file is for this machine; true if its headers are unreadable."""
    headers = libraries.read_headers(search, module)
    if headers is None or headers.machine == search.machine:
        return True
    search.leave_out(module.real, f"for {headers.machine}")
    return False


def _xorg_modules(search: Search, version: str, dirs: Sequence[str]) -> Iterator[DriverFile]:
    server = "libglxserver_nvidia.so"
    # negativo17's packages for Fedora and RHEL install the second one without its version.
    directories = _xorg_directories(search, dirs)
    for names in (("nvidia_drv.so",), (f"{server}.{version}", server)):
        module = _first_module(search, directories, names)
        if module is None:
            continue
        # A link (Debian's alternatives) is mounted at its own name.
        path = search.container_path(module)
        directory, name = os.path.split(path)
        short = join(directory, server)
        yield DriverFile(
            host_path=search.host_path(module),
            container_path=path,
            reason="module of Xorg",
            kind="module",
            capability="graphics",
            links=(Link(target=name, path=short),) if name == names[0] != "nvidia_drv.so" else (),
        )


def _xorg_directories(search: Search, dirs: Sequence[str]) -> list[str]:
    pairs = [(directory, sub) for directory in dirs for sub in BESIDE_LIBRARIES]
    pairs += [(base, f"{folder}/{sub}") for base, folder in XORG_PREFIXES for sub in XORG_SUFFIXES]
    paths = (
        join(base, sub)
        for base, sub in pairs
        if sub.partition("/")[0] in search.tree.name_set(base)
    )
    return list(dict.fromkeys(paths))


def _first_module(
    search: Search, directories: Sequence[str], names: Sequence[str]
) -> TreeFile | None:
    version = names[0].removeprefix("libglxserver_nvidia.so.")
    for directory in directories:
        for name in names:
            if name not in search.tree.name_set(directory):
                continue
            module = search.tree.file(join(directory, name))
            if module is None or not _fits(search, module):
                continue
            suffix = os.path.basename(module.real).partition(".so.")[2]
            if len(names) > 1 and suffix not in ("", version):
                search.leave_out(module.real, f"of driver {suffix}")
                continue
            return module
    return None
