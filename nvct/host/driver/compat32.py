# SPDX-License-Identifier: Apache-2.0
"""32-bit libraries of the driver: the rules of `libraries`, other directories, another machine.

Contract: a container gets them only if it requests compat32 by name; "all" does not include them,
as in CDI specs of nvidia-container-toolkit. A file must have the ELF header of the 32-bit machine.
"""

from __future__ import annotations

from dataclasses import replace

from nvct.host.driver import graphics, libraries
from nvct.host.driver.libraries import COMPAT_MACHINES, COMPAT_REASON
from nvct.host.model import Findings
from nvct.host.roots import join

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from nvct.host.driver.libraries import Search
    from nvct.host.model import DriverFile

# Debian's triplets; lib32 of Arch and of Debian's bi-arch packages; /usr/lib of Fedora, openSUSE.
TRIPLETS = {"i386": "i386-linux-gnu", "arm": "arm-linux-gnueabihf"}
OWN_DIRS = (
    "/usr/lib/{}", "/usr/lib/{}/nvidia/current", "/lib/{}", "/usr/lib32", "/lib32",
    "/run/opengl-driver-32/lib",
)  # fmt: skip
SHARED_DIRS = ("/usr/lib", "/lib")


def find(
    search: Search, version: str, taken: Iterable[DriverFile], *, wanted: bool
) -> list[DriverFile]:
    """Return the 32-bit libraries, sorted by container path; none unless `wanted`.

    `taken` are the libraries of this machine. Unless `wanted`, the 32-bit libraries are left out
    and their files are not read.
    """
    machine = COMPAT_MACHINES.get(search.machine)
    if machine is None:
        return []
    tree = search.tree
    own = libraries.real_directories(tree, [d.format(TRIPLETS[machine]) for d in OWN_DIRS])
    seen = {file.host_path for file in taken}
    if not wanted:
        for found, _ in libraries.candidates(search, version, own):
            if tree.host_path(found.real) not in seen:
                search.findings.leave_out(tree.host_path(found.real), COMPAT_REASON)
        for path in (join(directory, name) for directory in own for name in tree.names(directory)):
            if graphics.PLATFORM.fullmatch(path.rpartition("/")[2]):
                search.findings.leave_out(tree.host_path(path), COMPAT_REASON)
        return []
    # `libraries` has already reported the 64-bit files of the shared directories.
    other = search._replace(machine=machine, findings=Findings())
    dirs = libraries.real_directories(tree, [*own, *SHARED_DIRS, *_cached_dirs(other)])
    files: dict[str, DriverFile] = {}
    for found, reason in libraries.candidates(search, version, dirs):
        if found.real in files or tree.host_path(found.real) in seen:
            continue
        headers = libraries.read_headers(other, found)
        file = libraries.make(other, found, reason, "compat32") if headers else None
        if file is not None:
            files[found.real] = replace(file, reason=f"32-bit; {reason}")
    for file in graphics.platform_libraries(other, own):
        files[file.host_path] = replace(
            file, reason=f"32-bit; {file.reason}", capability="compat32"
        )
    return sorted(files.values(), key=lambda file: file.container_path)


def _cached_dirs(search: Search) -> list[str]:
    return [path.rpartition("/")[0] or "/" for path in libraries.cached_paths(search)]
