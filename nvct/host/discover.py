# SPDX-License-Identifier: Apache-2.0
"""Discovery in mode nvml: the inventory of a machine whose GPUs are on the PCI bus.

Contract: a missing driver is an error. Any other fault loses the file or device concerned and is
a warning. A directory, the linker's cache and the headers of a library are read once.
"""

from __future__ import annotations

import posix
from collections.abc import Iterable, Sequence
from contextlib import ExitStack

from nvct.errors import DriverNotFoundError
from nvct.host import discovery_options, procfs
from nvct.host.discovery_options import DiscoveryOptions, check_absolute
from nvct.host.driver import (
    compat32,
    config_files,
    graphics,
    libraries,
    missing_dependencies,
    programs,
)
from nvct.host.driver.libraries import Search
from nvct.host.driver.names import cuda_version_of
from nvct.host.driver.tree import Tree
from nvct.host.gpu import gpus, nodes, pci
from nvct.host.model import DriverFile, Findings, Inventory, LeftOut
from nvct.host.roots import Roots, below

CUDA_VERSION = "which CUDA version the driver supports"


def discover(roots: Roots, options: DiscoveryOptions | None = None) -> Inventory:
    """Return the inventory of a machine in mode nvml: GPUs on the PCI bus.

    Raises:
        DriverNotFoundError: no driver is installed, or no library fits the loaded module.
        HostError: the driver root does not exist.
        UsageError: a search path is not absolute.
    """
    options = options or DiscoveryOptions()
    machine = options.machine or posix.uname().machine
    findings = Findings()
    version, files = find_files(roots, options, machine, findings)
    nvml = options.nvml_of(libraries.host_path_of(files, "libnvidia-ml.so"))
    coherent = discovery_options.COHERENT in options.flags
    unknown = [] if cuda_version_of(version) else [CUDA_VERSION]
    gpu_findings = Findings()
    search = gpus.GpuSearch(roots, options.stat_node, gpu_findings)
    found_gpus, report = gpus.find_gpus(search, nvml, coherent=coherent, unknown=unknown)
    control_nodes = nodes.control_nodes(roots, options.stat_node, gpu_findings)
    # Without the module, all of these warnings have one cause, which find_files has reported.
    is_loaded = bool(procfs.driver_version(roots) or found_gpus or report)
    findings.add(gpu_findings if is_loaded else Findings(left_out=gpu_findings.left_out))
    cuda_version = (report.cuda_version if report else "") or cuda_version_of(version)
    if not cuda_version:
        findings.note(f"the CUDA version of driver {version} is not known")
    return Inventory(
        driver_version=version,
        cuda_version=cuda_version,
        gpus=found_gpus,
        control_nodes=control_nodes,
        files=tuple(files),
        left_out=left_out(findings, files),
        warnings=tuple(findings.warnings),
        notes=tuple(findings.notes),
    )


def left_out(findings: Findings, files: Iterable[DriverFile]) -> tuple[LeftOut, ...]:
    """Return what containers do not get, by path, without the files that they get after all."""
    mounted = {file.host_path for file in files}
    return tuple(entry for path, entry in sorted(findings.left_out.items()) if path not in mounted)


def find_files(
    roots: Roots,
    options: DiscoveryOptions,
    machine: str,
    findings: Findings,
    *,
    graphical: bool = True,
) -> tuple[str, list[DriverFile]]:
    """Return the driver's version and its files, sorted by container path.

    Raises:
        DriverNotFoundError: no driver is installed, or no library fits the loaded module.
        HostError: the driver root does not exist.
        UsageError: a search path is not absolute.
    """
    check_absolute((*options.search_paths, *options.config_search_paths))
    with ExitStack() as stack:
        tree = stack.enter_context(Tree(roots.driver_root))
        search = libraries.Search(tree, roots, machine, findings)
        usual_dirs = libraries.directories(search)
        library_search, dirs = _library_search(search, usual_dirs, options.search_paths, stack)
        version = _version(library_search, dirs)
        files = libraries.find_libraries(library_search, version, dirs)
        files += compat32.find_compat32(search, version, files, included=options.compat32)
        files += programs.find_binaries(tree, roots, findings)
        files += programs.find_firmware(tree, roots, version, findings)
        if graphical:
            dirs = dirs if library_search.tree is tree else usual_dirs
            files = graphics.add_links(search, dirs, files)
            files += graphics.find_graphics(search, version, dirs)
            if discovery_options.EXPLICIT_LIBRARIES in options.flags:
                files += graphics.find_loaders(search, dirs, files)
            files += config_files.find_config_files(
                search,
                options.config_search_paths,
                data_dirs=options.data_dirs or config_files.DATA_DIRS,
            )
            config_files.check(search, files)
        missing_dependencies.check(search, files, list(dict.fromkeys([*dirs, *usual_dirs])))
    if discovery_options.NO_IPC not in options.flags:
        files += programs.find_sockets(roots, findings)
    return version, _each_once(files, findings)


def _library_search(
    search: Search, usual_dirs: list[str], search_paths: Sequence[str], stack: ExitStack
) -> tuple[Search, list[str]]:
    """Return the tree and the directories to search: the usual ones, or the search paths."""
    root = search.roots.driver_root
    if not search_paths:
        return search, usual_dirs
    if all(_is_in(root, path) for path in search_paths):
        paths = [below(root, path) for path in search_paths]
    else:
        paths = list(search_paths)
        search = search._replace(tree=stack.enter_context(Tree("/")))
    return search, libraries.real_directories(search.tree, paths)


def _is_in(root: str, path: str) -> bool:
    return root in ("/", path) or path.startswith(root + "/")


def _version(search: Search, dirs: Sequence[str]) -> str:
    """Return the version of the loaded module; if none is loaded, that of the libraries."""
    version = procfs.driver_version(search.roots)
    if version:
        return version
    version = libraries.infer_version(search.tree, dirs)
    if not version:
        raise _no_driver(search)
    search.findings.warn(
        f"{procfs.NOT_LOADED}: modprobe nvidia; {version} is the libraries' version"
    )
    return version


def _no_driver(search: Search) -> DriverNotFoundError:
    missing = (
        f"no {search.roots.proc}/driver/nvidia/version and no libcuda.so in "
        f"{search.tree.host_root}"
    )
    bound = [gpu for gpu in pci.bound_elsewhere(search.roots) if gpu.driver in pci.NATIVE]
    if bound:
        return DriverNotFoundError(
            f"the GPU at {bound[0].bus_id} is bound to {bound[0].driver}: {missing}",
            hint=f"install NVIDIA's driver, and keep {bound[0].driver} from loading",
        )
    return DriverNotFoundError(
        f"no NVIDIA driver: {missing}",
        hint="install it, or name its place: --driver-root, or root in config.toml",
    )


def _each_once(files: Iterable[DriverFile], findings: Findings) -> list[DriverFile]:
    """Return files sorted by container path; of several with one container path, the first."""
    by_path: dict[str, DriverFile] = {}
    for file in files:
        first = by_path.setdefault(file.container_path, file)
        if first.host_path != file.host_path:
            findings.leave_out(file.host_path, f"{first.host_path} is in its place")
    return sorted(by_path.values(), key=lambda file: file.container_path)
