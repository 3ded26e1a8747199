# SPDX-License-Identifier: Apache-2.0
"""Trees with the files of real drivers' packages, 390 to 615: what containers get of them.

The lists are facts (tests/hosts/real); a golden file has one line for each file of the packages:
mounted and for what, or why not. What nvidia-ctk mounts and nvct does not needs a reason here.
"""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from nvct.cdi.make.generate import generate
from nvct.cdi.read.validate import validate
from nvct.host import discover
from nvct.host.driver import names
from nvct.host.driver import names as driver_names
from nvct.host.model import Inventory
from nvct.linux import ldcache
from nvct_sim import tree
from nvct_sim.elf_writer import shared_object
from tests.hosts.base import plain
from tests.support import driver_list
from tests.support.driver_list import Entry
from tests.support.host_tree import HostTree

FOLDER = Path(__file__).parent / "real"
LISTS = sorted(path.stem for path in FOLDER.glob("*.txt"))
CACHED = "/usr/lib/x86_64-linux-gnu"
PRODUCER = "libnvidia-vulkan-producer.so.470.256.02"
WARNINGS = {
    # The list is of a root without that package, which Ubuntu's libnvidia-gl-470 depends on.
    "ubuntu-22.04-470": {
        f"{PRODUCER} needs libnvidia-egl-wayland.so.1, which is not in the driver root"
    },
}
# What nvidia-ctk 1.20 mounts and nvct does not, and why.
NOT_OURS = {
    r".*/libnvidia-egl-(?:gbm|xcb|xlib)\.so\.[\d.]+": "the linker takes the other one of its name",
}
# NVIDIA's own list of the driver's files (sandboxutils-filelist.json of 615.71.09): what each
# category of it is among the capabilities of containers.
CATEGORIES = {
    "cuda": "compute", "opencl": "compute", "video": "video", "nvml": "utility",
    "nvpd": "utility", "utils": "utility", "nvsandboxutils": "utility", "libfmdrv": "utility",
    "libnvimex": "utility", "ngx": "ngx", "nvapi": "graphics", "nvpresent": "graphics",
    "egl": "graphics", "egl_gbm": "graphics", "egl_wayland": "graphics", "egl_x11": "graphics",
    "egl_headless": "graphics", "gbm": "graphics", "glx": "graphics", "vulkan": "graphics",
    "optix": "graphics", "xdriver": "graphics",
}  # fmt: skip
# Not of the driver's packages: NSCQ, nvidia-settings, and Ubuntu's own of EGL's platforms.
OTHER_PACKAGES = r"/libnvidia-(?:nscq|gtk\d|egl-\w+)\."
# What NVIDIA's archive and its own packages have besides; EGL's platform libraries are another
# version in each branch.
SIMULATED_BESIDES = {
    "libnvidia-sandboxutils", "libnvidia-wayland-client", "libnvidia-egl-wayland",
    "libnvidia-egl-wayland2", "libnvidia-egl-gbm", "libnvidia-egl-xcb", "libnvidia-egl-xlib", "nvidia_drv",
}  # fmt: skip
# Where the tables follow libnvidia-container and not that list.
OTHERWISE = {
    "libnvidia-gtk2": "graphics",
    "libnvidia-gtk3": "graphics",
    "libnvidia-wayland-client": "graphics",
}


class Seen(NamedTuple):
    """A driver's tree, and what was found in it."""

    name: str
    version: str
    entries: list[Entry]
    host: HostTree
    inventory: Inventory

    def plain(self, path: str) -> str:
        return plain(self.host, path)


def content(entry: Entry) -> bytes:
    if entry.kind == "elf":
        machine, soname, *needed = entry.rest
        return shared_object(machine, soname=None if soname == "-" else soname, needed=needed)
    if entry.path.endswith(".icd"):
        return "".join(f"{name}\n" for name in entry.rest).encode()
    return json.dumps({"ICD": [{"library_path": name} for name in entry.rest]}).encode()


def build(base: Path, version: str, entries: list[Entry]) -> HostTree:
    host = HostTree(base, version=version, driver_path="host").module().gpu(0)
    for entry in entries:
        if entry.kind == "link":
            host.link(f"host{entry.path}", entry.rest[0])
    for entry in entries:
        if entry.kind != "link":
            mode = int(entry.rest[0], 8) if entry.kind == "file" else 0o644
            host.write(f"host{entry.path}", content(entry), mode=mode)
    names = [p.name for p in (host.driver / CACHED.strip("/")).glob("lib*.so.*")]
    cache = ldcache.merge(None, [(n, f"{CACHED}/{n}") for n in sorted(names)], machine="x86_64")
    host.write("host/etc/ld.so.cache", cache)
    return host


@pytest.fixture(scope="module", params=LISTS)
def seen(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    name: str = request.param
    version, entries = driver_list.read(FOLDER / f"{name}.txt")
    host = build(tmp_path_factory.mktemp(name), version, entries)
    options = host.options(compat32=True)
    return Seen(name, version, entries, host, discover.discover(host.roots, options))


def lines(seen: Seen) -> Iterator[str]:
    """Yield what becomes of each file of the packages, then the links."""
    taken = {seen.plain(file.host_path): file for file in seen.inventory.files}
    out = {seen.plain(entry.path): entry.reason for entry in seen.inventory.left_out}
    for entry in seen.entries:
        file = taken.get(entry.path)
        if file is not None:
            where = file.container_path if file.container_path != entry.path else ""
            yield f"{entry.path} {file.kind} {file.capability or 'all'} {where}".rstrip()
        elif entry.kind != "link":
            yield f"{entry.path} - {seen.plain(out.get(entry.path, 'nothing of containers'))}"
    for path, reason in sorted(out.items()):
        if path not in {entry.path for entry in seen.entries}:
            yield f"{path} - {seen.plain(reason)}"
    for link in sorted((x.path, x.target) for file in taken.values() for x in file.links):
        yield " -> ".join(link)


def test_each_file_of_the_packages_has_its_place(
    seen: Seen, golden: Callable[[str, str], None]
) -> None:
    golden(f"hosts/real/{seen.name}.txt", "".join(f"{line}\n" for line in lines(seen)))


def test_what_the_other_program_mounts_is_mounted(seen: Seen) -> None:
    ours = {seen.plain(file.host_path) for file in seen.inventory.files}
    theirs = {entry.path for entry in seen.entries if entry.is_mounted}

    unexplained = {
        path
        for path in theirs - ours
        if not any(re.fullmatch(pattern, path) for pattern in NOT_OURS)
    }

    assert unexplained == set()


def test_each_library_of_the_driver_is_for_a_capability(seen: Seen) -> None:
    unknown = [f.container_path for f in seen.inventory.files
               if f.kind == "library" and not f.capability]  # fmt: skip

    assert unknown == []


def test_nothing_is_missing(seen: Seen) -> None:
    expected = WARNINGS.get(seen.name, set())

    said = {warning.replace(str(seen.host.driver), "the driver root")
            for warning in seen.inventory.warnings}  # fmt: skip

    assert said == expected
    assert seen.inventory.cuda_version == names.cuda_version_of(seen.version)


def test_the_spec_is_valid(seen: Seen) -> None:
    spec = validate(generate(seen.inventory), source=seen.name)

    assert spec["kind"] == "nvidia.com/gpu"


@pytest.mark.parametrize(
    "name", ["ubuntu-24.04-580", "ubuntu-24.04-595", "ubuntu-26.04-615-server"]
)
def test_the_simulated_driver_has_the_real_ones_libraries(name: str, tmp_path: Path) -> None:
    version, listed = driver_list.read(FOLDER / f"{name}.txt")
    node = tree.create(
        "real", "h100", tmp_path, driver_version=version, native=False, nodes="plain",
        machine="x86_64",
    )  # fmt: skip
    entries = {entry.path: entry for entry in driver_list.entries(str(node.driver_root), set())}
    real = {entry.path: entry.rest for entry in listed if is_simulated(entry)}

    simulated = {path: entries[path].rest for path in real if path in entries}
    more = {
        path.rpartition("/")[2].partition(".so")[0]
        for path, entry in entries.items()
        if entry.kind == "elf" and path not in real and "i386" not in path
    }

    assert simulated == real
    assert more <= SIMULATED_BESIDES


def is_simulated(entry: Entry) -> bool:
    """Tell whether a library has to be in the simulation: not those of other packages."""
    return entry.kind == "elf" and not re.search(OTHER_PACKAGES, entry.path)


def test_classes_are_those_of_nvidias_own_list() -> None:
    """What a library is for by NVIDIA's word; a library may serve more than one capability."""
    path = FOLDER / "sandboxutils-filelist-615.71.09"
    rows = (line.split() for line in path.read_text().splitlines() if not line.startswith("#"))
    wrong = {}
    for name, *categories in rows:
        stem = driver_names.stem(name)
        if stem == "libOpenCL" or not stem.startswith("lib"):
            continue  # a loader, which images have; a module of Xorg
        allowed = {CATEGORIES[category] for category in categories} | {OTHERWISE.get(stem, "")}
        classes = {driver_names.class_of(name), *driver_names.ALSO.get(stem, ())}
        if not driver_names.class_of(name) or not classes & allowed:
            wrong[name] = (classes, allowed)

    assert wrong == {}
