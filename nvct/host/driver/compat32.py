# SPDX-License-Identifier: Apache-2.0
"""32-bit libraries of the driver: the rules of `libraries`, other directories, another machine.

Contract: a container gets them only if it requests compat32 by name; "all" does not include them,
as in CDI specs of nvidia-container-toolkit. A file must have the ELF header of the 32-bit machine.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from nvct.host.driver import graphics, libraries
from nvct.host.driver.libraries import COMPAT_MACHINES, COMPAT_REASON, Search
from nvct.host.model import DriverFile, Findings
from nvct.host.roots import join

# Debian's triplets; lib32 of Arch and of Debian's bi-arch packages; /usr/lib of Fedora, openSUSE.
TRIPLETS = {"i386": "i386-linux-gnu", "arm": "arm-linux-gnueabihf"}
OWN_DIRS = (
    "/usr/lib/{}", "/usr/lib/{}/nvidia/current", "/lib/{}", "/usr/lib32", "/lib32",
    "/run/opengl-driver-32/lib",
)  # fmt: skip
SHARED_DIRS = ("/usr/lib", "/lib")


def find_compat32(
    search: Search, version: str, native_files: Iterable[DriverFile], *, included: bool
) -> list[DriverFile]:
    """Return the 32-bit libraries, sorted by container path; none unless `included`.

    `native_files` are the libraries of this machine. Unless `included`, the 32-bit libraries are
    left out and their files are not read.
    """
    machine = COMPAT_MACHINES.get(search.machine)
    if machine is None:
        return []
    tree = search.tree
    own_dirs = libraries.real_directories(tree, [d.format(TRIPLETS[machine]) for d in OWN_DIRS])
    native_paths = {file.host_path for file in native_files}
    if not included:
        for candidate, _ in libraries.candidates(search, version, own_dirs):
            if tree.host_path(candidate.real) not in native_paths:
                search.findings.leave_out(tree.host_path(candidate.real), COMPAT_REASON)
        for path in (
            join(directory, name) for directory in own_dirs for name in tree.names(directory)
        ):
            if graphics.PLATFORM.fullmatch(path.rpartition("/")[2]):
                search.findings.leave_out(tree.host_path(path), COMPAT_REASON)
        return []
    # `libraries` has already reported the 64-bit files of the shared directories.
    search32 = search._replace(machine=machine, findings=Findings())
    dirs = libraries.real_directories(tree, [*own_dirs, *SHARED_DIRS, *_cached_dirs(search32)])
    files: dict[str, DriverFile] = {}
    for candidate, reason in libraries.candidates(search, version, dirs):
        if candidate.real in files or tree.host_path(candidate.real) in native_paths:
            continue
        headers = libraries.read_headers(search32, candidate)
        file = libraries.make_library(search32, candidate, reason, "compat32") if headers else None
        if file is not None:
            files[candidate.real] = replace(file, reason=f"32-bit; {reason}")
    for file in graphics.platform_libraries(search32, own_dirs):
        files[file.host_path] = replace(
            file, reason=f"32-bit; {file.reason}", capability="compat32"
        )
    return sorted(files.values(), key=lambda file: file.container_path)


def _cached_dirs(search: Search) -> list[str]:
    return [path.rpartition("/")[0] or "/" for path in libraries.cached_paths(search)]
