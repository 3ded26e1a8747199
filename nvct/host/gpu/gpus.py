# SPDX-License-Identifier: Apache-2.0
"""The GPUs of a machine and their MIG devices, from procfs, and from NVML where procfs lacks them.

Contract: NVML is loaded only if a GPU has MIG instances (only NVML has their UUIDs), if procfs is
incomplete, or for facts that only NVML has. A faulty GPU is left out; if NVML fails, only facts
that procfs lacks are left out. Each is a warning. Tables are read once, not per GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from nvct.errors import NvmlError
from nvct.host import procfs
from nvct.host.gpu import nodes, pci
from nvct.host.gpu.nodes import NodeSearch, cap_minors, mig_instances, mig_minors
from nvct.host.model import Findings, Gpu, MigDevice
from nvct.host.nvml.model import Nvml, NvmlGpu, NvmlMig, NvmlReport

COHERENT = "which GPUs share one address space with the CPU"


class _Tables(NamedTuple):
    """Tables for all GPUs: MIG instances by minor, nvidia-caps minors, NVML GPUs by bus id."""

    search: NodeSearch
    instances: dict[int, dict[int, list[int]]]
    cap_minors: dict[str, int]
    by_bus: dict[str, NvmlGpu]
    coherent: bool


def find_gpus(
    search: NodeSearch, nvml: Nvml | None, *, coherent: bool = False, unknown: Sequence[str] = ()
) -> tuple[tuple[Gpu, ...], NvmlReport | None]:
    """Return the GPUs in the order of the PCI bus, and NVML's report if NVML was called.

    `coherent` asks NVML which GPUs share the CPU's address space. `unknown` are facts that a call
    of NVML gives, though they do not cause one: phrases that follow "it is not known".
    """
    roots, findings = search.roots, search.findings
    listed = procfs.gpus(roots)
    _warn_of_other_drivers(search)
    minors = [gpu.minor for gpu in listed if gpu.minor is not None]
    complete = bool(listed) and len(minors) == len(listed) and all(gpu.uuid for gpu in listed)
    instances = {minor: mig_instances(roots, minor) for minor in minors}
    has_mig = any(instances.values())
    report = None
    if not complete or has_mig or coherent:
        unknown_facts = (*((COHERENT,) if coherent else ()), *unknown)
        costs = [f"it is not known {fact}" for fact in unknown_facts]
        if not complete:
            costs.insert(0, "GPUs that procfs does not describe are left out")
        elif has_mig:
            costs.insert(0, "MIG devices are left out")
        report = _ask(nvml, findings, ", ".join(costs))
    in_report = report.gpus if report else ()
    table = mig_minors(roots) if any(gpu.mig for gpu in in_report) else {}
    by_bus = {gpu.bus_id: gpu for gpu in in_report}
    tables = _Tables(search, instances, table, by_bus, coherent)
    if report and not listed:
        findings.note("procfs lists no GPU: NVML's list is used")
        return tuple(_gpu(tables, gpu) for gpu in in_report), report
    combined = (_combine(tables, i, gpu, report) for i, gpu in enumerate(listed))
    return tuple(_gpu(tables, gpu) for gpu in combined if gpu), report


def _warn_of_other_drivers(search: NodeSearch) -> None:
    for bound in pci.bound_elsewhere(search.roots):
        if bound.driver in pci.NATIVE:
            search.findings.warn(
                f"GPU at {bound.bus_id} is bound to {bound.driver}, not to nvidia: left out"
            )
        search.findings.leave_out(bound.path, f"bound to {bound.driver}, not to nvidia")


def _ask(nvml: Nvml | None, findings: Findings, cost: str) -> NvmlReport | None:
    if nvml is None:
        findings.warn(f"NVML is needed and not available: {cost}", "unasked")
        return None
    try:
        report = nvml.report()
    except NvmlError as error:
        findings.warn(f"{error.message}: {cost}")
        return None
    for warning in report.warnings:
        findings.warn(warning, "gpu")
    return report


def _combine(
    tables: _Tables, index: int, gpu: procfs.ProcGpu, report: NvmlReport | None
) -> NvmlGpu | None:
    """Return a GPU from procfs, with what NVML adds; None if the GPU is not usable."""
    findings = tables.search.findings
    reported = tables.by_bus.get(gpu.bus_id)
    if report and reported is None and (report.gpus or report.warnings):
        # A GPU that fell off the bus (XID 79) is still in procfs; NVML refuses it. NVML also omits
        # a GPU without a node, which is not a fault of the GPU.
        if gpu.minor is None or nodes.gpu_node(tables.search, gpu.minor, index):
            findings.warn(f"NVML does not list GPU {index} at {gpu.bus_id}: left out", "gpu")
        return None
    minor = gpu.minor if gpu.minor is not None else reported.minor if reported else None
    uuid = gpu.uuid or (reported.uuid if reported else "")
    if minor is None or not uuid:
        missing = "device minor" if minor is None else "UUID"
        findings.warn(f"GPU {index} at {gpu.bus_id} has no {missing} yet: left out")
        return None
    # Only NVML shows MIG mode without an instance; to call it on every node would take seconds.
    in_mig = reported.mig_enabled if reported else bool(tables.instances.get(minor))
    return NvmlGpu(
        index=index,
        minor=minor,
        uuid=uuid,
        bus_id=gpu.bus_id,
        name=gpu.model,
        mig_enabled=in_mig,
        mig=reported.mig if reported else (),
        coherent=reported.coherent if reported else None,
    )


def _gpu(tables: _Tables, gpu: NvmlGpu) -> Gpu:
    drm, by_path = nodes.drm_nodes(tables.search, gpu.bus_id, gpu.index)
    return Gpu(
        index=gpu.index,
        minor=gpu.minor,
        uuid=gpu.uuid,
        bus_id=gpu.bus_id,
        model=gpu.name,
        node=nodes.gpu_node(tables.search, gpu.minor, gpu.index),
        drm_nodes=drm,
        by_path=by_path,
        mig_enabled=gpu.mig_enabled,
        mig=tuple(filter(None, (_mig_device(tables, gpu, device) for device in gpu.mig))),
        coherent=gpu.coherent if tables.coherent else None,
    )


def _mig_device(tables: _Tables, gpu: NvmlGpu, device: NvmlMig) -> MigDevice | None:
    roots, _, findings = tables.search
    name = f"{gpu.index}:{device.index}"
    minors = cap_minors(roots, tables.cap_minors, gpu.minor, device.gi, device.ci)
    if minors is None:
        findings.warn(f"no nvidia-caps minor for MIG device {name}: left out")
        return None
    cap_nodes = nodes.cap_nodes(tables.search, minors, name)
    if cap_nodes is None:
        findings.warn(
            f"MIG device {name} lacks {roots.dev}/nvidia-caps/nvidia-cap{minors[0]} or "
            f"{minors[1]}: left out"
        )
        return None
    return MigDevice(
        index=device.index,
        uuid=device.uuid,
        gi=device.gi,
        ci=device.ci,
        profile=device.profile,
        cap_minors=minors,
        nodes=cap_nodes,
    )
