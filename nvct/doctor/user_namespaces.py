# SPDX-License-Identifier: Apache-2.0
"""Checks that users other than root, and containers with user namespaces, can open the GPUs.

A user namespace (user_namespaces(7)) maps a range of ids. Its processes can open a device node
whose user and group are outside of the range only if the mode allows all users, or if the process
kept the group. Cold; changes nothing.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from nvct.doctor.containers import gpu_nodes
from nvct.doctor.hardware import driver_nodes
from nvct.doctor.model import Finding, Part, Severity
from nvct.doctor.node import Node
from nvct.doctor.reasons import Reason
from nvct.host import procfs
from nvct.host.roots import Roots

READ_WRITE = 0o6
STORAGE = ".local/share/containers/storage"
"""Storage of a user's Podman, below the home: containers-storage.conf(5)."""
FIRST_ID, IDS = 100_000, 65_536  # useradd(8) gives these to the first user
NAMESPACES = 256  # Limit of user namespaces that are checked


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """The user who runs the check."""

    uid: int
    name: str = ""
    groups: frozenset[int] = frozenset()
    runs_containers: bool = False

    def __str__(self) -> str:
        return f"{self.name} ({self.uid})" if self.name else f"{self.uid}"


def check(node: Node, user: User | None) -> Part:
    """Check the calling user, this process's user namespace, and those of containers."""
    roots = node.roots
    nodes = driver_nodes(roots.dev)
    if not nodes:
        return Part.absent("no device node of the driver")
    found = [*_here(roots, nodes)]
    if user and not found:
        found += _of_user(user, nodes)
    if user and any(engine.engine == "podman" for engine in node.engines):
        found += _subordinate(roots, user)
    found += _of_containers(node)
    text = "no user namespace keeps processes from the GPUs"
    return Part.of(*found, otherwise=text)


def who_asks(env: Mapping[str, str]) -> User | None:
    """Return the user of this process, None for root."""
    uid = os.geteuid()
    if not uid:
        return None
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        name = ""
    return User(
        uid=uid,
        name=name,
        groups=frozenset((os.getegid(), *os.getgroups())),
        runs_containers=os.path.isdir(f"{env.get('HOME', '')}/{STORAGE}"),
    )


def _here(roots: Roots, nodes: dict[str, os.stat_result]) -> Iterator[Finding]:
    if not procfs.in_user_namespace(roots.proc):
        return
    closed = [path for path in nodes if not os.access(path, os.R_OK | os.W_OK, effective_ids=True)]
    if closed:
        text = f"this process is in a user namespace, and cannot open {closed[0]}: "
        text += f"{_describe(nodes[closed[0]])}"
        text += f"; nor {len(closed) - 1} more" if len(closed) > 1 else ""
        yield Finding(Reason.UserNamespaceDenies, "error", text)


def _describe(status: os.stat_result) -> str:
    mode = stat.S_IMODE(status.st_mode)
    return f"mode {mode:04o}, user {status.st_uid}, group {status.st_gid}"


def _of_user(user: User, nodes: dict[str, os.stat_result]) -> Iterator[Finding]:
    """Yield a finding about the first node that is not open to all users."""
    for path, status in nodes.items():
        if status.st_mode & READ_WRITE == READ_WRITE or status.st_uid == user.uid:
            continue
        group = status.st_gid
        opens_to_group = status.st_mode >> 3 & READ_WRITE == READ_WRITE
        if group in user.groups and opens_to_group:
            text = f"user {user} can open {path} only by group {group}: rootless containers need "
            text += "`--group-add keep-groups`, and crun as their runtime"
            yield Finding(Reason.DeviceNodesRestricted, "note", text)
            return
        text = f"user {user} cannot open {path}: {_describe(status)}"
        remedy = f"Run `chmod 666 {path}`, and set the driver's parameter NVreg_DeviceFileMode."
        if opens_to_group and group:
            remedy = f"Run `usermod -aG {group} {user.name or user.uid}`, and log in again."
        yield Finding(Reason.DeviceNodesRestricted, "warning", text, remedy)
        return


def _subordinate(roots: Roots, user: User) -> Iterator[Finding]:
    source = re.search(
        r"^subid:\s*(\S+)", procfs.read_text(f"{roots.etc}/nsswitch.conf") or "", re.MULTILINE
    )
    if source and source[1] != "files":
        text = f"the subordinate ids of user {user} come from {source[1]}, not from /etc/subuid"
        yield Finding(Reason.SubordinateIdsMissing, "unknown", text)
        return
    names = {str(user.uid), *([user.name] if user.name else [])}
    for file in ("subuid", "subgid"):
        path = f"{roots.etc}/{file}"
        listed = procfs.read_text(path) or ""
        is_closed = os.path.exists(path) and not os.access(path, os.R_OK, effective_ids=True)
        if is_closed or len(listed) >= procfs.SIZE_LIMIT:
            continue  # the user may be in the part that cannot be read
        if not any(line.split(":")[0].strip() in names for line in listed.splitlines()):
            severity: Severity = "warning" if user.runs_containers else "note"
            text = f"/etc/{file} has no line for user {user}: Podman can run only images "
            text += "with no files of users other than root"
            start = max([FIRST_ID, *(ids.stop for ids in _ranges(listed, ":"))])
            ids = f"{start}-{start + IDS - 1}"
            command = f"usermod --add-subuids {ids} --add-subgids {ids} {user.name or user.uid}"
            remedy = f"Run `sudo {command}`, then `podman system migrate`."
            yield Finding(Reason.SubordinateIdsMissing, severity, text, remedy)


def _of_containers(node: Node) -> Iterator[Finding]:
    proc = node.roots.proc
    seen = {procfs.link(f"{proc}/self/ns/user")}
    for pid in procfs.processes(proc):
        folder = f"{proc}/{pid}"
        namespace = procfs.link(f"{folder}/ns/user")
        if not namespace or namespace in seen or len(seen) > NAMESPACES:
            continue
        gpus = _gpu_nodes(f"{folder}/root/dev")
        if not gpus:
            continue  # another process of this namespace may have a GPU
        container = node.containers.name_of_process(pid)
        if not container:
            continue  # a program's own sandbox, such as a browser's
        seen.add(namespace)
        name, status = gpus[0]
        if not _may_open(folder, status):
            text = f"container {container} runs in a user namespace, and cannot open "
            text += f"/dev/{name}: {_describe(status)}"
            yield Finding(Reason.UserNamespaceDenies, "warning", text)


def _gpu_nodes(dev: str) -> list[tuple[str, os.stat_result]]:
    """Return the GPU nodes in a container's /dev, with their status.

    Links are skipped, because a container's links could lead to files of this host.
    """
    if os.path.islink(dev):
        return []
    nodes = []
    for name in gpu_nodes(dev):
        with contextlib.suppress(OSError):
            status = os.lstat(f"{dev}/{name}")
            if not stat.S_ISLNK(status.st_mode):
                nodes.append((name, status))
    return nodes


def _may_open(folder: str, node: os.stat_result) -> bool:
    """Report whether a node's mode lets a process open it; True if that is unknown."""
    if node.st_mode & READ_WRITE == READ_WRITE:
        return True
    text = procfs.read_text(f"{folder}/status") or ""
    uids, gids = _ids(text, "Uid"), _ids(text, "Gid") | _ids(text, "Groups")
    if not uids:
        return True
    if node.st_uid in uids:
        return node.st_mode >> 6 & READ_WRITE == READ_WRITE
    if node.st_gid in gids:
        return node.st_mode >> 3 & READ_WRITE == READ_WRITE
    return _maps(f"{folder}/uid_map", node.st_uid) and _maps(f"{folder}/gid_map", node.st_gid)


def _ids(text: str, field: str) -> set[int]:
    match = re.search(rf"^{field}:[ \t]*([\d \t]*)$", text, re.MULTILINE)
    return set(map(int, match[1].split())) if match else set()


def _maps(path: str, number: int) -> bool:
    """Report whether a map has an id: then root of its namespace may act as the id's owner."""
    return any(number in ids for ids in _ranges(procfs.read_text(path) or ""))


def _ranges(text: str, separator: str | None = None) -> Iterator[range]:
    """Yield the ids of each line, whose fields are a name or id, the first id and their number."""
    for _, *words in (line.split(separator) for line in text.splitlines() if line.strip()):
        is_number = (word.isascii() and word.isdecimal() and len(word) < 11 for word in words)
        if len(words) == 2 and all(is_number):
            yield range(int(words[0]), int(words[0]) + int(words[1]))
