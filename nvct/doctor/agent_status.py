# SPDX-License-Identifier: Apache-2.0
"""Checks the /status of a node's agent: can pods have the GPUs, and if not, why?

Contract: pure functions of the agent's answer. The agent's container is not trusted: an answer of
another form raises one of MALFORMED.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from nvct.doctor.model import Finding, Severity
from nvct.doctor.reasons import Reason
from nvct.host.faults import REMEDIES
from nvct.host.nvml import messages, session

Json: TypeAlias = Mapping[str, Any]

MALFORMED = (LookupError, TypeError, AttributeError, ValueError)
LISTED = ("listed", "withdrawn")  # States of a resource without a fault
RELEASED = ("released", "closing")  # States of NVML while the driver is being replaced
WORKER_REMEDY = (
    "The kubelet restarts the worker's container; its `kubectl logs --previous` says why it ended."
)
LEFT = ("refused", "yielded")  # States of a resource that another plugin offers


def findings(document: Json, tasks: Sequence[str]) -> Iterator[Finding]:
    """Yield the faults that keep pods from GPUs, or a finding "ok"; MALFORMED for another form."""
    if document["state"] == "waiting":
        yield Finding(Reason.GpuNotFound, "note", "this node has no NVIDIA GPU")
        return
    needed = [task for task in document["tasks"] if task["name"] in tasks]
    # A task may have failed because NVML does not answer.
    faults = [*_nvml(document["nvml"])]
    failed = (task for task in needed if task["state"] == "failed")
    texts = [f"task {task['name']} has failed: {task['reason']}" for task in failed]
    faults += Finding.each(Reason.AgentTaskFailed, "error", texts)
    resources = [part for task in needed for part in task["detail"] or ()]
    if needed or faults:
        found = faults or [*_resources(resources)]
        is_well = not any(finding.is_fault for finding in found)
        yield from (is_well and [*_doubts(document)]) or found
    else:
        text = "a program other than this agent offers devices to the kubelet"
        yield Finding(Reason.ResourceNotListed, "unknown", text)


def released(document: Json) -> str:
    """Return why the driver is being replaced, "" if it is not."""
    nvml = document.get("nvml")
    if not isinstance(nvml, Mapping) or nvml.get("state") not in RELEASED:
        return ""
    return str(nvml.get("reason"))


def _nvml(nvml: Json) -> Iterator[Finding]:
    if nvml["state"] in RELEASED:
        yield Finding(Reason.DriverBeingReplaced, "error", str(nvml["reason"]))
    if nvml["state"] == "fails":
        evidence = str(nvml["reason"])
        reason, remedy = Reason.DriverNotWorking, ""
        if session.is_hang(evidence):
            reason = Reason.NvmlHung
        elif evidence.startswith(messages.WORKER_AWAY):
            reason, remedy = Reason.AgentTaskFailed, WORKER_REMEDY
        yield Finding(reason, "error", evidence, remedy)


def _resources(resources: Sequence[Json]) -> Iterator[Finding]:
    unlisted = [resource for resource in resources if resource["state"] not in LISTED]
    for resource in unlisted:
        why = f": {resource['reason']}" if resource["reason"] else ""
        evidence = f"{resource['resource']} is {resource['state']}{why}"
        is_left = resource["state"] in LEFT
        reason = Reason.DevicePluginNotAlone if is_left else Reason.ResourceNotListed
        yield Finding(reason, "error", evidence)
    if not unlisted:
        yield _devices([resource for resource in resources if resource["devices"]])


def _devices(resources: Sequence[Json]) -> Finding:
    if not resources:
        return Finding(Reason.ResourceNotListed, "error", "the kubelet is offered no device")
    total = sum(resource["devices"] for resource in resources)
    unhealthy = {id_: why for resource in resources for id_, why in resource["unhealthy"].items()}
    if unhealthy:
        withheld = {id_ for resource in resources for id_ in resource.get("withheld", ())}
        lasting = {id_: why for id_, why in unhealthy.items() if id_ not in withheld}
        id_, why = min((lasting or unhealthy).items())
        if why.startswith(messages.REPLACED):  # the driver is back, its devices are being checked
            return Finding(reason=Reason.DriverBeingReplaced, severity="error", evidence=why)
        why, remedy = _with_remedy(why)
        severity: Severity = "error" if len(unhealthy) == total else "warning"
        text = f"{len(unhealthy)} of {total}; {id_}: {why}"
        if lasting:
            return Finding(Reason.DeviceUnhealthy, severity, f"unhealthy devices: {text}", remedy)
        text = f"devices withheld for a time: {text}"
        return Finding(Reason.DeviceWithheld, severity, text, remedy)
    names = ", ".join(f"{resource['devices']} of {resource['resource']}" for resource in resources)
    return Finding(Reason.ResourceNotListed, "ok", f"the kubelet is offered {names}")


def _doubts(document: Json) -> Iterator[Finding]:
    """Yield the preflight's warnings; devices that it withholds are unhealthy ones already."""
    for uuid, found in ((document.get("health") or {}).get("preflight") or {}).items():
        texts = [each["text"] for each in found.values() if each["effect"] == "warn"]
        if texts:
            yield Finding(Reason.PreflightWarns, "warning", f"{uuid}: {', '.join(texts)}")


def _with_remedy(why: str) -> tuple[str, str]:
    """Split why a device is unhealthy into the reason and the remedy, "" if there is none."""
    for remedy in REMEDIES.values():
        if why.endswith(f"; {remedy}"):
            return why.removesuffix(f"; {remedy}"), f"{remedy[0].upper()}{remedy[1:]}."
    return why, ""
