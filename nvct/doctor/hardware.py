# SPDX-License-Identifier: Apache-2.0
"""Checks of GPUs, NVSwitches and their driver beyond discovery. Cold; changes nothing."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterator, Sequence

from nvct.doctor.messages import of_error, refused
from nvct.doctor.model import Finding, Part, Severity, count, listed
from nvct.doctor.node import Log, Node
from nvct.doctor.reasons import Reason
from nvct.engine import command
from nvct.engine.command import Run
from nvct.errors import DocumentError, HostError, NvctError
from nvct.host import dev_char, modes, procfs
from nvct.host.gpu import pci
from nvct.host.model import Findings
from nvct.host.nvml.sample_model import COMPLETED, IN_PROGRESS, NOT_STARTED, GpuReadiness
from nvct.host.roots import Roots
from nvct.linux.files import read_bytes

SHARED_NODE = re.compile(r"nvidia(?:ctl|-uvm|\d+)")
EVERYBODY = stat.S_IROTH | stat.S_IWOTH
GROUP = stat.S_IRGRP | stat.S_IWGRP
"""What the driver gives its nodes unless NVreg_DeviceFileMode says something else."""
WORDS = {True: "on", False: "off"}
PERSISTENCED_SOCKET = "nvidia-persistenced/socket"
SLOW_S = 1.0
"""NVML answers within 0.2 s if the GPUs are initialized, and after 1 to 3 s per GPU if not."""


def gpus(node: Node) -> Part:
    """Check that NVIDIA's driver has the GPUs of the PCI bus."""
    number = pci.count(node.roots)
    if not number:
        return Part.absent("no GPU of NVIDIA on the PCI bus")
    elsewhere = pci.bound_elsewhere(node.roots)
    texts = [f"GPU {gpu.bus_id} is bound to {gpu.driver}" for gpu in elsewhere]
    natives = [gpu for gpu in elsewhere if gpu.driver in pci.NATIVE]
    # A GPU that is handed on to a virtual machine is as its owner wants it.
    found = Finding.each(Reason.GpuBoundElsewhere, "error" if natives else "note", texts)
    return Part.of(f"{count(number, 'GPU')} of NVIDIA on the PCI bus", *found)


def nvml(node: Node) -> Part:
    """Check that NVML answers."""
    answer = node.nvml
    if answer is None:
        return Part.absent("no libnvidia-ml.so.1 to ask")
    if isinstance(answer, NvctError):
        is_told = answer is vars(node).get("discovery")  # the check of the driver says more
        return Part.of(of_error(answer, Reason.NvmlHung)) if is_told else refused(answer)
    text = f"answers about {count(len(answer.gpus), 'GPU')}"
    if (first_s := _first_answer_s(node)) is not None and first_s > SLOW_S:
        text += f", the first time after {first_s:.1f} s"
    return Part.of(text)


def _first_answer_s(node: Node) -> float | None:
    """Return how long NVML's first answer took to this process, in seconds.

    It starts the GPUs that nothing else uses; so it is short if something uses them.
    """
    return node.session.first_answer_s if node.session else None


def mig(node: Node) -> Part:
    """Check that no GPU waits for a reset to change its MIG mode."""
    capable = [gpu for gpu in node.mig.gpus if gpu.capable] if node.mig else []
    if not capable:
        return Part.absent("no GPU that NVML reports can do MIG")
    on = sum(gpu.enabled for gpu in capable)
    waiting = [
        f"GPU {gpu.bus_id} has MIG {WORDS[gpu.enabled]}, and {WORDS[gpu.pending]} after a reset"
        for gpu in capable
        if gpu.enabled != gpu.pending
    ]
    found = Finding.each(Reason.MigModePending, "warning", waiting)
    return Part.of(f"on in {on} of {count(len(capable), 'GPU')} that can do it", *found)


def persistence(node: Node) -> Part:
    """Check that something keeps the GPUs initialized: else each first user of a GPU waits."""
    if not procfs.driver_version(node.roots):
        return Part.absent(procfs.NOT_LOADED)
    path = f"{node.roots.run}/{PERSISTENCED_SOCKET}"
    if os.path.exists(path):
        return Part.of("nvidia-persistenced keeps the GPUs initialized")
    gpus = node.readiness
    off = [gpu for gpu in gpus if gpu.persistence is False]
    if gpus and all(gpu.persistence for gpu in gpus):
        return Part.of("persistence mode keeps the GPUs initialized")
    text = f"nvidia-persistenced does not run: {path} does not exist"
    text += f"; persistence mode is off in {len(off)} of {count(len(gpus), 'GPU')}" if off else ""
    severity: Severity = "note"
    if (first_s := _first_answer_s(node)) is not None and gpus:
        text += f"; NVML's first answer took {first_s:.1f} s"
        severity = "warning" if off and first_s > SLOW_S else "note"
    return Part.of(Finding(Reason.PersistenceOff, severity, text))


def driver_nodes(dev: str) -> dict[str, os.stat_result]:
    """Return the nodes that a container needs, with their status."""
    nodes = {}
    for name in procfs.list_directory(dev):
        if SHARED_NODE.fullmatch(name):
            with contextlib.suppress(OSError):
                nodes[f"{dev}/{name}"] = os.stat(f"{dev}/{name}")
    return nodes


def node_modes(node: Node) -> Part:
    """Check who can open the driver's nodes: containers of users need it, NVML says so badly."""
    nodes = driver_nodes(node.roots.dev)
    if not nodes:
        return Part.absent("no device node of the driver")
    closed = [(path, one) for path, one in nodes.items() if one.st_mode & EVERYBODY != EVERYBODY]
    if not closed:
        return Part.of(f"{count(len(nodes), 'device node')}, for every user")
    path, status = closed[0]
    text = f"{path} has mode {stat.S_IMODE(status.st_mode):04o} and group {status.st_gid}: "
    if status.st_mode & GROUP == GROUP:
        text += "without the group neither rootless engines nor users in containers can open it"
    else:
        text += "only its owner can open it, on the host and in containers"
    if len(closed) > 1:
        text += f", like {len(closed) - 1} more"
    return Part.of(Finding(Reason.DeviceNodesRestricted, "note", text))


def character_links(node: Node) -> Part:
    """Check /dev/char, which systemd reads when it is reloaded."""
    if not node.booted:
        return Part.absent("systemd does not run here")
    folder = f"{node.roots.dev}/char"
    try:
        plan = dev_char.plan_links(node.roots, folder, Findings(), create_all=False)
    except HostError as error:
        return Part.absent(error.message)
    wrong = [step for step in plan.steps if step.action in ("make", "replace")]
    if not plan.steps:
        return Part.absent("no device node of the driver")
    if not wrong:
        return Part.of(f"{folder} has a link for each device node of the driver")
    text = f"{folder} lacks {count(len(wrong), 'link')}, for example {wrong[0].path}"
    return Part.of(Finding(Reason.CharacterLinksMissing, "warning", text))


MODULE = re.compile(rb"^(?:[^:\n]*/)?nvidia(?:-current)?\.ko(?:\.\w+)?:", re.MULTILINE)
"""The module's line in modules.dep, with a suffix of compression or none. Debian renames it."""
DEP_LIMIT = 16 << 20
UNSIGNED = (
    "module with unavailable key is rejected", "unsigned module is rejected",
    "unsigned module loading is restricted", "Key was rejected",
)  # fmt: skip
"""The kernel's words about a module that it does not trust: kernel/module/signing.c."""
LOG = "var/lib/dkms/nvidia"
ENROLL = (
    "Enroll the key that signs the module with `mokutil --import`, and reboot; or"
    " switch Secure Boot off."
)
BUILD = (
    "Install the headers of this kernel and run `dkms autoinstall`, or boot a kernel"
    " that has the module; without DKMS, install the driver again."
)


def check_kernel_module(node: Node, release: str = "") -> Part:
    """Check that the module is loaded; if not, find out why."""
    roots = node.roots
    version = procfs.driver_version(roots)
    if version:
        return Part.of(f"loaded: {version}")
    if modes.detect(roots) != "nvml":
        return Part.absent("this platform has a module of its own")
    if not pci.count(roots):
        return Part.absent("no GPU of NVIDIA on the PCI bus")
    if len(pci.bound_elsewhere(roots)) == pci.count(roots):
        return Part.absent("another driver has each GPU, as the check gpus says")
    return Part.of(_why(node.log, node.host, release or os.uname().release))


def _why(log: Log, host: str, release: str) -> Finding:
    root = host.rstrip("/")
    texts = [message.text for message in log.messages]
    unsigned = [text for text in texts if any(words in text for words in UNSIGNED)]
    if unsigned:
        text = f"the kernel does not load unsigned modules: {unsigned[-1]}"
        return Finding(Reason.DriverNotLoaded, "error", text, ENROLL)
    releases = [
        one for one in procfs.list_directory(f"{root}/lib/modules") if _has_module(root, one)
    ]
    if release in releases:
        text = f"the module is built for kernel {release}, and is not loaded"
        remedy = "Load it with `modprobe nvidia`; if that fails, read `dmesg`."
        return Finding(Reason.DriverNotLoaded, "error", text, remedy)
    others = f"; there is one for {', '.join(releases)}" if releases else ""
    text = f"no module nvidia for the running kernel {release}{others}"
    failed = _build_log(root, release)
    context = f"its last build has a log: {failed}" if failed else ""
    return Finding(Reason.DriverNotLoaded, "error", text, BUILD, context)


def _has_module(root: str, release: str) -> bool:
    try:
        return bool(
            MODULE.search(read_bytes(f"{root}/lib/modules/{release}/modules.dep", DEP_LIMIT))
        )
    except (OSError, DocumentError):
        return False


def _build_log(root: str, release: str) -> str:
    """Return the path of DKMS's log of a build for a kernel that failed, "" if there is none."""
    folder = f"{root}/{LOG}"
    for version in procfs.list_directory(folder):
        path = f"{folder}/{version}/build/make.log"
        if release in (procfs.read_text(path) or ""):
            return f"/{LOG}/{version}/build/make.log"
    return ""


# The NVLink fabric of NVSwitches. Until it is complete, CUDA fails with 802: system not yet
# initialized. A fabric manager of another release than the driver ends at its start.

PROGRAM = "nv-fabricmanager"
NAME = PROGRAM[:15]
"""As /proc/PID/comm has it: TASK_COMM_LEN of Linux is 16, with the terminating zero."""
FOLDERS = ("/usr/bin", "/usr/sbin", "/usr/local/bin")
TIMEOUT_S = 1.0
RELEASE = re.compile(r"\b(\d{3,4}\.\d{1,4}(?:\.\d{1,4})?)\b")
STATES = {NOT_STARTED: "Not Started", IN_PROGRESS: "In Progress", COMPLETED: "Completed"}
"""In the words of `nvidia-smi -q`."""
SHOWN = 4


def fabric(node: Node, run: Run = command.run, folders: Sequence[str] = FOLDERS) -> Part:
    """Check that the fabric manager runs in the driver's release, and has registered each GPU."""
    switches = procfs.list_directory(f"{node.roots.proc}/driver/nvidia-nvswitch/devices")
    gpus = node.readiness
    members = [gpu for gpu in gpus if gpu.fabric in STATES]
    if not switches and not members:
        return Part.absent("no NVSwitch that this host has to manage")
    found = [*_manager(node.roots, len(switches), run, folders)] if switches else []
    found += _waiting(gpus, has_switches=bool(switches))
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


def _manager(roots: Roots, switches: int, run: Run, folders: Sequence[str]) -> Iterator[Finding]:
    things = f"{switches} NVSwitch{'' if switches == 1 else 'es'}"
    pid = _process(roots.proc)
    if other := _other_release(roots, pid, run, folders):
        yield Finding(Reason.FabricManagerOtherRelease, "error", other)
    if not pid:
        hidden = procfs.hidden_processes(roots.proc)
        text = f"{things}, and no process {PROGRAM}"
        text += f" that can be seen: {hidden}" if hidden else ""
        yield Finding(Reason.FabricManagerNotRunning, "unknown" if hidden else "error", text)
    elif not other:
        text = f"{things}, and the fabric manager runs"
        yield Finding(Reason.FabricManagerNotRunning, "ok", text)


def _process(proc: str) -> int:
    for pid in procfs.processes(proc):
        with contextlib.suppress(OSError):
            owners = (0, os.geteuid())  # any user can give a process this name
            if procfs.command(proc, pid) == NAME and os.stat(f"{proc}/{pid}").st_uid in owners:
                return pid
    return 0


def _other_release(roots: Roots, pid: int, run: Run, folders: Sequence[str]) -> str:
    """Return how the fabric manager's release differs from the driver's, "" if it does not."""
    driver = procfs.driver_version(roots)
    here = [f"{folder}/{PROGRAM}" for folder in folders]
    program = next((path for path in here if os.access(path, os.X_OK)), "")
    if not program or not driver or (pid and not _sees(f"{roots.proc}/{pid}", program)):
        return ""
    printed = run([program, "--version"], TIMEOUT_S)
    match = RELEASE.search(printed.out) if printed.status == 0 else None
    if match is None or match[1] == driver:
        return ""
    return f"{program} is of release {match[1]}, and the loaded driver is {driver}"


def _sees(folder: str, program: str) -> bool:
    """Return whether a process sees this program: one in a container has a program of its own."""
    try:
        return os.path.samefile(f"{folder}/root{program}", program)
    except OSError:
        return False


def _waiting(gpus: Sequence[GpuReadiness], *, has_switches: bool) -> Iterator[Finding]:
    """Yield the findings about GPUs that are not registered with the fabric, by their state.

    Without NVSwitches of its own, a host cannot complete the fabric, for example a virtual
    machine: then it is a warning.
    """
    states: dict[str, list[str]] = {}
    for gpu in gpus:
        name = procfs.canonical_bus_id(gpu.bus_id) or gpu.bus_id
        if gpu.fabric == COMPLETED and gpu.fabric_status:
            states.setdefault(f"Completed with the error {gpu.fabric_status}", []).append(name)
        elif gpu.fabric == IN_PROGRESS or (gpu.fabric == NOT_STARTED and has_switches):
            states.setdefault(STATES[gpu.fabric], []).append(name)
    severity: Severity = "error" if has_switches else "warning"
    for state, names in states.items():
        text = f"GPU{'' if len(names) == 1 else 's'} {listed(names, SHOWN)}: the fabric is {state}"
        yield Finding(Reason.FabricNotReady, severity, text)
