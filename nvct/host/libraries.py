# SPDX-License-Identifier: Apache-2.0
"""Libraries of the driver, found by rule: the file's suffix is the version of the driver.

Contract: directories come from the tree's own ld.so.cache and from the usual places. Libraries of
another machine, 32-bit ones too, are left out. Links are resolved inside the driver root.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from nvct.errors import DriverNotFoundError, ElfError, LdCacheError, UnsafePathError
from nvct.host.model import DriverFile, Link
from nvct.host.roots import join

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nvct.host.model import Capability, Findings
    from nvct.host.roots import Roots
    from nvct.host.tree import Found, Tree

# As nvidia-container-toolkit v1.20, its order as well; triplets are added by machine.
PLAIN_DIRS = ("/", "/usr/lib64", "/lib64")
TRIPLET_DIRS = ("/usr/lib/{}", "/usr/lib/{}/nvidia/current", "/lib/{}", "/lib/{}/nvidia/current")
TRIPLETS = {"x86_64": "x86_64-linux-gnu", "aarch64": "aarch64-linux-gnu"}
SUB_DIRS = ("vdpau",)

CLASSES: dict[Capability, tuple[str, ...]] = {
    "utility": ("libnvidia-ml", "libnvidia-cfg", "libnvidia-nscq", "libnvidia-sandboxutils"),
    "compute": (
        "libcuda", "libcudadebugger", "libnvidia-opencl", "libnvidia-gpucomp",
        "libnvidia-ptxjitcompiler", "libnvidia-fatbinaryloader", "libnvidia-allocator",
        "libnvidia-compiler", "libnvidia-compiler-next", "libnvidia-pkcs11",
        "libnvidia-pkcs11-openssl3", "libnvidia-nvvm", "libnvidia-nvvm70", "libnvidia-tileiras",
    ),
    "video": (
        "libvdpau_nvidia", "libnvidia-encode", "libnvidia-opticalflow", "libnvcuvid",
    ),
    "graphics": (
        "libnvidia-eglcore", "libnvidia-glcore", "libnvidia-tls", "libnvidia-glsi",
        "libnvidia-fbc", "libnvidia-ifr", "libnvidia-rtcore", "libnvoptix", "libGLX_nvidia",
        "libEGL_nvidia", "libGLESv2_nvidia", "libGLESv1_CM_nvidia", "libnvidia-glvkspirv",
        "libnvidia-cbl", "libnvidia-vulkan-producer", "libnvidia-present", "libnvidia-gtk2",
        "libnvidia-gtk3", "libnvidia-wayland-client", "libglxserver_nvidia", "libnvidia-vksc-core",
    ),
    "ngx": ("libnvidia-ngx",),
}  # fmt: skip
CLASS_OF: dict[str, Capability] = {name: c for c, names in CLASSES.items() for name in names}
# Graphics libraries with versions of their own (libnvidia-egl-gbm.so.1.1.2 and its kin) belong to
# the graphics discovery, which is not there yet.
OTHER_VERSIONS = re.compile(r"libnvidia-nvvm70\.so\.\d+(\.\d+)*")
DRIVER_SUFFIX = re.compile(r"\.so\.(\d{3,}\.\d+(?:\.\d+)*)$")
NAME = re.compile(r"lib[^/]+?\.so(?=\.|$)")


class Search(NamedTuple):
    """Where libraries are looked for, for which machine, and who hears of oddities."""

    tree: Tree
    roots: Roots
    machine: str
    findings: Findings


def machine_directories(machine: str) -> list[str]:
    """Return the usual library directories of a machine."""
    triplet = TRIPLETS.get(machine)
    return [*PLAIN_DIRS, *(d.format(triplet) for d in TRIPLET_DIRS if triplet)]


def directories(search: Search) -> list[str]:
    """Return the real paths of the library directories of a tree, each once."""
    tree = search.tree
    wanted = machine_directories(search.machine)
    try:
        cached = (path for name, path in tree.cached_libraries() if _is_of_driver(name))
        for path in cached:
            wanted.append(os.path.dirname(path))
            found = tree.find(path)
            if found:
                wanted.append(os.path.dirname(found.real))
    except LdCacheError as error:
        search.findings.warn(f"{error.message}: only the usual library directories are searched")
    unique: dict[str, None] = {}
    for directory in wanted:
        real = tree.directory(directory)
        if real is not None:
            unique[real] = None
    return list(unique)


def infer_version(tree: Tree, dirs: Sequence[str]) -> str:
    """Return the one version of libcuda or libnvidia-ml in the directories, "" if there is none.

    Raises:
        DriverNotFoundError: there are several, and nothing tells which one is loaded.
    """
    for stem in ("libcuda", "libnvidia-ml"):
        versions = set()
        for directory in dirs:
            for name in tree.names(directory):
                match = DRIVER_SUFFIX.search(name)
                if match and name[: match.start()] == stem:
                    versions.add(match[1])
        if len(versions) > 1:
            raise DriverNotFoundError(
                f"{tree.host_root} has {stem} of {' and '.join(sorted(versions))}, "
                "and no kernel module tells which is in use",
                hint="load the nvidia module, or remove the other version",
            )
        if versions:
            return versions.pop()
    return ""


def find(search: Search, version: str, dirs: Sequence[str]) -> list[DriverFile]:
    """Return the libraries of a driver version, sorted by container path.

    Raises:
        DriverNotFoundError: there is none.
    """
    tree = search.tree
    files: dict[str, DriverFile] = {}
    for found in _candidates(tree, version, dirs):
        if found.real in files:
            continue
        library = _library(search, version, found)
        if library is not None:
            files[found.real] = library
    names = {os.path.basename(path) for path in files}
    if not any(name.endswith(f".so.{version}") for name in names):
        raise _not_found(tree, version, dirs)
    for stem in ("libcuda", "libnvidia-ml"):
        if f"{stem}.so.{version}" not in names:
            search.findings.warn(f"{tree.host_root} has no {stem}.so.{version}")
    return sorted(files.values(), key=lambda file: file.container_path)


def _candidates(tree: Tree, version: str, dirs: Sequence[str]) -> Iterator[Found]:
    suffix = f".so.{version}"
    for directory in dirs:
        for place in (directory, *(join(directory, sub) for sub in SUB_DIRS)):
            for name in tree.names(place):
                if not name.startswith("lib"):
                    continue
                if name.endswith(suffix) or OTHER_VERSIONS.fullmatch(name):
                    found = tree.find(join(place, name))
                    if found is not None:
                        yield found


def _library(search: Search, version: str, found: Found) -> DriverFile | None:
    tree, findings = search.tree, search.findings
    host_path = tree.host_path(found.real)
    name = os.path.basename(found.real)
    soname = ""
    try:
        elf = tree.read_elf(found.real)
    except (ElfError, UnsafePathError, OSError) as error:
        findings.warn(f"{host_path} has no readable SONAME, no links are made for it: {error}")
    else:
        if elf.machine != search.machine:
            findings.note(f"{host_path} is for {elf.machine}: left out")
            return None
        soname = elf.soname or ""
    path = search.roots.container_path(host_path)
    stem = _stem(name)
    capability = CLASS_OF.get(stem.removesuffix(".so"), "")
    by_version = name.endswith(f".so.{version}")
    return DriverFile(
        host_path=host_path,
        container_path=path,
        reason=f"suffix is the driver's version {version}" if by_version else "used by libcuda",
        kind="library",
        capability=capability,
        soname=soname,
        links=tuple(_links(tree, found.real, path, soname, stem)),
    )


def _links(tree: Tree, real: str, path: str, soname: str, stem: str) -> Iterator[Link]:
    """Yield what has to stand beside a library.

    nvidia-container-toolkit v1.20 makes SONAME links only where the host has them, and leaves
    those of other versions to ldconfig; which does not run here.
    """
    directory, name = os.path.split(path)
    if soname and "/" not in soname and soname != name:
        yield Link(target=name, path=join(directory, soname))
    if stem == "libGLX_nvidia.so":
        yield Link(target=name, path=join(directory, "libGLX_indirect.so.0"))
    development = join(os.path.dirname(real), stem)
    # Programs dlopen these two without a version; hosts without development packages lack them.
    always = stem in ("libcuda.so", "libnvidia-opticalflow.so")
    if stem not in (name, soname) and (always or tree.is_link(development)):
        yield Link(target=soname or name, path=join(directory, stem))


def _stem(name: str) -> str:
    match = NAME.match(name)
    return match[0] if match else name


def _is_of_driver(name: str) -> bool:
    stem = _stem(name).removesuffix(".so")
    return stem in CLASS_OF or "nvidia" in stem


def _not_found(tree: Tree, version: str, dirs: Sequence[str]) -> DriverNotFoundError:
    others = set()
    for directory in dirs:
        for name in tree.names(directory):
            match = DRIVER_SUFFIX.search(name)
            if match and _stem(name) in ("libcuda.so", "libnvidia-ml.so"):
                others.add(match[1])
    if others:
        return DriverNotFoundError(
            f"kernel module is {version}, but {tree.host_root} has libraries of "
            f"{' and '.join(sorted(others))}",
            hint="reboot, or reload the nvidia modules",
        )
    return DriverNotFoundError(
        f"no library of driver {version} in {tree.host_root}",
        hint="name the place: --driver-root or --library-search-path",
    )


def libcuda_directories(files: Sequence[DriverFile]) -> list[str]:
    """Return the container directories that hold libcuda."""
    paths = (f.container_path for f in files if f.kind == "library")
    found = (p for p in paths if _stem(os.path.basename(p)) == "libcuda.so")
    return sorted({os.path.dirname(p) for p in found})


def host_path_of(files: Sequence[DriverFile], stem: str) -> str | None:
    """Return the host path of the library with a stem, e.g. "libnvidia-ml.so"."""
    for file in files:
        if file.kind == "library" and _stem(os.path.basename(file.host_path)) == stem:
            return file.host_path
    return None
