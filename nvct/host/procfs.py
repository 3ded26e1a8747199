# SPDX-License-Identifier: Apache-2.0
"""GPUs and processes from procfs and sysfs, without NVML and without waking a GPU.

Contract: works while NVML reports a library mismatch. Only the GPU or process that a malformed
file describes is skipped.
"""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass

from nvct.host.roots import Roots
from nvct.linux import device_nodes
from nvct.linux.files import has_every_id

BUS_ID = re.compile(
    r"(?P<domain>[0-9a-f]{4,8}):(?P<bus>[0-9a-f]{2}):(?P<device>[0-9a-f]{2})\.(?P<function>[0-7])",
    re.IGNORECASE,
)
# "Kernel Module  580.159.04  " of the proprietary module, "Kernel Module for x86_64  580.159.04  "
# of the open one.
VERSION = re.compile(r"Kernel Module\b[^0-9\n]*(?:for \S+\s+)?(\d+\.\d+(?:\.\d+)*)")
NUMBERS = re.compile(r"\d+\.\d+(?:\.\d+)*")
CONTAINER_ID = re.compile(r"(?:^|[/:-])(?<!conmon-)([0-9a-f]{64})(?=[./]|$)", re.MULTILINE)
"""A container's id in lines of /proc/PID/cgroup: docker-ID.scope, cri-containerd-ID.scope,
crio-ID.scope, libpod-ID.scope, /docker/ID, kubepods/.../ID, kubelet-...:cri-containerd:ID. Not in
libpod-conmon-ID.scope and crio-conmon-ID.scope: conmon runs outside the container."""
SIZE_LIMIT = 1 << 20  # bytes; the kernel's own limit for arguments and environment is near it


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcGpu:
    """One /proc/driver/nvidia/gpus entry."""

    bus_id: str
    minor: int | None  # None if the file does not have it
    uuid: str  # "" until the GPU is initialized: the kernel shows question marks until then
    model: str


def read_bytes(path: str) -> bytes | None:
    """Return the start of a file, None if the file is missing or unreadable."""
    try:
        with open(path, "rb") as file:
            return file.read(SIZE_LIMIT)
    except OSError:
        return None


def read_text(path: str) -> str | None:
    """Return the start of a file as text, None if the file is missing or unreadable."""
    data = read_bytes(path)
    return None if data is None else data.decode("utf-8", "replace")


def link(path: str) -> str:
    """Return the text of a link, "" if it is missing or unreadable."""
    try:
        return os.readlink(path)
    except OSError:
        return ""


def list_directory(path: str) -> list[str]:
    """Return the sorted names in a directory, [] if there is none."""
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


def processes(proc: str) -> list[int]:
    """Return the ids of all processes, in their order."""
    return sorted(int(name) for name in list_directory(proc) if name.isdecimal())


def folder_of_live_thread(proc: str, pid: int) -> str:
    """Return the procfs folder of a process, or of a live thread if its main thread has ended.

    The folder of a process whose main thread has ended shows neither root nor open files.
    """
    folder = f"{proc}/{pid}"
    try:
        os.readlink(f"{folder}/cwd")
    except FileNotFoundError:
        tasks = (f"{folder}/task/{tid}" for tid in list_directory(f"{folder}/task"))
        return next((task for task in tasks if os.path.exists(f"{task}/cwd")), folder)
    except OSError:  # the process of another user
        pass
    return folder


def command(proc: str, pid: int) -> str:
    """Return the kernel's name (comm) of a process, "" if it has ended."""
    return (read_text(f"{proc}/{pid}/comm") or "").strip()


NOT_LOADED = "the kernel module nvidia is not loaded"


def parent(path: str) -> int:
    """Return the id of a process's parent, from the process's folder in procfs; 0 if it ended."""
    fields = stat_fields(path)
    return int(fields[1]) if len(fields) > 1 else 0


def stat_fields(path: str) -> list[str]:
    """Return the fields of proc_pid_stat(5) from the third one on; [] if the process has ended.

    The name, which is the second field, can contain spaces and parentheses.
    """
    return (read_text(f"{path}/stat") or "").rpartition(")")[2].split()


INITIAL_PID_NAMESPACE = 0xEFFFFFFC
"""The inode of the initial PID namespace: include/uapi/linux/nsfs.h, PID_NS_INIT_INO."""


def hidden_processes(proc: str) -> str:
    """Return why some processes of this host are not visible, "" if all are."""
    if "self" not in list_directory(proc):
        return "" if list_directory(proc) else f"{proc} lists no process"
    try:
        inode = os.stat(f"{proc}/self/ns/pid").st_ino
    except OSError:
        return ""
    if inode != INITIAL_PID_NAMESPACE:
        return "this is another PID namespace than the host's"
    if read_text(f"{proc}/1/comm") is None:
        return f"{proc} is mounted with hidepid"
    return ""


def in_user_namespace(proc: str) -> bool:
    """Return whether this process is in another user namespace than the host's."""
    try:
        return not has_every_id(proc=proc)
    except OSError:
        return False


def driver_version(roots: Roots) -> str:
    """Return the version of the loaded kernel module, "" if none is loaded."""
    text = read_text(f"{roots.proc}/driver/nvidia/version") or ""
    for line in text.splitlines():
        if line.startswith("NVRM version:") and (match := VERSION.search(line)):
            return match[1]
    text = (read_text(f"{roots.sys}/module/nvidia/version") or "").strip()
    return text if NUMBERS.fullmatch(text) else ""


def gpus(roots: Roots) -> list[ProcGpu]:
    """Return the GPUs that are not excluded, in the order of the PCI bus, which is NVML's."""
    directory = f"{roots.proc}/driver/nvidia/gpus"
    listed = []
    for name in list_directory(directory):
        bus_id = canonical_bus_id(name)
        text = read_text(f"{directory}/{name}/information")
        if not bus_id or text is None:
            continue
        fields = _fields(text)
        if fields.get("gpu excluded", "no").lower() == "yes":
            continue
        minor = fields.get("device minor", "")
        uuid = fields.get("gpu uuid", "")
        listed.append(
            ProcGpu(
                bus_id=bus_id,
                minor=int(minor) if minor.isascii() and minor.isdigit() else None,
                uuid="" if "?" in uuid else uuid,
                model=fields.get("model", ""),
            )
        )
    return sorted(listed, key=lambda gpu: bus_key(gpu.bus_id))


def canonical_bus_id(text: str) -> str:
    """Return a PCI bus id as sysfs writes it, lower case, domain of four digits; "" if invalid."""
    match = BUS_ID.fullmatch(text.strip())
    if not match:
        return ""
    domain = int(match["domain"], 16)
    address = f"{match['bus']}:{match['device']}.{match['function']}"
    return f"{domain:04x}:{address.lower()}"


def bus_key(bus_id: str) -> tuple[int, ...]:
    """Return the sort key of a canonical bus id: the order of the PCI bus."""
    return tuple(int(part, 16) for part in re.split("[:.]", bus_id)) if bus_id else (1 << 32,)


def majors(roots: Roots) -> dict[str, int]:
    """Return the majors of the kernel's character devices by driver name."""
    return device_nodes.parse_proc_devices(read_text(f"{roots.proc}/devices") or "")


def drm_names(roots: Roots, bus_id: str) -> list[str]:
    """Return the names of a GPU's nodes in /dev/dri, e.g. card1 and renderD128."""
    if not bus_id:
        return []
    names = list_directory(f"{roots.sys}/bus/pci/devices/{bus_id}/drm")
    return [name for name in names if re.fullmatch(r"(card|renderD)\d+", name)]


def _fields(text: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon:
            fields.setdefault(key.strip().lower(), value.strip())
    return fields


CLOCK_TICK_S = 0.05
"""At least a tick: a process's start is exact to a tick of the kernel, a file's time is finer."""
OWN_PROC = "/proc"


def started(pid: int, proc: str = OWN_PROC) -> float | None:
    """Return when a process started, in seconds since the epoch; None if that is unknown.

    Exact to a tick of the kernel's clock. From another host's recorded procfs, the time is exact
    to a second, and never too early.
    """
    fields = stat_fields(f"{proc}/{pid}")
    if proc != OWN_PROC:
        boot = _recorded_boot(proc)
    else:  # a pause between the two clocks makes the difference too small, never too large
        boot = max(time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) for _ in range(5))
    if boot is None or len(fields) < 20 or not fields[19].isdecimal():
        return None
    return boot + int(fields[19]) / os.sysconf("SC_CLK_TCK")


def _recorded_boot(proc: str) -> float | None:
    """Return the end of the second that `btime` of proc_stat(5) names."""
    for line in (read_text(f"{proc}/stat") or "").splitlines():
        if line.startswith("btime "):
            return int(line.split()[1]) + 1.0
    return None
