# SPDX-License-Identifier: Apache-2.0
"""Finds the driver's libraries: files with its version as their suffix, and some exceptions.

Contract: directories come from the tree's own ld.so.cache and from a list of usual ones. Libraries
for another machine, 32-bit ones too, are left out. Links are resolved inside the driver root. A
file that looks like the driver's and is not taken is left out with a reason.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from nvct.errors import DriverNotFoundError, ElfError, LdCacheError, UnsafePathError, printable
from nvct.host.driver import names as driver_names
from nvct.host.driver.names import DRIVER_SUFFIX, OTHER_VERSIONS, stem
from nvct.host.driver.tree import Headers, Tree, TreeFile
from nvct.host.model import Capability, DriverFile, Findings, Link
from nvct.host.roots import Roots, join
from nvct.linux import ldcache

# As nvidia-container-toolkit v1.20, in its order; triplets are added by machine.
PLAIN_DIRS = ("/", "/usr/lib64", "/lib64")
TRIPLET_DIRS = ("/usr/lib/{}", "/usr/lib/{}/nvidia/current", "/lib/{}", "/lib/{}/nvidia/current")
TRIPLETS = {"x86_64": "x86_64-linux-gnu", "aarch64": "aarch64-linux-gnu"}
# Not in nvidia-container-toolkit v1.20: driver roots that are not a whole system (NixOS), NixOS
# with the system's root, and the folders of Google's driver installer.
MORE_DIRS = (
    "/usr/lib", "/lib", "/run/opengl-driver/lib", "/usr/local/nvidia/lib64",
    "/usr/local/nvidia/lib",
)  # fmt: skip
SUB_DIRS = ("vdpau",)
CACHED_LIMIT = 64
COSTS = {
    "libcuda": "CUDA will not start in containers",
    "libnvidia-ml": "nvidia-smi will not start in containers",
}
COMPAT_MACHINES = {"x86_64": "i386", "aarch64": "arm"}
COMPAT_REASON = "32-bit, which containers get that ask for compat32"


class Search(NamedTuple):
    """A search in a driver root: tree, machine, and the findings that get its warnings."""

    tree: Tree
    roots: Roots
    machine: str
    findings: Findings

    def host_path(self, file: TreeFile) -> str:
        """Return the host path of a file, without links."""
        return self.tree.host_path(file.real)

    def container_path(self, file: TreeFile) -> str:
        """Return the path in containers of a file under the name by which it was found."""
        return self.roots.container_path(self.tree.host_path(file.path))

    def leave_out(self, path: str, reason: str) -> None:
        """Add the reason that a path of the tree is left out."""
        self.findings.leave_out(self.tree.host_path(path), reason)


def machine_directories(machine: str) -> list[str]:
    """Return the usual library directories of a machine."""
    triplet = TRIPLETS.get(machine)
    return [*PLAIN_DIRS, *(d.format(triplet) for d in TRIPLET_DIRS if triplet), *MORE_DIRS]


def directories(search: Search) -> list[str]:
    """Return the real paths of the library directories of a tree, each once."""
    tree = search.tree
    paths = machine_directories(search.machine)
    for path in cached_paths(search):
        library = tree.file(path)
        paths += [os.path.dirname(name) for name in (path, library.real if library else path)]
    return real_directories(tree, paths)


def real_directories(tree: Tree, paths: Sequence[str]) -> list[str]:
    """Return the real paths of the directories that exist, each once."""
    reals = map(tree.directory, dict.fromkeys(paths))
    return list(dict.fromkeys(real for real in reals if real is not None))


def cached_paths(search: Search) -> list[str]:
    """Return paths of the driver's libraries in the linker's cache: one in each directory."""
    try:
        cache = search.tree.linker_cache()
        if cache is None:
            return []
        # Each of the driver's names has one of the words. A record with another machine's flags is
        # skipped; ELF headers decide about the others.
        foreign = {flags for machine, flags in ldcache.FLAGS.items() if machine != search.machine}
        paths = cache.paths_of((b"nv", b"cuda"), foreign)
    except LdCacheError as error:
        search.findings.warn(f"{error.message}: only the usual library directories are searched")
        return []
    folders: dict[str, str] = {}
    for path in paths:
        if driver_names.is_of_driver(os.path.basename(path)):
            folders.setdefault(os.path.dirname(path), path)
    if len(folders) > CACHED_LIMIT:
        search.findings.warn(
            f"{search.tree.host_path('/etc/ld.so.cache')} has libraries of the driver in "
            f"{len(folders)} directories: {CACHED_LIMIT} are searched"
        )
    return list(folders.values())[:CACHED_LIMIT]


def infer_version(tree: Tree, dirs: Sequence[str]) -> str:
    """Return the version of libcuda or libnvidia-ml in the directories, "" if there is none.

    DriverNotFoundError if there are several versions, and no loaded module to choose by.
    """
    for name in ("libcuda", "libnvidia-ml"):
        versions = _versions(tree, dirs, (name,))
        if len(versions) > 1:
            raise DriverNotFoundError(
                f"{tree.host_root} has {name} of {' and '.join(sorted(versions))}, "
                "and no kernel module tells which is in use",
                hint="modprobe nvidia, or remove the other version",
            )
        if versions:
            return versions.pop()
    return ""


def _versions(tree: Tree, dirs: Sequence[str], stems: Sequence[str]) -> set[str]:
    heads = tuple(f"{name}.so." for name in stems)
    names = (n for directory in dirs for n in tree.names(directory) if n.startswith(heads))
    return {match[1] for match in map(DRIVER_SUFFIX.search, names) if match}


def find_libraries(search: Search, version: str, dirs: Sequence[str]) -> list[DriverFile]:
    """Return the libraries of a driver version, sorted by container path.

    DriverNotFoundError if there is no library of that version.
    """
    tree = search.tree
    files: dict[str, DriverFile] = {}
    firsts: dict[tuple[bool, str], str] = {}
    for candidate, reason in candidates(search, version, dirs):
        if candidate.real in files:
            continue
        library = make_library(search, candidate, reason)
        if library is None:
            continue
        # One name in two directories is one library: the linker takes the first one.
        folder, name = os.path.split(candidate.real)
        first = firsts.setdefault((os.path.basename(folder) in SUB_DIRS, name), library.host_path)
        if first == library.host_path:
            files[candidate.real] = library
        else:
            search.findings.leave_out(library.host_path, f"{first} is found before it")
    names = {os.path.basename(path) for path in files}
    if not any(name.endswith(f".so.{version}") for name in names):
        raise _not_found(tree, version, dirs, machine_directories(search.machine))
    for required, cost in COSTS.items():
        if f"{required}.so.{version}" not in names:
            search.findings.warn(f"{tree.host_root} has no {required}.so.{version}: {cost}")
    return sorted(files.values(), key=lambda file: file.container_path)


def candidates(
    search: Search, version: str, dirs: Sequence[str]
) -> Iterator[tuple[TreeFile, str]]:
    """Yield the files that are the driver's by name, with the reason; leave out the others."""
    suffix = f".so.{version}"
    by_version = f"suffix is the driver's version {version}"
    for directory in dirs:
        for folder in (directory, *_sub_directories(search.tree, directory)):
            for name in search.tree.names(folder):
                if not name.startswith("lib"):
                    continue
                if name.endswith(suffix):
                    reason = by_version
                elif "nv" in name or "cuda" in name:
                    reason = _reason(search, version, folder, name)
                else:
                    continue
                candidate = _file(search, version, folder, name) if reason else None
                if candidate is None:
                    continue
                # A link with another name may lead to a file with the driver's version.
                yield candidate, by_version if candidate.real.endswith(suffix) else reason


def _sub_directories(tree: Tree, directory: str) -> list[str]:
    present = [sub for sub in SUB_DIRS if sub in tree.name_set(directory)]
    return real_directories(tree, [join(directory, sub) for sub in present])


def _reason(search: Search, version: str, folder: str, name: str) -> str:
    """Return the reason to take a file without the driver's version, "" if there is none."""
    for pattern, reason in OTHER_VERSIONS.items():
        if pattern.fullmatch(name):
            return reason
    match = DRIVER_SUFFIX.search(name)
    if match and driver_names.is_of_driver(name):
        path = search.tree.host_path(join(folder, name))
        search.findings.leave_out(printable(path), f"of driver {match[1]}, not {version}")
    return ""


def _file(search: Search, version: str, folder: str, name: str) -> TreeFile | None:
    """Return the regular file of a name, None if it is missing or unusable."""
    tree, findings = search.tree, search.findings
    path = printable(tree.host_path(join(folder, name)))
    candidate = tree.file_in(folder, name)
    if candidate is None:
        is_link = tree.is_link(join(folder, name))
        what = "a link that leads to no file" if is_link else "no regular file"
        findings.warn(f"{path} is {what}: left out")
        findings.leave_out(path, f"{what} of the driver root" if is_link else what)
        return None
    if not driver_names.is_safe(search.host_path(candidate)):
        shown = printable(search.host_path(candidate))
        findings.warn(f"{shown} has a name that no CDI spec can hold: left out")
        findings.leave_out(shown, "a name that no CDI spec can hold")
        return None
    match = DRIVER_SUFFIX.search(candidate.real)
    if match and match[1] != version:
        search.leave_out(
            join(folder, name), f"leads to a file of driver {match[1]}, not {version}"
        )
        return None
    if stem(name) in driver_names.WITHOUT_GLVND:
        search.leave_out(join(folder, name), "it would take the place of the image's GLVND")
        return None
    return candidate


def make_library(
    search: Search, candidate: TreeFile, reason: str, capability: Capability | None = None
) -> DriverFile | None:
    """Return a library with its links, None if it is for another machine.

    Without an argument `capability`, the library's name decides.
    """
    host_path = search.host_path(candidate)
    headers = read_headers(search, candidate)
    if headers and headers.machine != search.machine:
        is_compat = headers.machine == COMPAT_MACHINES.get(search.machine)
        mismatch = f"for {headers.machine}, not {search.machine}"
        search.findings.leave_out(host_path, COMPAT_REASON if is_compat else mismatch)
        return None
    machine, soname, needed = headers or ("", "", ())
    path = search.roots.container_path(host_path)
    return DriverFile(
        host_path=host_path,
        container_path=path,
        reason=reason,
        kind="library",
        capability=capability or driver_names.class_of(os.path.basename(path)),
        machine=machine,
        soname=soname,
        links=tuple(_links(search.tree, candidate.real, path, soname)),
        needed=needed,
    )


def read_headers(search: Search, candidate: TreeFile) -> Headers | None:
    """Return the ELF headers of a library, None with a warning if they are unreadable."""
    try:
        return search.tree.headers(candidate.real)
    except (ElfError, UnsafePathError, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        search.findings.warn(
            f"{search.host_path(candidate)} has no readable SONAME, no links are made for it: "
            f"{reason}"
        )
        return None


def _links(tree: Tree, real: str, path: str, soname: str) -> Iterator[Link]:
    """Yield the links to make beside a library.

    nvidia-container-toolkit v1.20 makes only the SONAME links that the host has and leaves the
    others to ldconfig, which does not run here.
    """
    directory, name = os.path.split(path)
    name_stem = stem(name)
    # The file chooses its SONAME: one that is not a plain library name makes no link.
    usable = soname.startswith("lib") and "/" not in soname and driver_names.is_safe(soname)
    if usable and soname != name:
        yield Link(target=name, path=join(directory, soname))
    if name_stem == "libGLX_nvidia":
        yield Link(target=name, path=join(directory, "libGLX_indirect.so.0"))
    development = f"{name_stem}.so"
    if development in (name, soname):
        return
    # Programs dlopen these two without a version; only development packages have such links.
    always = name_stem in ("libcuda", "libnvidia-opticalflow")
    beside = os.path.dirname(real)
    is_there = development in tree.name_set(beside) and tree.is_link(join(beside, development))
    if always or is_there:
        yield Link(target=soname if usable else name, path=join(directory, development))


def _not_found(
    tree: Tree, version: str, dirs: Sequence[str], usual_dirs: Sequence[str]
) -> DriverNotFoundError:
    other_versions = _versions(tree, dirs, ("libcuda", "libnvidia-ml")) - {version}
    if other_versions:
        return DriverNotFoundError(
            f"kernel module is {version}, but {tree.host_root} has libraries of "
            f"{' and '.join(sorted(other_versions))}",
            hint="reboot, or reload the nvidia modules",
        )
    dangling = [d for d in usual_dirs if tree.directory(d) is None and tree.is_link(d)]
    return DriverNotFoundError(
        f"kernel module is {version}, but {tree.host_root} has no library of that version",
        hint=f"{tree.host_path(dangling[0])} is a link that leads to no directory"
        if dangling
        else "name the place: --driver-root or --library-search-path",
    )


def names_of(files: Sequence[DriverFile]) -> set[str]:
    """Return every name by which the linker of a container finds one of the libraries."""
    links = {os.path.basename(link.path) for file in files for link in file.links}
    return links.union(*((os.path.basename(f.container_path), f.soname) for f in files))


def host_path_of(files: Sequence[DriverFile], name: str) -> str | None:
    """Return the host path of a library of this machine by name, e.g. "libnvidia-ml.so"."""
    for file in files:
        is_native = file.kind == "library" and file.capability != "compat32"
        if is_native and f"{stem(os.path.basename(file.host_path))}.so" == name:
            return file.host_path
    return None


def find_one(search: Search, name: str) -> str | None:
    """Return the host path of a library by its file name, without a search for all others."""
    for directory in directories(search):
        file = search.tree.file(f"{directory}/{name}")
        if file is not None:
            return search.tree.host_path(file.real)
    return None
