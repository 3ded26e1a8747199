# SPDX-License-Identifier: Apache-2.0
"""Checks by NVML and the kernel's messages that each GPU works. Cold.

Only XIDs of the last hour count, because the GPU may have been reset since an older one. The table
of `nvct.host.faults` has the action for each XID.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from nvct.doctor.model import Finding, Part, Severity, count
from nvct.doctor.node import Log, Node
from nvct.doctor.reasons import Reason
from nvct.host import faults, procfs
from nvct.host.faults import SEVERE, Fault, XidTable
from nvct.host.gpu import pci
from nvct.host.nvml.kernel_xids import XID
from nvct.host.nvml.mig_model import MigState
from nvct.host.nvml.sample_model import NvmlConditions
from nvct.host.roots import Roots

NO_START = ("RmInitAdapter failed", "rm_init_adapter failed")
"""The driver's words about a GPU that it cannot start."""


def check(node: Node) -> Part:
    """Check that no GPU is lost, waits for a reset, or reported an error that needs an action."""
    reported, state, log = node.ask("conditions", NvmlConditions), node.mig, node.log
    number = len(reported.gpus) if reported else 0
    if not number and not pci.count(node.roots):
        return Part.absent("no GPU that NVML reports")
    found = [*_unlisted(node.roots, state), *_values(state, reported), *_messages(log)]
    if log.problem:
        found.append(Finding(Reason.DeviceUnhealthy, "unknown", f"XIDs: {log.problem}"))
    if not number and not found:
        return Part.absent("NVML reports no GPU")
    if any(finding.is_fault for finding in found) or not number:
        return Part.of(*found)
    return Part.of(f"{count(number, 'GPU')}, none with an error that needs an action", *found)


def _unlisted(roots: Roots, state: MigState | None) -> Iterator[Finding]:
    """Yield a finding for each GPU that the driver has but NVML does not list.

    If its device node is missing, that is the reason, and the GPU itself works.
    """
    listed = {procfs.canonical_bus_id(gpu.bus_id) for gpu in state.gpus} if state else set()
    for gpu in procfs.gpus(roots) if state else ():
        node = f"{roots.dev}/nvidia{gpu.minor}"
        if gpu.bus_id in listed:
            continue
        if gpu.minor is not None and not os.path.lexists(node):
            text = f"{node} does not exist, and NVML does not list GPU {gpu.bus_id}"
            yield Finding(Reason.DeviceNodesMissing, "error", text)
        else:
            text = f"the driver has GPU {gpu.bus_id}, but NVML does not list it"
            yield Finding(Reason.DeviceUnhealthy, "error", text)


def _values(state: MigState | None, reported: NvmlConditions | None) -> Iterator[Finding]:
    names = {gpu.uuid: gpu.bus_id for gpu in state.gpus} if state else {}
    for gpu in reported.gpus if reported else ():
        name = names.get(gpu.uuid) or gpu.uuid or "that is lost"
        yield from (_of_fault(f"GPU {name}", fault) for fault in faults.of_condition(gpu))


def _messages(log: Log) -> Iterable[Finding]:
    table = XidTable(rows=faults.read())
    found: dict[str, Finding] = {}
    for text, age_s in log.recent():
        ago = f"{int(age_s) // 60} min ago" if age_s >= 60 else "just now"
        if match := XID.match(text):
            fault = table.fault(int(match[6]))
            if fault.action != "ignore":
                name = f"GPU {match[1]}:{match[2]}:{match[3]}"
                found[match[0]] = _of_fault(name, fault, f", {ago}", severe="warning")
        elif any(words in text for words in NO_START):
            # Only a warning: after a reset since then, the GPU works.
            found[text] = Finding(Reason.DeviceUnhealthy, "warning", f"{text}, {ago}")
    return found.values()


def _of_fault(name: str, fault: Fault, ago: str = "", *, severe: Severity = "error") -> Finding:
    severity: Severity = severe if fault.action in SEVERE else "note"
    remedy = REMEDIES.get(fault.action, "")
    return Finding(Reason.DeviceUnhealthy, severity, f"{name}: {fault.reason}{ago}", remedy)


REMEDIES = {
    "reset": "Reset the GPU with `nvidia-smi --gpu-reset`, or reboot.",
    "reboot": "Reboot this host.",
    "replace": "Have the GPU replaced; run NVIDIA's field diagnostics first.",
}
"""By the action of a fault."""
