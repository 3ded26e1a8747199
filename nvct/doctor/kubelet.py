# SPDX-License-Identifier: Apache-2.0
"""Checks a Kubernetes node by its own files, without the API server or a service of the kubelet.

The kubelet writes the registered devices, and those that it gave to containers, to a checkpoint
(pkg/kubelet/cm/devicemanager/checkpoint of Kubernetes).

Kubelet, engines and nvct's agent need inotify to watch files. Linux limits instances and watches
for each user (inotify(7)): above root's limits, its programs get EMFILE "too many open files" or
ENOSPC. Cold; changes nothing.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import re
import socket
import stat
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nvct.container.request.kubelet_record import pod_uid
from nvct.doctor.model import Finding, Part, count, unseen
from nvct.doctor.node import Node
from nvct.doctor.reasons import Reason
from nvct.errors import DocumentError
from nvct.host import procfs
from nvct.host.model import Inventory
from nvct.linux.files import read_bytes

FOLDERS = ("var/lib/kubelet", "var/lib/k0s/kubelet", "var/snap/microk8s/common/var/lib/kubelet")
"""The kubelet's folders without --root-dir: the usual one, k0s, MicroK8s."""
ROOT_DIR = re.compile(rb"--root-dir[=\0]/?([^\0]+)")
PLUGINS = "device-plugins"
PROCESSES = ("kubelet", "k3s", "k3s-server", "k3s-agent", "rke2", "k0s", "kubelite", "microk8s")
"""Names in /proc/PID/comm of processes that are, or contain, a kubelet."""
CHECKPOINT = f"{PLUGINS}/kubelet_internal_checkpoint"
LIMIT = 64 << 20
PREFIX = "nvidia.com/"
VALIDATIONS = "run/nvidia/validations"
WAITED_FOR = ("driver-ready", "toolkit-ready")
"""Status files that the pods of a GPU operator wait for in Init."""
TIMEOUT_S = 0.5
CAPABILITIES = re.compile(r"^CapEff:\s*([0-9a-f]+)$", re.MULTILINE)
CAP_SYS_ADMIN = 21


def check(node: Node) -> Part:
    """Check that the kubelet runs, was offered all GPUs, and that pods have those they got."""
    proc, statuses, root = node.roots.proc, node.statuses, node.host.rstrip("/")
    gpus = len(node.mig.gpus) if node.mig else 0
    running = processes(proc)
    base = _folder(proc, running, root)
    if part := unseen(Reason.ResourceNotListed, f"{root}/{base}/{PLUGINS}"):
        return part
    if not os.path.isdir(f"{root}/{base}/{PLUGINS}"):
        return Part.absent(f"no kubelet: /{base}/{PLUGINS} does not exist")
    if not running:
        text = f"no kubelet runs, though /{base} exists"
        if hidden := procfs.hidden_processes(proc):
            text = f"{text}; or it is not visible: {hidden}"
            return Part.absent(Finding(Reason.KubeletNotRunning, "unknown", text))
        return Part.of(Finding(Reason.KubeletNotRunning, "warning", text))
    found = [*_waiting(root)]
    said: list[str] = []
    if gpus:
        record = _record(f"{root}/{base}/{CHECKPOINT}", root)
        if isinstance(record, str):
            said = [record]
        else:
            found += _devices(record.registered, gpus, f"{root}/{base}")
            found += _in_containers(node, record.given)
            sums = sorted((name, len(ids)) for name, ids in record.registered.items() if ids)
            own = [f"{number} of {name}" for name, number in sums if name.startswith(PREFIX)]
            said = [f"the kubelet has {', '.join(own)}"] if own else []
    if gpus and statuses and not any(status.registered for status in statuses):
        names = ", ".join(status.engine.engine for status in statuses)
        text = f"{names} has no NVIDIA runtime: pods with a RuntimeClass nvidia cannot start"
        found.append(Finding(Reason.EngineNotConfigured, "note", text))
    return Part.of(*said, *found, otherwise="it runs")


def processes(proc: str) -> list[int]:
    """Return the ids of processes that are, or contain, a kubelet."""
    return [pid for pid in procfs.processes(proc) if procfs.command(proc, pid) in PROCESSES]


def _folder(proc: str, processes: Sequence[int], root: str) -> str:
    """Return the kubelet's folder below the host's root, by its command line, or a usual one."""
    for pid in processes:
        if match := ROOT_DIR.search(procfs.read_bytes(f"{proc}/{pid}/cmdline") or b""):
            return match[1].decode("utf-8", "surrogateescape").rstrip("/")
    there = (folder for folder in FOLDERS if os.path.isdir(f"{root}/{folder}/{PLUGINS}"))
    return next(there, FOLDERS[0])


@dataclass(frozen=True, slots=True)
class Record:
    """The kubelet's record of devices."""

    registered: dict[str, list[str]]  # ids by resource
    given: dict[tuple[str, str], list[str]]  # ids by the pod's UID and the container's name


def _record(path: str, root: str) -> Record | str:
    try:
        data = json.loads(read_bytes(path, LIMIT))["Data"]
        registered = data["RegisteredDevices"] or {}
        given: dict[tuple[str, str], list[str]] = {}
        for entry in data.get("PodDeviceEntries") or ():
            ids = [id_ for ids in entry["DeviceIDs"].values() for id_ in ids]
            given.setdefault((entry["PodUID"], entry["ContainerName"]), []).extend(ids)
        return Record({str(n): list(map(str, ids or ())) for n, ids in registered.items()}, given)
    except FileNotFoundError:
        return Record({}, {})
    except OSError as error:
        return f"the kubelet's checkpoint cannot be read: {error.strerror}"
    except (
        DocumentError, ValueError, KeyError, TypeError, AttributeError, RecursionError,
    ):  # fmt: skip
        return f"{path[len(root) :]} is not a checkpoint of a kubelet"


def _nodes(inventory: Inventory | None) -> dict[str, set[str]]:
    """Return the names of the device nodes that a container needs, by the device's id."""
    nodes: dict[str, set[str]] = {}
    for gpu in inventory.gpus if inventory else ():
        own = {os.path.basename(gpu.node.path)} if gpu.node else set()
        nodes[gpu.uuid] = own
        for mig in gpu.mig:
            nodes[mig.uuid] = own | {os.path.basename(node.path) for node in mig.nodes}
    return nodes


def _in_containers(node: Node, given: dict[tuple[str, str], list[str]]) -> list[Finding]:
    """Compare the devices of running containers with those that the kubelet gave them.

    Containers to which it gave none are left out, because they may have devices by a claim.
    """
    nodes = _nodes(node.inventory) if given else {}
    if not nodes:
        return []
    proc, containers = node.roots.proc, node.containers
    known = set().union(*nodes.values())
    texts = []
    for pid in procfs.processes(proc):
        container = containers.labels(pid).get("container", "")
        lines = (procfs.read_text(f"{proc}/{pid}/cgroup") or "").splitlines()
        uids = (pod_uid(line.rpartition(":")[2]) for line in lines)
        pod = next(filter(None, uids), "")
        ids = given.pop((pod, container), [])  # its first process
        devices = {id_.partition("::")[0] for id_ in ids}
        if not devices or not devices <= nodes.keys():
            continue  # no devices, or a plugin with other ids
        wanted = set().union(*(nodes[device] for device in devices))
        folders = (f"{proc}/{pid}/root/dev{folder}" for folder in ("", "/nvidia-caps"))
        has = known & {name for folder in folders for name in procfs.list_directory(folder)}
        lacks, besides = sorted(wanted - has), sorted(has - wanted)
        said = [f"lacks {', '.join(lacks)}"] if lacks else []
        if besides and not _is_privileged(proc, pid):
            said.append(f"also has {', '.join(besides)}")
        if said:
            name = containers.name_of_process(pid)
            of = f"the kubelet gave {', '.join(sorted(devices))} to {name}"
            texts.append(f"{of}, which {' and '.join(said)}")
    return Finding.each(Reason.PodDevicesDiffer, "error", texts)


def _is_privileged(proc: str, pid: int) -> bool:
    match = CAPABILITIES.search(procfs.read_text(f"{proc}/{pid}/status") or "")
    return match is not None and bool(int(match[1], 16) >> CAP_SYS_ADMIN & 1)


def _devices(resources: dict[str, list[str]], gpus: int, folder: str) -> Iterator[Finding]:
    own = {name: ids for name, ids in resources.items() if name.startswith(PREFIX)}
    number = sum(len(ids) for ids in own.values())
    plugins = _plugins(folder)
    has_dra = any(name.endswith("gpu.nvidia.com-reg.sock") for name in plugins)
    if not number and not has_dra:
        gone = [name for name, alive in plugins.items() if not alive]
        text = f"{count(gpus, 'GPU')}, but no device of {PREFIX}* is registered"
        text += f"; nothing listens on {gone[0]}" if gone else ""
        text += "" if plugins else "; no NVIDIA device plugin has a socket"
        yield Finding(Reason.ResourceNotListed, "error", text)
    elif 0 < number < gpus:
        text = f"the kubelet has {count(number, 'device')} for {count(gpus, 'GPU')}"
        yield Finding(Reason.DeviceUnhealthy, "warning", text)


def _plugins(folder: str) -> dict[str, bool]:
    found = {}
    for name in (PLUGINS, "plugins_registry"):
        for file in procfs.list_directory(f"{folder}/{name}"):
            path = f"{folder}/{name}/{file}"
            with contextlib.suppress(OSError):
                if "nvidia" in file and stat.S_ISSOCK(os.stat(path).st_mode):
                    found[path] = _listens(path)
    return found


def _listens(path: str) -> bool:
    """Report whether a process listens on a socket; True if that is unknown."""
    folder, name = os.path.split(path)
    here = os.open(folder, os.O_PATH | os.O_CLOEXEC)
    try:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(TIMEOUT_S)
            # a socket's path has at most 107 bytes
            return probe.connect_ex(f"/proc/self/fd/{here}/{name}") != errno.ECONNREFUSED
    finally:
        os.close(here)


def _waiting(root: str) -> Iterator[Finding]:
    """Yield a finding if a status file is missing for which pods wait in Init."""
    folder = f"{root}/{VALIDATIONS}"
    missing = [name for name in WAITED_FOR if not os.path.lexists(f"{folder}/{name}")]
    if missing and os.path.isdir(folder):
        text = f"pods wait in Init: /{VALIDATIONS} has no {' and no '.join(missing)}"
        yield Finding(Reason.PodsWaitInInit, "warning", text)


LIMITS = "sys/fs/inotify"
INSTANCE = "anon_inode:inotify"
WATCH = "inotify wd:"
BUDGET_S = 0.25
"""Limit for the count: a node with a thousand containers has some hundred thousand descriptors."""
FEW_INSTANCES = 8  # A kubelet with an engine and an agent needs so many
FEW_WATCHES = 1024
MANY = 10  # One process in so many that even root may not read does not matter
SHARE = 0.9  # Above this part of a limit, too little is left


@dataclass(slots=True)
class Used:
    """The inotify instances and watches of a user's processes."""

    instances: int = 0
    watches: int = 0
    counted: int = 0  # processes
    unseen: float = 0  # processes that could not be counted; infinite if the time was over


def watches(node: Node, *, uid: int = 0, budget_s: float = BUDGET_S) -> Part:
    """Check that root has inotify instances and watches left."""
    proc = node.roots.proc
    instances, watches = (_limit(proc, f"max_user_{name}") for name in ("instances", "watches"))
    if instances is None or watches is None:
        return Part.absent(f"no limits in {proc}/{LIMITS}")
    used = _count(proc, uid, budget_s)
    hidden = procfs.hidden_processes(proc)
    if procfs.in_user_namespace(proc):
        hidden = "this is another user namespace than the host's, with limits of its own"
    at_least = "at least " if used.unseen or hidden else ""
    texts = [
        f"root's processes have {at_least}{number} of {limit} inotify {name} "
        f"(fs.inotify.max_user_{name}): programs that need more cannot watch files"
        for name, number, limit, few in (
            ("instances", used.instances, instances, FEW_INSTANCES),
            ("watches", used.watches, watches, FEW_WATCHES),
        )
        if number > limit * SHARE or limit - number < few
    ]
    if texts:
        return Part.of(*Finding.each(Reason.InotifyExhausted, "warning", texts))
    if hidden:
        return Part.absent(f"root's processes are not counted: {hidden}")
    text = f"{at_least}{used.instances} of {instances} instances, "
    text += f"{used.watches} of {watches} watches"
    if used.unseen * MANY <= used.counted:
        return Part.of(text)
    text += "; not every process could be counted"
    return Part.of(Finding(Reason.InotifyExhausted, "unknown", text))


def _limit(proc: str, name: str) -> int | None:
    text = (procfs.read_text(f"{proc}/{LIMITS}/{name}") or "").strip()
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else None


def _count(proc: str, uid: int, budget_s: float) -> Used:
    """Count the inotify instances and watches of a user's processes that do not end meanwhile."""
    used = Used()
    until = time.monotonic() + budget_s
    for pid in procfs.processes(proc):
        if time.monotonic() > until:
            used.unseen = math.inf
            break
        folder = f"{proc}/{pid}"
        try:
            if os.stat(folder).st_uid != uid:
                continue
            numbers = list(_inotify(folder))
        except OSError as error:
            used.unseen += isinstance(error, PermissionError)
            continue
        used.counted += 1
        used.instances += len(numbers)
        for number in numbers:
            text = procfs.read_text(f"{folder}/fdinfo/{number}") or ""
            used.watches += text.count(WATCH)
            used.unseen += len(text) >= procfs.SIZE_LIMIT
    return used


def _inotify(folder: str) -> Iterator[str]:
    fd = f"{folder}/fd"
    for number in os.listdir(fd):
        with contextlib.suppress(FileNotFoundError):
            if os.readlink(f"{fd}/{number}") == INSTANCE:
                yield number
