# SPDX-License-Identifier: Apache-2.0
"""Discovery in mode wsl: /dev/dxg and a folder of the Windows driver store.

Contract: the folder is chosen by its files (`_store`). nvidia-container-toolkit v1.20 asks dxcore,
a library of Windows whose interface is not documented, and takes the first folder that has
libcuda.so.1.1.
"""

from __future__ import annotations

import filecmp
import os
import posix
import re
from collections.abc import Iterator
from dataclasses import replace

from nvct.errors import HostError, NvmlError
from nvct.host.discovery_options import DEFAULTS, DiscoveryOptions
from nvct.host.driver import names as driver_names
from nvct.host.driver.libraries import Search
from nvct.host.driver.tree import Tree, TreeFile
from nvct.host.gpu import nodes
from nvct.host.model import (
    Capability,
    DriverFile,
    FileKind,
    Findings,
    Inventory,
    Link,
    NamedDevice,
)
from nvct.host.nvml.model import NvmlReport
from nvct.host.roots import DXCORE, WSL_LIBRARIES, Roots

STORES = "/usr/lib/wsl/drivers"
LIBCUDA = "libcuda.so.1.1"
SMI = "nvidia-smi"
# WSL links one of these two files of the active driver into its library directory.
IN_USE = (LIBCUDA, "libcuda_loader.so")
LIBCUDA_NAMES = (LIBCUDA, "libcuda.so.1", "libcuda.so")
# As nvidia-container-toolkit v1.20, pkg/nvcdi/driver-wsl.go; ADDITIONAL matches further files.
EXPECTED: dict[str, str] = {
    LIBCUDA: "CUDA does not work",
    "libcuda_loader.so": "CUDA may not be found",
    "libnvidia-ptxjitcompiler.so.1": "PTX is not compiled",
    "libnvidia-ml.so.1": "nvidia-smi does not work",
    SMI: "there is no nvidia-smi",
}
ADDITIONAL = re.compile(r".+\.so(\..+)?|.+\.bin|.+\.dll")
LIBRARY = re.compile(r"lib.+\.so(\..+)?")
CLASSES: dict[str, Capability] = {
    "libnvdxgdmal": "compute",
    "nvcubins.bin": "compute",
    "nvoptix.bin": "graphics",
    "libnvwgf2umx": "graphics",
    SMI: "utility",
}


def discover(roots: Roots, options: DiscoveryOptions = DEFAULTS) -> Inventory:
    """Return the inventory in WSL: one device "all", which is all GPUs.

    The device has a UUID if NVML reports exactly one GPU. HostError if WSL has no GPU, or no
    folder of NVIDIA's driver.
    """
    findings = Findings()
    dev = nodes.NodeSearch(roots, options.stat_node, findings)
    node = nodes.make_node(dev, "dxg", "Windows's GPUs are used through it")
    if node is None:
        raise HostError(
            f"WSL shows no GPU: no {roots.dev}/dxg",
            hint="install the GPU's driver in Windows, and run wsl --update there",
        )
    with Tree(roots.driver_root) as tree:
        search = Search(tree, roots, options.machine or posix.uname().machine, findings)
        files = [*_dxcore(search), *_store_files(search, _store(search))]
        library = tree.file(f"{WSL_LIBRARIES}/libnvidia-ml.so.1")
        report = _report(options, tree.host_path(library.real) if library else "", findings)
    uuids = [gpu.uuid for gpu in report.gpus] if report else []
    device = NamedDevice(name="all", uuid=uuids[0] if len(uuids) == 1 else "", nodes=(node,))
    return findings.onto(
        Inventory(
            driver_version=report.driver_version if report else "",
            mode="wsl",
            cuda_version=report.cuda_version if report else "",
            devices=(device,),
            files=tuple(sorted(files, key=lambda file: file.container_path)),
        )
    )


def _report(options: DiscoveryOptions, library: str, findings: Findings) -> NvmlReport | None:
    """Return NVML's report: in WSL, the driver's version is not in procfs."""
    nvml = options.nvml_of(library)
    if nvml is None:
        return None
    try:
        return nvml.report()
    except NvmlError as error:
        findings.note(f"{error.message}: the versions of driver and CUDA are not known")
        return None


def _dxcore(search: Search) -> Iterator[DriverFile]:
    path = f"{WSL_LIBRARIES}/{DXCORE}"
    library = search.tree.file(path)
    if library is None:
        search.findings.warn(
            f"{search.tree.host_path(path)} is missing: no GPU can be used; run wsl --update"
        )
        return
    for name in search.tree.names(WSL_LIBRARIES):
        if name != DXCORE:
            reason = "Windows's own, or a copy of a file in the driver's folder"
            search.leave_out(f"{WSL_LIBRARIES}/{name}", reason)
    if file := _file(search, library, path, "every use of the GPU goes through it"):
        yield file


def _store(search: Search) -> str:
    tree, findings = search.tree, search.findings
    folders = [f"{STORES}/{name}" for name in tree.names(STORES)]
    stores = {path: file for path in folders if (file := tree.file(f"{path}/{LIBCUDA}"))}
    if not stores:
        raise HostError(
            f"no folder in {tree.host_path(STORES)} has {LIBCUDA}",
            hint="install NVIDIA's driver in Windows; it brings what WSL needs",
        )
    if len(stores) == 1:
        return next(iter(stores))
    in_use = [path for path in stores if _is_in_use(tree, path)]
    candidates = in_use or list(stores)
    chosen = max(candidates, key=lambda path: (_mtime(tree, stores[path]), path))
    reason = f"{WSL_LIBRARIES} has its libcuda" if in_use else "its libcuda is the newest"
    findings.note(f"{len(stores)} folders of NVIDIA drivers: {chosen} is taken, {reason}")
    for path in stores:
        if path != chosen:
            search.leave_out(path, f"another driver's folder: {chosen} is used")
    return chosen


def _is_in_use(tree: Tree, store: str) -> bool:
    linked = next(filter(None, (tree.file(f"{WSL_LIBRARIES}/{n}") for n in LIBCUDA_NAMES)), None)
    if linked is None:
        return False
    linked_path = tree.host_path(linked.real)
    for stored in filter(None, (tree.file(f"{store}/{name}") for name in IN_USE)):
        try:
            if filecmp.cmp(linked_path, tree.host_path(stored.real), shallow=False):
                return True
        except OSError:
            continue
    return False


def _mtime(tree: Tree, file: TreeFile) -> int:
    try:
        return os.stat(tree.host_path(file.real)).st_mtime_ns
    except OSError:
        return 0


def _store_files(search: Search, store: str) -> Iterator[DriverFile]:
    files: dict[str, DriverFile] = {}
    for name in search.tree.names(store):
        path = f"{store}/{name}"
        if name not in EXPECTED and not ADDITIONAL.fullmatch(name):
            continue
        source = search.tree.file(path)
        if source is None or not driver_names.is_safe(path):
            reason = "not a regular file" if source is None else "a spec cannot contain its name"
            search.leave_out(path, reason)
            continue
        if file := _file(search, source, path, "of Windows's NVIDIA driver"):
            files[name] = file
    for name, cost in EXPECTED.items():
        if name not in files:
            search.findings.warn(f"{search.tree.host_path(store)} has no {name}: {cost}")
    links = _links(files, store)
    yield from (replace(file, links=tuple(links.get(name, ()))) for name, file in files.items())


def _file(search: Search, source: TreeFile, path: str, reason: str) -> DriverFile | None:
    """Return a file as a mount, None for a library of another machine type."""
    name = os.path.basename(path)
    kind: FileKind = "binary" if name == SMI else "module"
    if LIBRARY.fullmatch(name):
        kind = "library"
    machine = soname = ""
    if kind == "library":
        machine, soname = search.tree.machine_and_soname(source.real, search.findings)
        if machine not in ("", search.machine):
            search.leave_out(source.real, f"it is for {machine}")
            return None
    stem = driver_names.stem(name).removesuffix("_loader")
    return DriverFile(
        host_path=search.host_path(source),
        container_path=path,
        reason=reason,
        kind=kind,
        capability=CLASSES.get(stem) or driver_names.class_of(f"{stem}.so"),
        machine=machine,
        soname=soname,
    )


def _links(files: dict[str, DriverFile], store: str) -> dict[str, list[Link]]:
    """Return the links to make, by the name of the file that they lead to.

    If two libraries have the same SONAME, as libcuda and its loader do, the link leads to the
    library that ldconfig chooses.
    """
    links: dict[str, list[Link]] = {}
    by_soname: dict[str, str] = {}
    for name in sorted(files, key=_linker_order):
        if soname := files[name].soname:
            by_soname[soname] = name
    for soname, name in by_soname.items():
        if soname not in files and "/" not in soname:
            links.setdefault(name, []).append(Link(target=name, path=f"{store}/{soname}"))
    if "libcuda.so.1" in by_soname and "libcuda.so" not in files:
        # Some programs load it without a version.
        link = Link(target="libcuda.so.1", path=f"{store}/libcuda.so")
        links.setdefault(by_soname["libcuda.so.1"], []).append(link)
    if SMI in files:
        # A container's PATH does not have the folder.
        links[SMI] = [Link(target=f"{store}/{SMI}", path=f"/usr/bin/{SMI}")]
    return links


def _linker_order(name: str) -> list[tuple[int, int]]:
    """Return the sort key of glibc's _dl_cache_libcmp: digits count as numbers, after letters."""
    parts = re.findall(r"[0-9]+|[^0-9]", name)
    return [(1, int(p)) if p.isascii() and p.isdigit() else (0, ord(p)) for p in parts]
