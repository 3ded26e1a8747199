# SPDX-License-Identifier: Apache-2.0
"""Discovery in mode nvml: the inventory of a machine whose GPUs are on the PCI bus.

Contract: a missing driver is an error. Any other fault is a warning, and the file or device that
has it is left out. A directory, the linker's cache and the headers of a library are read once.
32-bit libraries follow the rules of `libraries`, in other directories and for another machine;
only a container that requests compat32 by name gets them, as with nvidia-container-toolkit.
"""

from __future__ import annotations

import os
import posix
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace

from nvct.errors import DriverNotFoundError, LdCacheError, printable
from nvct.host import discovery_options, procfs
from nvct.host.discovery_options import DEFAULTS, DiscoveryOptions, check_absolute
from nvct.host.driver import config_files, graphics, libraries, programs
from nvct.host.driver import names as driver_names
from nvct.host.driver.libraries import COMPAT_MACHINES, COMPAT_REASON, Search
from nvct.host.driver.names import cuda_version_of
from nvct.host.driver.tree import Tree
from nvct.host.gpu import gpus, nodes, pci
from nvct.host.model import DriverFile, Findings, Inventory
from nvct.host.roots import Roots, below, join

CUDA_VERSION = "which CUDA version the driver supports"


def discover(roots: Roots, options: DiscoveryOptions = DEFAULTS) -> Inventory:
    """Return the inventory of a machine in mode nvml: GPUs on the PCI bus.

    Raises:
        DriverNotFoundError: no driver is installed, or no library fits the loaded module.
        HostError: the driver root does not exist.
        UsageError: a search path is not absolute.
    """
    machine = options.machine or posix.uname().machine
    findings = Findings()
    version, files = find_files(roots, options, machine, findings)
    nvml = options.nvml_of(libraries.host_path_of(files, "libnvidia-ml.so"))
    coherent = discovery_options.COHERENT in options.flags
    unknown = [] if cuda_version_of(version) else [CUDA_VERSION]
    gpu_findings = Findings()
    search = nodes.NodeSearch(roots, options.stat_node, gpu_findings)
    found_gpus, report = gpus.find_gpus(search, nvml, coherent=coherent, unknown=unknown)
    control_nodes = nodes.control_nodes(search)
    # If the module is not loaded, find_files has said so, and these warnings only repeat it.
    is_loaded = bool(procfs.driver_version(roots) or found_gpus or report)
    findings.add(gpu_findings if is_loaded else Findings(left_out=gpu_findings.left_out))
    cuda_version = (report.cuda_version if report else "") or cuda_version_of(version)
    if not cuda_version:
        findings.note(f"the CUDA version of driver {version} is not known")
    sort_left_out(findings, files)
    return findings.onto(
        Inventory(
            driver_version=version,
            cuda_version=cuda_version,
            gpus=found_gpus,
            control_nodes=control_nodes,
            files=tuple(files),
        )
    )


def sort_left_out(findings: Findings, files: Iterable[DriverFile]) -> None:
    """Sort the left-out paths, and drop the paths of files that containers get after all."""
    mounted = {file.host_path for file in files}
    entries = sorted(findings.left_out.items())
    findings.left_out = {path: entry for path, entry in entries if path not in mounted}


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
        files += find_compat32(search, version, files, included=options.compat32)
        files += programs.find_binaries(search)
        files += programs.find_firmware(search, version)
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
        check_dependencies(search, files, list(dict.fromkeys([*dirs, *usual_dirs])))
    if discovery_options.NO_IPC not in options.flags:
        files += programs.find_sockets(roots, findings)
    return version, _each_once(files, findings)


def _library_search(
    search: Search, usual_dirs: list[str], search_paths: Sequence[str], stack: ExitStack
) -> tuple[Search, list[str]]:
    """Return the search and its directories: the usual ones, or the options' search paths."""
    root = search.roots.driver_root
    if not search_paths:
        return search, usual_dirs
    if all(root in ("/", path) or path.startswith(root + "/") for path in search_paths):
        paths = [below(root, path) for path in search_paths]
    else:
        paths = list(search_paths)
        search = search._replace(tree=stack.enter_context(Tree("/")))
    return search, libraries.real_directories(search.tree, paths)


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
    """Return files sorted by container path; of files with the same one, only the first."""
    by_path: dict[str, DriverFile] = {}
    for file in files:
        first = by_path.setdefault(file.container_path, file)
        if first.host_path != file.host_path:
            findings.leave_out(file.host_path, f"containers get {first.host_path} in its place")
    return sorted(by_path.values(), key=lambda file: file.container_path)


# Debian's triplets; lib32: Arch and Debian's bi-arch packages; /usr/lib: Fedora and openSUSE.
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
            if search.host_path(candidate) not in native_paths:
                search.leave_out(candidate.real, COMPAT_REASON)
        for directory in own_dirs:
            for name in filter(graphics.PLATFORM.fullmatch, tree.names(directory)):
                search.leave_out(join(directory, name), COMPAT_REASON)
        return []
    # `libraries` has already reported the 64-bit files of the shared directories.
    search32 = search._replace(machine=machine, findings=Findings())
    cached = [os.path.dirname(path) or "/" for path in libraries.cached_paths(search32)]
    dirs = libraries.real_directories(tree, [*own_dirs, *SHARED_DIRS, *cached])
    files: dict[str, DriverFile] = {}
    for candidate, reason in libraries.candidates(search, version, dirs):
        if candidate.real in files or search.host_path(candidate) in native_paths:
            continue
        if libraries.read_headers(search32, candidate):
            file = libraries.make_library(search32, candidate, f"32-bit; {reason}", "compat32")
            files |= {candidate.real: file} if file else {}
    for file in graphics.platform_libraries(search32, own_dirs):
        reason = f"32-bit; {file.reason}"
        files[file.host_path] = replace(file, reason=reason, capability="compat32")
    return sorted(files.values(), key=lambda file: file.container_path)


# Names, up to ".so", of libraries that come with an image; an image without them does not use the
# driver's libraries that need them.
IMAGE = frozenset({
    # glibc, and the compiler's run time
    "libc", "libm", "libdl", "libpthread", "librt", "libutil", "libresolv", "libanl", "libnsl",
    "libmvec", "libgcc_s", "libstdc++", "libatomic",
    # X11, DRM, Wayland and GLVND: for programs that draw
    "libX11", "libX11-xcb", "libXext", "libXrandr", "libXv", "libXrender", "libXi", "libXfixes",
    "libdrm", "libgbm", "libwayland-client", "libwayland-server", "libwayland-egl",
    "libwayland-cursor", "libxkbcommon", "libGL", "libGLX", "libEGL", "libGLESv1_CM", "libGLESv2",
    "libGLdispatch", "libOpenGL", "libOpenCL", "libvdpau", "libvulkan", "libpixman-1",
    # OpenSSL, of which libnvidia-pkcs11 exists in two builds
    "libcrypto", "libssl",
    # GTK and its dependencies: libnvidia-gtk2 and libnvidia-gtk3 are nvidia-settings'
    "libz", "libjansson", "libfontconfig", "libfreetype",
})  # fmt: skip
IMAGE_PREFIXES = (
    "ld-linux", "ld64", "libxcb", "libgtk-", "libgdk", "libgio-", "libglib-", "libgobject-",
    "libgmodule-", "libgthread-", "libpango", "libcairo", "libatk", "libharfbuzz",
)  # fmt: skip
SHOWN = 3


def check_dependencies(search: Search, files: Sequence[DriverFile], dirs: Sequence[str]) -> None:
    """Warn of each library that has a missing dependency.

    A dependency is missing if containers do not get it, the host does not have it, and it does not
    come with images. One with a name of the driver is missing if containers do not get it.
    """
    for compat in (False, True):
        group = [
            file
            for file in files
            if file.kind == "library" and (file.capability == "compat32") is compat
        ]
        available = libraries.names_of(group)
        for file in group:
            missing = [
                name
                for name in dict.fromkeys(file.needed)
                if name not in available
                and driver_names.stem(name) not in IMAGE
                and not name.startswith(IMAGE_PREFIXES)
                and (driver_names.is_of_driver(name) or not _is_on_host(search, dirs, name))
            ]
            if missing:
                search.findings.warn(_sentence(search, file, missing, dirs))


def _is_on_host(search: Search, dirs: Sequence[str], name: str) -> bool:
    if any(name in search.tree.name_set(directory) for directory in dirs):
        return True
    try:
        cache = search.tree.linker_cache()
        return bool(cache and cache.find(name))
    except LdCacheError:  # the cache is damaged, which was reported, or the name contains a NUL
        return False


def _sentence(
    search: Search, file: DriverFile, missing: Sequence[str], dirs: Sequence[str]
) -> str:
    names = " and ".join(printable(name) for name in missing[:SHOWN])
    if len(missing) > SHOWN:
        names += f" and {len(missing) - SHOWN} more"
    verb = "is" if len(missing) == 1 else "are"
    location = f"not in {search.tree.host_root}"
    if all(_is_on_host(search, dirs, name) for name in missing):
        location = f"in {search.tree.host_root}, but containers do not get it"
    return f"{os.path.basename(file.host_path)} needs {names}, which {verb} {location}"
