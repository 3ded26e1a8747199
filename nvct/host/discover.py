# SPDX-License-Identifier: Apache-2.0
"""The inventory of a machine, from procfs and sysfs, from NVML where they do not tell.

Contract: NVML is loaded only where a GPU has MIG instances (their UUIDs are NVML's secret) or
procfs is incomplete. NVML failing costs the MIG devices, with a warning, not the rest.
"""

from __future__ import annotations

import posix
from typing import NamedTuple

from nvct.errors import DriverNotFoundError, NvmlError, UsageError
from nvct.host import (
    binaries,
    config_files,
    firmware,
    graphics,
    ipc,
    libraries,
    mig,
    nodes,
    procfs,
)
from nvct.host.model import Findings, Gpu, Inventory, MigDevice
from nvct.host.nvml import LibraryNvml, NvmlGpu
from nvct.host.roots import below
from nvct.host.tree import Tree
from nvct.host.wanted import Wanted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from nvct.host.model import DriverFile
    from nvct.host.nodes import StatNode
    from nvct.host.nvml import Nvml, NvmlMig, NvmlReport
    from nvct.host.roots import Roots

# The CUDA version that a driver branch supports: NVIDIA's "CUDA Toolkit, driver and architecture
# matrix". A branch that is not listed leaves the version unknown, unless NVML is asked anyway.
CUDA_OF_BRANCH = {
    410: "10.0", 418: "10.1", 440: "10.2", 450: "11.0", 455: "11.1", 460: "11.2", 465: "11.3",
    470: "11.4", 495: "11.5", 510: "11.6", 515: "11.7", 520: "11.8", 525: "12.0", 530: "12.1",
    535: "12.2", 545: "12.3", 550: "12.4", 555: "12.5", 560: "12.6", 565: "12.7", 570: "12.8",
    575: "12.9", 580: "13.0", 590: "13.1",
}  # fmt: skip


class _Host(NamedTuple):
    roots: Roots
    stat_node: StatNode
    findings: Findings


def discover(roots: Roots, wanted: Wanted | None = None) -> Inventory:
    """Return what a machine with GPUs on the PCI bus has: mode nvml.

    Raises:
        DriverNotFoundError: no driver, or no library that fits the loaded one.
        HostError: the driver root is not there.
        UsageError: a search path is not absolute.
    """
    wanted = wanted or Wanted()
    machine = wanted.machine or posix.uname().machine
    findings = Findings()
    version, files = find_files(roots, wanted, machine, findings)
    nvml = wanted.nvml
    if nvml == "auto":
        library = libraries.host_path_of(files, "libnvidia-ml.so")
        nvml = LibraryNvml(library) if library else None
    gpus, report = _gpus(_Host(roots, wanted.stat_node, findings), nvml)
    cuda_version = report.cuda_version if report else ""
    return Inventory(
        driver_version=version,
        cuda_version=cuda_version or CUDA_OF_BRANCH.get(int(version.partition(".")[0]), ""),
        gpus=gpus,
        control_nodes=nodes.control_nodes(roots, wanted.stat_node, findings),
        files=tuple(files),
        left_out=tuple(findings.left_out.values()),
        warnings=tuple(findings.warnings),
        notes=tuple(findings.notes),
    )


def find_files(
    roots: Roots, wanted: Wanted, machine: str, findings: Findings, *, graphical: bool = True
) -> tuple[str, list[DriverFile]]:
    """Return the driver's version and its files, sorted by container path.

    Raises:
        DriverNotFoundError: no driver, or no library that fits the loaded one.
        HostError: the driver root is not there.
        UsageError: a search path is not absolute.
    """
    for path in (*wanted.search_paths, *wanted.config_search_paths):
        if not path.startswith("/"):
            raise UsageError(f"the search path {path!r} is not absolute", hint="start it with a /")
    with Tree(roots.driver_root) as tree:
        search = libraries.Search(tree, roots, machine, findings)
        version, files = _driver_files(search, wanted.search_paths)
        files += binaries.find(tree, roots, findings)
        files += firmware.find(tree, roots, version)
        if graphical:
            files += graphics.find(search, version, libraries.directories(search))
            files += config_files.find(search, wanted.config_search_paths)
    files += ipc.find(roots, findings)
    return version, sorted(files, key=lambda file: file.container_path)


def _driver_files(
    search: libraries.Search, search_paths: Sequence[str]
) -> tuple[str, list[DriverFile]]:
    root = search.roots.driver_root
    if not search_paths:
        return _libraries(search, libraries.directories(search))
    if all(_is_in(root, path) for path in search_paths):
        return _libraries(search, [below(root, path) for path in search_paths])
    with Tree("/") as whole:
        return _libraries(search._replace(tree=whole), search_paths)


def _libraries(search: libraries.Search, dirs: Sequence[str]) -> tuple[str, list[DriverFile]]:
    version = procfs.driver_version(search.roots)
    if not version:
        version = libraries.infer_version(search.tree, dirs)
        if not version:
            raise DriverNotFoundError(
                f"no NVIDIA driver: no {search.roots.proc}/driver/nvidia/version and no "
                f"libcuda.so in {search.tree.host_root}",
                hint="install it, or name its place: --driver-root, or root in config.toml",
            )
        search.findings.warn(f"no kernel module is loaded: {version} is the libraries' version")
    return version, libraries.find(search, version, dirs)


def _is_in(root: str, path: str) -> bool:
    return root in ("/", path) or path.startswith(root + "/")


def _gpus(host: _Host, nvml: Nvml | None) -> tuple[tuple[Gpu, ...], NvmlReport | None]:
    listed = procfs.gpus(host.roots)
    minors = [gpu.minor for gpu in listed if gpu.minor is not None]
    complete = bool(listed) and len(minors) == len(listed) and all(gpu.uuid for gpu in listed)
    report = None
    if not complete or any(mig.instances(host.roots, minor) for minor in minors):
        lost = "MIG devices" if complete else "GPUs that procfs does not describe"
        report = _ask(nvml, host.findings, f"{lost} are left out")
    if report and not listed:
        host.findings.note("procfs lists no GPU: they are NVML's")
        return tuple(_make(host, gpu) for gpu in report.gpus), report
    by_bus = {gpu.bus_id: gpu for gpu in report.gpus} if report else {}
    known = (_combine(host, i, gpu, by_bus.get(gpu.bus_id)) for i, gpu in enumerate(listed))
    return tuple(_make(host, gpu) for gpu in known if gpu), report


def _ask(nvml: Nvml | None, findings: Findings, cost: str) -> NvmlReport | None:
    if nvml is None:
        findings.warn(f"NVML is needed and not at hand: {cost}")
        return None
    try:
        report = nvml.report()
    except NvmlError as error:
        findings.warn(f"{error.message}: {cost}")
        return None
    for warning in report.warnings:
        findings.warn(warning)
    return report


def _combine(
    host: _Host, index: int, gpu: procfs.ProcGpu, known: NvmlGpu | None
) -> NvmlGpu | None:
    """Return what procfs and NVML tell of a GPU together, None if it can't be used yet."""
    minor = gpu.minor if gpu.minor is not None else known.minor if known else None
    uuid = gpu.uuid or (known.uuid if known else "")
    if minor is None or not uuid:
        what = "device minor" if minor is None else "UUID"
        host.findings.warn(f"GPU {index} at {gpu.bus_id} has no {what} yet: left out")
        return None
    # MIG mode without any instance is NVML's secret: asking it on every node costs seconds.
    in_mig = known.mig_enabled if known else bool(mig.instances(host.roots, minor))
    return NvmlGpu(
        index=index,
        minor=minor,
        uuid=uuid,
        bus_id=gpu.bus_id,
        name=gpu.model,
        mig_enabled=in_mig,
        mig=known.mig if known else (),
    )


def _make(host: _Host, gpu: NvmlGpu) -> Gpu:
    roots, stat_node = host.roots, host.stat_node
    drm, by_path = nodes.drm_nodes(roots, stat_node, gpu.bus_id, gpu.index)
    return Gpu(
        index=gpu.index,
        minor=gpu.minor,
        uuid=gpu.uuid,
        bus_id=gpu.bus_id,
        model=gpu.name,
        node=nodes.gpu_node(roots, stat_node, host.findings, gpu.minor, gpu.index),
        drm_nodes=drm,
        by_path=by_path,
        mig_enabled=gpu.mig_enabled,
        mig=_mig_devices(host, gpu.minor, gpu.index, gpu.mig),
    )


def _mig_devices(
    host: _Host, minor: int, parent_index: int, known: Sequence[NvmlMig]
) -> tuple[MigDevice, ...]:
    table = mig.minors(host.roots) if known else {}
    found = []
    for device in known:
        name = f"{parent_index}:{device.index}"
        minors = mig.cap_minors(host.roots, table, minor, device.gi, device.ci)
        if minors is None:
            host.findings.warn(f"no nvidia-caps minor for MIG device {name}: left out")
            continue
        cap_nodes = nodes.cap_nodes(host.roots, host.stat_node, minors, name)
        if cap_nodes is None:
            host.findings.warn(
                f"MIG device {name} lacks {host.roots.dev}/nvidia-caps/nvidia-cap{minors[0]} or "
                f"{minors[1]}: left out"
            )
            continue
        found.append(
            MigDevice(
                index=device.index,
                uuid=device.uuid,
                gi=device.gi,
                ci=device.ci,
                profile=device.profile,
                cap_minors=minors,
                nodes=cap_nodes,
            )
        )
    return tuple(found)
