# SPDX-License-Identifier: Apache-2.0
"""Checks the NVLink fabric of NVSwitches: the fabric manager, its release, and each GPU's state.

Until the fabric is complete, CUDA fails with 802: system not yet initialized. A fabric manager of
another release than the driver ends at its start. Cold; changes nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence

from nvct.doctor.model import Finding, Part, Severity, count, listed
from nvct.doctor.reasons import Reason
from nvct.engine import command
from nvct.engine.command import Run
from nvct.host import procfs
from nvct.host.nvml.sample_model import (
    COMPLETED,
    IN_PROGRESS,
    NOT_STARTED,
    GpuReadiness,
    NvmlReadiness,
)
from nvct.host.roots import Roots

PROGRAM = "nv-fabricmanager"
NAME = PROGRAM[:15]
"""As /proc/PID/comm has it: TASK_COMM_LEN of Linux is 16, with the terminating zero."""
FOLDERS = ("/usr/bin", "/usr/sbin", "/usr/local/bin")
TIMEOUT_S = 1.0
RELEASE = re.compile(r"\b(\d{3,4}\.\d{1,4}(?:\.\d{1,4})?)\b")
STATES = {NOT_STARTED: "Not Started", IN_PROGRESS: "In Progress", COMPLETED: "Completed"}
"""In the words of `nvidia-smi -q`."""
SHOWN = 4


def check(
    roots: Roots,
    readiness: NvmlReadiness | None,
    run: Run = command.run,
    folders: Sequence[str] = FOLDERS,
) -> Part:
    """Check that the fabric manager runs in the driver's release, and has registered each GPU."""
    switches = procfs.list_directory(f"{roots.proc}/driver/nvidia-nvswitch/devices")
    gpus = readiness.gpus if readiness else ()
    waiting = _waiting(gpus, has_switches=bool(switches))
    members = [gpu for gpu in gpus if gpu.fabric in STATES]
    if not switches and not members:
        return Part.absent("no NVSwitch that this host has to manage")
    found = _manager(roots, len(switches), run, folders) if switches else []
    found += waiting
    if wrong := [finding for finding in found if finding.severity != "ok"]:
        return Part.of(*wrong)
    return Part.of(", ".join((*(one.evidence for one in found), *_registered(members))))


def _registered(members: Sequence[GpuReadiness]) -> Iterator[str]:
    """Yield how many GPUs are registered, and how many of a virtual machine wait for its host."""
    done = sum(gpu.fabric == COMPLETED for gpu in members)
    if done:
        yield f"{count(done, 'GPU')} registered"
    if len(members) > done:
        yield f"{count(len(members) - done, 'GPU')} without a fabric to register with"


def _manager(roots: Roots, switches: int, run: Run, folders: Sequence[str]) -> list[Finding]:
    things = f"{switches} NVSwitch{'' if switches == 1 else 'es'}"
    pid = _process(roots.proc)
    release = _other_release(roots, pid, run, folders)
    if pid:
        text = f"{things}, and the fabric manager runs"
        running = Finding(Reason.FabricManagerNotRunning, "ok", text)
        return release or [running]
    text = f"{things}, and no process {PROGRAM}"
    if hidden := procfs.hidden_processes(roots.proc):
        text += f" that can be seen: {hidden}"
    severity: Severity = "unknown" if hidden else "error"
    return [*release, Finding(Reason.FabricManagerNotRunning, severity, text)]


def _process(proc: str) -> int:
    named = (pid for pid in procfs.processes(proc) if procfs.command(proc, pid) == NAME)
    return next((pid for pid in named if _is_roots(f"{proc}/{pid}")), 0)


def _is_roots(folder: str) -> bool:
    """Return whether a process is root's or ours: any user can name a process as the manager."""
    try:
        return os.stat(folder).st_uid in (0, os.geteuid())
    except OSError:
        return False


def _other_release(roots: Roots, pid: int, run: Run, folders: Sequence[str]) -> list[Finding]:
    driver = procfs.driver_version(roots)
    here = [f"{folder}/{PROGRAM}" for folder in folders]
    program = next((path for path in here if os.access(path, os.X_OK)), "")
    if not program or not driver or (pid and not _sees(f"{roots.proc}/{pid}", program)):
        return []
    printed = run([program, "--version"], TIMEOUT_S)
    match = RELEASE.search(printed.out) if printed.status == 0 else None
    if match is None or match[1] == driver:
        return []
    text = f"{program} is of release {match[1]}, and the loaded driver is {driver}"
    return [Finding(Reason.FabricManagerOtherRelease, "error", text)]


def _sees(folder: str, program: str) -> bool:
    """Return whether a process sees this program: one in a container has a program of its own."""
    try:
        return os.path.samefile(f"{folder}/root{program}", program)
    except OSError:
        return False


def _waiting(gpus: Sequence[GpuReadiness], *, has_switches: bool) -> list[Finding]:
    """Return the findings about GPUs that are not registered with the fabric, by their state.

    Without NVSwitches of its own, a host cannot complete the fabric, for example a virtual
    machine: then it is a warning.
    """
    states: dict[str, list[str]] = {}
    for gpu in gpus:
        if gpu.fabric == COMPLETED and gpu.fabric_status:
            states.setdefault(f"Completed with the error {gpu.fabric_status}", []).append(
                gpu.bus_id
            )
        elif gpu.fabric == IN_PROGRESS or (gpu.fabric == NOT_STARTED and has_switches):
            states.setdefault(STATES[gpu.fabric], []).append(gpu.bus_id)
    severity: Severity = "error" if has_switches else "warning"
    texts = [f"{_named(names)}: the fabric is {state}" for state, names in states.items()]
    return Finding.each(Reason.FabricNotReady, severity, texts)


def _named(bus_ids: Sequence[str]) -> str:
    names = [procfs.canonical_bus_id(name) or name for name in bus_ids]
    return f"GPU{'' if len(bus_ids) == 1 else 's'} {listed(names, SHOWN)}"
