# SPDX-License-Identifier: Apache-2.0
"""Checks of containers: the one that this process is in, and those that run on this host.

`systemctl daemon-reload` resets a container's scope to the devices that its unit lists, without a
GPU that a hook gave it. systemd keeps the units of containers in /run/systemd (systemd.unit(5)):
as created in `transient`, later settings in `system.control`. Cold; changes nothing.
"""

from __future__ import annotations

import errno
import glob
import os
import re
from collections.abc import Mapping
from dataclasses import replace

from nvct.container.request.model import VISIBLE_DEVICES
from nvct.doctor.containers import gpu_nodes
from nvct.doctor.model import Finding, Part, count, unseen
from nvct.doctor.node import Node
from nvct.doctor.reasons import Reason
from nvct.errors import HostError
from nvct.host import procfs
from nvct.host.roots import Roots
from nvct.paths import HOOK_PATH

MARKS = (".dockerenv", "run/.containerenv")
"""Files that Docker and Podman make in a container. A virtual machine whose disk was made from a
container has them, too."""
HOST_PIDS = "pid:[4026531836]"
"""The PID namespace that the kernel starts with (linux/proc_ns.h, PROC_PID_INIT_INO)."""
OVERLAY_ROOT = re.compile(r"^\S+ \S+ \S+ \S+ / .* - (?:overlay|fuse-overlayfs) ", re.MULTILINE)
VARIABLES = ("KUBERNETES_SERVICE_HOST", "container")
"""Set in a pod, and in a container by systemd's Container Interface."""
AGENT_VARIABLE = "NVCT_DRIVER_READY_FILE"  # Set in every container of nvct's pods
WRAPPER_VARIABLE = "NVCT_CONFIG_FILE_PATH"
"""Set for every program that `nvct install` put on a host."""
HOOK_VARIABLE = "NVIDIA_CDI_HOOK_PATH"
INSIDE = "this is a container: the host's processes and records are not visible here"
NAMED = 4
NONE = ("", "void", "none")
LIBRARY = "libcuda.so.1"
FOLDERS = (
    "usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64", "usr/lib", "lib64",
)  # fmt: skip


def is_container(env: Mapping[str, str], root: str = "/") -> bool:
    """Report whether this process is in a container."""
    base = root.rstrip("/")
    if any(os.path.exists(f"{base}/{name}") for name in MARKS):
        return not _is_root_of_init(base)
    mounts = procfs.read_text(f"{base}/proc/self/mountinfo") or ""
    return any(name in env for name in VARIABLES) and bool(OVERLAY_ROOT.search(mounts))


def hint(env: Mapping[str, str], root: str = "/") -> str:
    """Return a sentence that this is a container, for commands that find nothing; else ""."""
    return INSIDE if is_container(env, root) else ""


def need_host(env: Mapping[str, str], command: str, root: str = "/") -> None:
    """Raise HostError for a command about the host in a container of nvct's own pods.

    There, the command does not see the host, and would report faults that the host does not have.
    """
    if AGENT_VARIABLE not in env or WRAPPER_VARIABLE in env or not is_container(env, root):
        return
    program = f"{os.path.dirname(env.get(HOOK_VARIABLE, HOOK_PATH))}/nvct"
    raise HostError(
        f"nvct {command} does not see the node from this container of nvct's pod",
        hint=f"run `sudo {program} {command}` on the node; for kubectl see docs/kubernetes.md",
    )


def check(node: Node) -> Part:
    """Check the container that this process is in: its request, nodes and libraries."""
    base = node.host.rstrip("/")
    if not is_container(node.env, node.host):
        return Part.absent("this is not a container")
    asked = node.env.get(VISIBLE_DEVICES)
    nodes = gpu_nodes(f"{base}/dev")
    if not nodes and (asked is None or asked in NONE):
        text = f"this container asks for no GPU: {VISIBLE_DEVICES} is {asked or 'not set'}"
        return Part.absent(Finding(Reason.GpuNotRequested, "note", text))
    wrong = []
    if not nodes:
        text = f"{VISIBLE_DEVICES} is {asked}, but /dev has no GPU: no NVIDIA runtime created it"
        wrong.append(Finding(Reason.ContainerWithoutDriver, "error", text))
    denied = [name for name in (*nodes, "nvidiactl") if _is_denied(f"{base}/dev/{name}")]
    if denied:
        text = f"/dev/{denied[0]} cannot be opened any more: the cgroup has lost the device"
        wrong.append(Finding(Reason.GpuLostAtReload, "error", text))
    if nodes and not any(os.path.lexists(f"{base}/{folder}/{LIBRARY}") for folder in FOLDERS):
        text = f"it has a GPU, but no {LIBRARY}: the capability compute was not requested"
        wrong.append(Finding(Reason.ContainerWithoutDriver, "warning", text))
    has = f"it has {count(len(nodes), 'GPU')}: {', '.join(nodes[:NAMED])}"
    has += ", ..." if len(nodes) > NAMED else ""
    return Part.of(*wrong) if wrong else Part.of(has)


def of_own_gpus(part: Part, node: Node) -> Part:
    """Return a check's result; inside a container, missing nodes become notes.

    A container has the nodes of its own GPUs, but the driver's /proc can list all of the host's.
    """
    if node.roots.dev != "/dev" or not is_container(node.env):
        return part
    found = [
        replace(one, severity="note") if one.reason is Reason.DeviceNodesMissing else one
        for one in part.findings
    ]
    return Part.of(*part.lines, findings=found)


def _is_root_of_init(base: str) -> bool:
    try:
        return os.readlink(f"{base}/proc/self/ns/pid") == HOST_PIDS and os.path.samefile(
            f"{base}/proc/1/root", f"{base}/"
        )
    except OSError:  # not permitted
        return False


def _is_denied(path: str) -> bool:
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        # EPERM is from the cgroup, EACCES from the file's mode.
        return error.errno == errno.EPERM
    return False


SCOPE = re.compile(r"[^/]*?([0-9a-f]{64})\.scope")
STRICT = re.compile(r"^DevicePolicy=(?:strict|closed)$", re.MULTILINE)
MAJOR = 195  # /dev/nvidia0's: Documentation/admin-guide/devices.txt of Linux
LISTED = re.compile(
    rf"^DeviceAllow=(?:/dev/char/{MAJOR}:|/dev/nvidia\d|char-nvidia|char-\*|/dev/char/\*)",
    re.MULTILINE,
)


def systemd_reload(node: Node) -> Part:
    """Check that systemd knows the GPUs of each running container."""
    roots, containers = node.roots, node.containers
    scopes = _scopes(roots)
    if not scopes:
        return Part.absent("no container's cgroup is a unit of systemd")
    if part := unseen(Reason.GpuLostAtReload, f"{roots.proc}/1/root"):
        return part
    lost = sorted(
        containers.name_of_process(pid)
        for id_, pid in containers.first_processes(roots.proc)
        if gpu_nodes(f"{roots.proc}/{pid}/root/dev")
        and id_ in scopes
        and STRICT.search(scopes[id_])
        and not LISTED.search(scopes[id_])
    )
    if not lost:
        return Part.of(f"{count(len(scopes), 'container')}, none would lose a GPU")
    texts = [f"container {name} has a GPU that its systemd unit does not list" for name in lost]
    return Part.of(*Finding.each(Reason.GpuLostAtReload, "warning", texts))


def _scopes(roots: Roots) -> dict[str, str]:
    texts: dict[str, str] = {}
    for path in sorted(glob.glob(f"{roots.run}/systemd/transient/*.scope")):
        if match := SCOPE.fullmatch(os.path.basename(path)):
            more = (
                procfs.read_text(each) or ""
                for folder in ("transient", "system.control")
                for each in sorted(glob.glob(f"{roots.run}/systemd/{folder}/{match[0]}.d/*.conf"))
            )
            texts[match[1]] = "\n".join([procfs.read_text(path) or "", *more])
    return texts
