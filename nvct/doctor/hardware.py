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
"""The group's part of the driver's default mode, which NVreg_DeviceFileMode can change."""
WORDS = {True: "on", False: "off"}
PERSISTENCED_SOCKET = "nvidia-persistenced/socket"
SLOW_S = 1.0
"""NVML answers within 0.2 s if the GPUs are initialized, and after 1 to 3 s per GPU if not."""


def gpus(node: Node) -> Part:
    """Check that the GPUs on the PCI bus are bound to NVIDIA's driver."""
    number = pci.count(node.roots)
    if not number:
        return Part.absent("no NVIDIA GPU on the PCI bus")
    elsewhere = pci.bound_elsewhere(node.roots)
    texts = [f"GPU {gpu.bus_id} is bound to {gpu.driver}" for gpu in elsewhere]
    natives = [gpu for gpu in elsewhere if gpu.driver in pci.NATIVE]
    # A GPU that is passed through to a virtual machine is no fault.
    found = Finding.each(Reason.GpuBoundElsewhere, "error" if natives else "note", texts)
    return Part.of(f"{count(number, 'NVIDIA GPU')} on the PCI bus", *found)


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
    """Return how long this process waited for NVML's first answer, in seconds.

    It includes the start of GPUs that nothing else uses.
    """
    return node.session.first_answer_s if node.session else None


def mig(node: Node) -> Part:
    """Check that no GPU waits for a reset to change its MIG mode."""
    capable = [gpu for gpu in node.mig.gpus if gpu.capable] if node.mig else []
    if not capable:
        return Part.absent("NVML reports no GPU with MIG")
    on = sum(gpu.enabled for gpu in capable)
    waiting = [
        f"GPU {gpu.bus_id} has MIG {WORDS[gpu.enabled]}, but {WORDS[gpu.pending]} after a reset"
        for gpu in capable
        if gpu.enabled != gpu.pending
    ]
    found = Finding.each(Reason.MigModePending, "warning", waiting)
    return Part.of(f"on in {on} of {count(len(capable), 'GPU')} with MIG", *found)


def persistence(node: Node) -> Part:
    """Check that something keeps the GPUs initialized, so that the first user need not wait."""
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
    """Return the device nodes that containers need, with their status, by path."""
    nodes = {}
    for name in procfs.list_directory(dev):
        if SHARED_NODE.fullmatch(name):
            with contextlib.suppress(OSError):
                nodes[f"{dev}/{name}"] = os.stat(f"{dev}/{name}")
    return nodes


def node_modes(node: Node) -> Part:
    """Check that every user can open the driver's nodes, because NVML's error is not clear."""
    nodes = driver_nodes(node.roots.dev)
    if not nodes:
        return Part.absent("no device node of the driver")
    closed = [(path, one) for path, one in nodes.items() if one.st_mode & EVERYBODY != EVERYBODY]
    if not closed:
        return Part.of(f"{count(len(nodes), 'device node')}, for every user")
    path, status = closed[0]
    text = f"{path} has mode {stat.S_IMODE(status.st_mode):04o} and group {status.st_gid}: "
    if status.st_mode & GROUP == GROUP:
        text += "rootless engines and users in containers need that group to open it"
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
"""The module's line in modules.dep, compressed or not. Debian calls it nvidia-current."""
DEP_LIMIT = 16 << 20
UNSIGNED = (
    "module with unavailable key is rejected", "unsigned module is rejected",
    "unsigned module loading is restricted", "Key was rejected",
)  # fmt: skip
"""Words of kernel messages about untrusted modules (kernel/module/signing.c)."""
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
        return Part.absent("no NVIDIA GPU on the PCI bus")
    if len(pci.bound_elsewhere(roots)) == pci.count(roots):
        return Part.absent("other drivers have all GPUs, as the check gpus says")
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
        text = f"the module is built for kernel {release}, but not loaded"
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
    """Return the path of DKMS's log of a failed build for a kernel, "" if there is none."""
    folder = f"{root}/{LOG}"
    for version in procfs.list_directory(folder):
        path = f"{folder}/{version}/build/make.log"
        if release in (procfs.read_text(path) or ""):
            return f"/{LOG}/{version}/build/make.log"
    return ""


# The NVLink fabric of NVSwitches. Until it is complete, CUDA fails with 802: system not yet
# initialized. A fabric manager exits at its start if its release is not the driver's.

PROGRAM = "nv-fabricmanager"
NAME = PROGRAM[:15]
"""Its /proc/PID/comm, which has 15 characters: TASK_COMM_LEN includes the terminating zero."""
FOLDERS = ("/usr/bin", "/usr/sbin", "/usr/local/bin")
TIMEOUT_S = 1.0
RELEASE = re.compile(r"\b(\d{3,4}\.\d{1,4}(?:\.\d{1,4})?)\b")
STATES = {NOT_STARTED: "Not Started", IN_PROGRESS: "In Progress", COMPLETED: "Completed"}
"""In the words of `nvidia-smi -q`."""
SHOWN = 4


def fabric(node: Node, run: Run = command.run, folders: Sequence[str] = FOLDERS) -> Part:
    """Check that the fabric manager runs, has the driver's release, and registered each GPU."""
    switches = procfs.list_directory(f"{node.roots.proc}/driver/nvidia-nvswitch/devices")
    gpus = node.readiness
    members = [gpu for gpu in gpus if gpu.fabric in STATES]
    if not switches and not members:
        return Part.absent("this host has no NVSwitch to manage")
    found = [*_manager(node.roots, len(switches), run, folders)] if switches else []
    found += _waiting(gpus, has_switches=bool(switches))
    if wrong := [finding for finding in found if finding.severity != "ok"]:
        return Part.of(*wrong)
    return Part.of(", ".join((*(one.evidence for one in found), *_registered(members))))


def _registered(members: Sequence[GpuReadiness]) -> Iterator[str]:
    """Yield how many GPUs are registered, and how many, as in a virtual machine, cannot be."""
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
        text = f"{things}, but no process {PROGRAM}"
        text += f" is visible: {hidden}" if hidden else ""
        yield Finding(Reason.FabricManagerNotRunning, "unknown" if hidden else "error", text)
    elif not other:
        text = f"{things}, and the fabric manager runs"
        yield Finding(Reason.FabricManagerNotRunning, "ok", text)


def _process(proc: str) -> int:
    for pid in procfs.processes(proc):
        with contextlib.suppress(OSError):
            owners = (0, os.geteuid())  # another user can give any process this name
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
    return f"{program} has release {match[1]}, but the loaded driver is {driver}"


def _sees(folder: str, program: str) -> bool:
    """Report whether a process sees this program; in a container it may see another one."""
    try:
        return os.path.samefile(f"{folder}/root{program}", program)
    except OSError:
        return False


def _waiting(gpus: Sequence[GpuReadiness], *, has_switches: bool) -> Iterator[Finding]:
    """Yield a finding for each state of GPUs that are not registered with the fabric.

    It is a warning on a host without NVSwitches, such as a virtual machine, which cannot complete
    the fabric.
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
