# SPDX-License-Identifier: Apache-2.0
"""What the mounts of a container show of the node: devices, engines' sockets, the kernel's files.

NRI has the paths of the host, of which the plugin sees only some. What the kubelet has mounted for
a pod has a path below its pods/, which says nothing: there, the file system and the path in it
count. Contract: one reading of the plugin's mounts for a container, and bounded work.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import NamedTuple

from nvct.container import host_view
from nvct.container.host_view import ACCESS, CGROUP_TYPES, KERNEL_TYPES, Source
from nvct.errors import DocumentError, HostError, NotPermittedError
from nvct.linux.files import read_bytes
from nvct.linux.mountinfo import Mount, unescape
from nvct.nri import nri_pb2 as api
from nvct.oci.bundle import clean

SOURCES = 4096
"""Different sources of a container that are judged: 10 us each."""
MOUNTS, LIMIT = "/proc/self/mountinfo", 16 << 20
DEV, RUN, VAR_RUN = "/dev", "/run", "/var/run"
"""VAR_RUN is a link to RUN, most often."""
OF_THE_NODE = (
    DEV, "/etc/cdi", "/run/cdi", "/run/nri", "/run/nvct", VAR_RUN,
    "/run/containerd", "/run/crio", "/run/docker", "/run/docker.sock", "/run/cri-dockerd.sock",
    "/run/podman", "/run/k3s/containerd", "/run/k0s", "/var/snap/microk8s/common/run",
    "/etc/kubernetes/manifests", "/var/lib/rancher/k3s/agent/pod-manifests",
    "/var/lib/rancher/rke2/agent/pod-manifests",
)  # fmt: skip
OF_THE_KUBELET = ("device-plugins", "dra_manager_state", "plugins", "plugins_registry", "pods")
"""By these, somebody could give himself devices: nodes, and what engine and kubelet believe."""
OF_A_SANDBOX = "/io.containerd.grpc.v1.cri/sandboxes/"
"""containerd's folder for what it mounts into each container of a pod: shm, resolv.conf."""
SUBPATHS, LOCAL = "/volume-subpaths/", "/volumes/kubernetes.io~local-volume/"
"""Folders of a pod in which each entry is a mount (pkg/volume/util/subpath, local of kubelet)."""
OF_KERNEL = {
    "proc": "/proc", "sysfs": "/sys", **dict.fromkeys(CGROUP_TYPES, host_view.UNIFIED),
    **dict.fromkeys(KERNEL_TYPES, "/sys/kernel"),
}  # fmt: skip
"""Where the host has file systems of the kernel. The plugin's own are others, and read-only."""
SHOWN = [
    Mount(f"1 1 0:1 / {target} rw - {kind} none rw")
    for kind, target in (
        ("proc", "/proc"), ("sysfs", "/sys"), ("cgroup2", host_view.UNIFIED)
    )
]  # fmt: skip


class Place(NamedTuple):
    """A path of a mounted file system: where that is mounted, its numbers, and the path in it."""

    target: str
    system: tuple[int, int]
    kind: str
    path: str


class Table:
    """The mounts that the plugin sees, by their targets; a later one covers an earlier one."""

    def __init__(self, text: str) -> None:
        lines = (line for line in text.split("\n") if line)
        self._lines = {unescape((*line.split(" ", 5), *[""] * 5)[4]): line for line in lines}

    def place(self, path: str) -> Place | None:
        """Return where a path is, None if no mount is seen."""
        target = path.rstrip("/")
        while (line := self._lines.get(target or "/")) is None:
            if not target:
                return None
            target = target.rpartition("/")[0]
        mount = Mount(line)
        within = mount.root.rstrip("/") + path.removeprefix(target).rstrip("/")
        return Place(target or "/", (mount.major, mount.minor), mount.fstype, within or "/")


class Node:
    """The places of a node by which devices are given.

    Args:
        kubelet: its folder.
        sockets: the folder of the engine's socket for plugins.
    """

    def __init__(self, kubelet: str, sockets: str) -> None:
        self._pods = f"{kubelet}/pods/"
        places = *OF_THE_NODE, sockets, *(f"{kubelet}/{name}" for name in OF_THE_KUBELET)
        self._places = tuple(dict.fromkeys(f"{_in_run(place)}/" for place in places))
        self._closed = tuple(set(self._places) - {f"{DEV}/", f"{_in_run(self._pods)}"})
        self._seen = ("/etc/cdi", "/var/run/cdi", sockets, DEV, kubelet)

    def gives(self, path: str) -> bool:
        """Report whether a path of the host is, holds or is in a place by which devices are given.

        Of the kubelet's pods/, what belongs to one volume, or is a file of a pod, is none.
        """
        path = _in_run(path)
        if path.startswith(self._pods):
            parts = path.removeprefix(self._pods).split("/")
            return len(parts) < 4 and parts[1:] != ["etc-hosts"]
        if path.partition(OF_A_SANDBOX)[2].strip("/").count("/"):
            return False
        folder = f"{path.rstrip('/')}/"
        return path.startswith(self._closed) or any(p.startswith(folder) for p in self._places)

    def source(self, path: str, view: View) -> str:
        """Return what a source is on the host, if that gives devices or is the kernel's.

        Returns:
            "/" if what the kubelet has mounted is not seen here; else `path`.
        """
        is_mount = SUBPATHS in path or LOCAL in path
        if not is_mount and not path.startswith(self._pods):
            return path
        found = view.table.place(path)
        if found is None or (is_mount and not _is_target(found.target, path)):
            return "/"
        if found.kind in OF_KERNEL:
            return clean(OF_KERNEL[found.kind] + found.path)
        for name in view.names(found):
            if self.gives(name) or name.startswith(f"{DEV}/"):
                return name
        return path

    def view(self, text: str | None = None) -> View:
        """Return what the plugin sees; `text` replaces its mountinfo."""
        return View(self._seen, text)

    def judge(self, mounts: Iterable[api.Mount]) -> tuple[list[str], bool]:
        """Return the sources of mounts on the host, and whether one of them gives every device.

        Raises:
            NotPermittedError: there are too many.
            HostError: the plugin's own mounts cannot be read.
        """
        options: dict[tuple[str, tuple[str, ...]], list[object]] = {}
        for mount in mounts:
            own = [*mount.options]
            if mount.source[:1] == "/" or host_view.is_bind({"type": mount.type, "options": own}):
                path = clean(mount.source) if mount.source[:1] == "/" else "/"
                options.setdefault((path, tuple(o for o in own if o in ACCESS)), [*own])
        if len(options) > SOURCES:
            raise NotPermittedError(
                f"the container mounts {len(options)} sources, and {SOURCES} can be judged",
                hint="mount a folder instead of each file in it",
            )
        view = self.view()
        sources = {key: self.source(key[0], view) for key in options}
        shown = [Source(source.rstrip("/"), options[key]) for key, source in sources.items()]
        is_wide = (
            any(map(self.gives, sources.values()))
            or bool(host_view.way_to_settings(shown, SHOWN))
            or "proc" in [mount.fstype for _, mount, _ in host_view.shared(shown, SHOWN)]
        )
        return list(dict.fromkeys(sources.values())), is_wide


class View:
    """What the plugin sees of the host's mounts, read once and only if it is asked for.

    Args:
        seen: folders of the host that the plugin has under their own names.
    """

    def __init__(self, seen: Iterable[str], text: str | None = None) -> None:
        self._folders, self._text = tuple(seen), text

    @cached_property
    def table(self) -> Table:
        """The mounts.

        Raises:
            HostError: they cannot be read.
        """
        if self._text is not None:
            return Table(self._text)
        try:
            return Table(read_bytes(MOUNTS, LIMIT).decode("utf-8", "surrogateescape"))
        except (OSError, DocumentError) as error:
            raise HostError(f"{MOUNTS} cannot be read: {error}") from error

    @cached_property
    def _roots(self) -> list[tuple[tuple[int, int], str, str]]:
        """File systems, each with a folder in it and the path that this has on the host."""
        roots = []
        for folder in self._folders:
            place = self.table.place(os.path.realpath(folder))
            if place is not None:
                on_host, within = _in_run(folder).split("/"), place.path.rstrip("/").split("/")
                while len(within) > 1 and len(on_host) > 1 and on_host[-1] == within[-1]:
                    del on_host[-1], within[-1]
                roots.append((place.system, "/".join(within), "/".join(on_host)))
        return list(dict.fromkeys(roots))

    def names(self, place: Place) -> Iterator[str]:
        """Yield the paths of the host that a place may have, or that it holds."""
        path = place.path.rstrip("/")
        for system, within, on_host in self._roots:
            if system == place.system:
                if path == within or path.startswith(f"{within}/"):
                    yield on_host + path.removeprefix(within) or "/"
                elif within.startswith(f"{path}/"):
                    yield on_host or "/"


def _in_run(path: str) -> str:
    return path.removeprefix("/var") if path.startswith(f"{VAR_RUN}/") else path


def _is_target(target: str, path: str) -> bool:
    """Report whether a path of the kubelet is a mount, or is in a volume that is one."""
    if SUBPATHS in path:
        return target == path
    volume = path.partition(LOCAL)
    return target.startswith(f"{volume[0]}{LOCAL}{volume[2].partition('/')[0]}")
