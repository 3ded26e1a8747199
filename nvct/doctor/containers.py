# SPDX-License-Identifier: Apache-2.0
"""Finds the container of a process by the id in its cgroup, and the container's name.

Names come from the kubelet's links in /var/log/containers (pod, namespace and container), Docker's
and Podman's state. No API server or engine is asked. Without a name, the first digits of the id
are the container's label; a process outside of containers has no labels.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import TypeAlias

from nvct.engine.engine_files import docker_folder, podman_names, read_object
from nvct.host import procfs
from nvct.host.procfs import CONTAINER_ID

Labels: TypeAlias = Mapping[str, str]

USERS = re.compile(r"/user\.slice/user-[1-9]\d*\.slice/")
"""The cgroups of a user's own systemd, in which rootless Podman has its containers."""
LOG = re.compile(r"([^_]+)_([^_]+)_(.+)-([0-9a-f]{64})\.log")
"""POD_NAMESPACE_CONTAINER-ID.log: pkg/kubelet/kuberuntime/legacy.go of Kubernetes."""
KUBELET = "var/log/containers"
PODMAN = tuple(
    f"var/lib/containers/storage/{driver}-containers/{name}.json"
    for driver in ("overlay", "vfs", "btrfs", "zfs")
    for name in ("containers", "volatile-containers")
)
SHORT = 12  # Digits of an id, as engines show it
CACHED = 4096


class Containers:
    """The containers of one host."""

    def __init__(self, root: str = "/") -> None:
        self._root = root
        self._kubelet: dict[str, Labels] = {}
        self._podman: dict[str, dict[str, str]] = {}
        self._docker: dict[str, str] = {}
        self._docker_folder = f"{docker_folder(root)}/containers"
        self._read: dict[str, tuple[int, ...]] = {}

    def refresh(self) -> None:
        """Read anew which containers exist."""
        try:
            names = os.listdir(self._path(KUBELET))
        except OSError:
            names = []
        found = (LOG.fullmatch(name) for name in names)
        self._kubelet = {
            m[4]: {"container": m[3], "namespace": m[2], "pod": m[1]} for m in found if m
        }
        for path in PODMAN:
            if self._has_changed(path):
                self._podman[path] = podman_names(self._path(path))
        if len(self._docker) > CACHED:
            self._docker.clear()

    def labels(self, pid: int) -> Labels:
        """Return the labels of a process's container; {} without one, or after its end."""
        id_, labels = self._find(pid)
        return labels or ({"container": id_[:SHORT]} if id_ else {})

    def id_of(self, pid: int) -> str:
        """Return the id of a process's container; "" without one, or after its end."""
        return self._find(pid)[0]

    def first_processes(self, proc: str) -> Iterator[tuple[str, int]]:
        """Yield the id and the first process of each container."""
        seen = {""}
        for pid in procfs.processes(proc):
            if (id_ := self.id_of(pid)) not in seen:
                seen.add(id_)
                yield id_, pid

    def name_of_process(self, pid: int) -> str:
        """Return the name of a process's container, as `joined`; its short id without a name."""
        return joined(self.labels(pid))

    def names(self) -> dict[str, str]:
        """Return the names of all containers, running or not, by id."""
        podman = [id_ for names in self._podman.values() for id_ in names]
        try:
            docker = sorted(os.listdir(self._docker_folder))
        except OSError:
            docker = []
        found = {id_: self.name_of_id(id_) for id_ in (*self._kubelet, *podman, *docker)}
        return {id_: name for id_, name in found.items() if name}

    def name_of_id(self, id_: str) -> str:
        """Return the name of a container, as namespace/pod/container; "" if none is known."""
        return joined(self._known(id_))

    def _find(self, pid: int) -> tuple[str, Labels]:
        """Return the id and labels of a process's container; ("", {}) without one.

        Users choose the names of cgroups below their slice, and a container those below its own.
        So a user's container gets no labels, and the kubelet's outermost container comes first.
        """
        try:
            with open(self._path(f"proc/{pid}/cgroup"), encoding="utf-8") as file:
                lines = list(file)
        except (OSError, UnicodeDecodeError):
            return "", {}
        every = list(dict.fromkeys(CONTAINER_ID.findall("".join(lines))))
        users = {id_ for line in lines if USERS.search(line) for id_ in CONTAINER_ID.findall(line)}
        kubelet = [id_ for id_ in every if id_ in self._kubelet]
        for id_ in (*kubelet, *reversed(every)):
            if id_ not in users and (labels := self._known(id_)):
                return id_, labels
        return (every[-1] if every else ""), {}

    def _known(self, id_: str) -> Labels:
        if id_ in self._kubelet:
            return self._kubelet[id_]
        podman = (names[id_] for names in self._podman.values() if id_ in names)
        name = next(podman, "") or self._docker_name(id_)
        return {"container": name} if name else {}

    def _docker_name(self, id_: str) -> str:
        if id_ not in self._docker:
            name = read_object(f"{self._docker_folder}/{id_}/config.v2.json").get("Name")
            if not isinstance(name, str):
                return ""
            self._docker[id_] = name.lstrip("/")
        return self._docker[id_]

    def _has_changed(self, path: str) -> bool:
        try:
            found = os.stat(self._path(path))
        except OSError:
            return False
        signature = (found.st_ino, found.st_size, found.st_mtime_ns)
        is_new = self._read.get(path) != signature
        self._read[path] = signature
        return is_new

    def _path(self, name: str) -> str:
        return os.path.join(self._root, name)


def joined(labels: Labels) -> str:
    """Return labels as a name, namespace/pod/container; "" without labels."""
    parts = (labels.get(name, "") for name in ("namespace", "pod", "container"))
    return "/".join(part for part in parts if part)


GPU_NODE = re.compile(r"nvidia\d+")


def gpu_nodes(dev: str) -> list[str]:
    """Return the names of the GPUs' device nodes in a folder."""
    return [name for name in procfs.list_directory(dev) if GPU_NODE.fullmatch(name)]
