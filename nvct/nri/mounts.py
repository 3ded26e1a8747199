# SPDX-License-Identifier: Apache-2.0
"""Judges what a container's mounts show of the node: devices, engines' sockets, kernel's files.

NRI gives paths of the host, of which the plugin sees only some. A path may be another name of a
closed place: a link, a bind mount, a driver's root. The path of a volume that the kubelet has
mounted for a pod does not show what is in it, so its file system and the path in that count.
Paths that the kubelet and the engine make for each pod are accepted without a look at the plugin's
mounts, of which a pod can make many. Contract: for one container, the mounts are read at most
once, and the work is bounded.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator
from functools import cached_property
from math import inf
from typing import NamedTuple

from nvct.container import host_view
from nvct.container.host_view import CGROUP_TYPES, KERNEL_TYPES, Source
from nvct.errors import HostError
from nvct.linux.mountinfo import Mount, unescape
from nvct.nri import nri_pb2 as api
from nvct.nri.waiting import Reading
from nvct.oci.bundle import clean
from nvct.paths import AGENT_DIR, NRI_DIR, RUN_DIR

JUDGED_S = 0.5
"""The longest time for a container's mounts."""
LATE = f"it takes longer than {JUDGED_S} s"
PATH_MAX = 4096
MOUNTS = "/proc/self/mountinfo"
DEV, RUN, VAR_RUN = "/dev", "/run", "/var/run"
"""VAR_RUN is a link to RUN, most often."""
OF_THE_NODE = (
    DEV, "/proc", "/etc/cdi", "/run/cdi", "/run/nri", RUN_DIR, AGENT_DIR, NRI_DIR,
    "/etc/nvidia-container-runtime",
    "/run/containerd", "/run/crio", "/run/docker", "/run/docker.sock", "/run/cri-dockerd.sock",
    "/run/podman", "/run/k3s/containerd", "/run/k0s", "/var/snap/microk8s/common/run",
    "/run/buildkit", "/run/dbus", "/run/libvirt", "/run/systemd/private",
    "/var/lib/incus", "/var/lib/lxd", "/var/snap/lxd/common/lxd",
    "/etc/kubernetes/manifests", "/var/lib/rancher/k3s/agent/pod-manifests",
    "/var/lib/rancher/rke2/agent/pod-manifests",
)  # fmt: skip
OF_THE_KUBELET = ("device-plugins", "dra_manager_state", "plugins", "plugins_registry", "pods")
"""Folders of the kubelet. By them and OF_THE_NODE, somebody could give himself devices: they have
device nodes, sockets, or files that the engine or the kubelet trusts."""
DRIVER_ROOT = "/run/nvidia/driver"
"""The root of a driver container, which has the host's files too."""
OF_A_SANDBOX = re.compile(
    r"/.*/(io\.containerd\.grpc\.v1\.cri/sandboxes/(?P<cri>[0-9a-f]{64})"
    r"|overlay-containers/(?P<crio>[0-9a-f]{64})/userdata)"
    r"/(shm|hostname|hosts|resolv\.conf|\.containerenv)"
)
"""Files that containerd and CRI-O make for each pod; no author of a pod knows its id before."""
OF_A_POD = re.compile(
    r"etc-hosts|containers/[^/]+/[^/]+"
    r"|volumes/kubernetes\.io~(configmap|downward-api|empty-dir|projected|secret)/[^/]+"
)
"""Paths in a pod's folder that the kubelet makes itself, so they are not mounts from elsewhere."""
MOUNTED = re.compile(
    r"(?s).*/(volume-subpaths/[^/]+/[^/]+|volumes/kubernetes\.io~local-volume)/[^/]+"
)
"""Entries of a pod's folders that are mounts (pkg/volume/util/subpath, local of kubelet)."""
OF_KERNEL = {
    "proc": "/proc", "sysfs": "/sys", **dict.fromkeys(CGROUP_TYPES, host_view.UNIFIED),
    "debugfs": "/sys/kernel/debug", "tracefs": "/sys/kernel/tracing",
    "configfs": "/sys/kernel/config", "binfmt_misc": "/proc/sys/fs/binfmt_misc",
}  # fmt: skip
"""Where the host mounts file systems of the kernel; the plugin has its own, read-only ones."""
SHOWN = [
    Mount(f"1 1 0:1 / {target} rw - {kind} none rw")
    for kind, target in (*OF_KERNEL.items(), ("tracefs", "/sys/kernel/debug/tracing"))
    if kind != "cgroup" and target.startswith("/sys")
]
OF_ITS_OWN = ("tmpfs", "devpts", "mqueue", "proc", "sysfs", *CGROUP_TYPES, *KERNEL_TYPES)
"""File systems that a runtime mounts anew; only those of the kernel show the host."""
REMOVED = "-"
"""Prefix of a name that a plugin removes (MarkForRemoval of nri/pkg/api)."""


class Place(NamedTuple):
    """A path in a mounted file system: mount point, device numbers, type, and the path in it."""

    target: str
    system: tuple[int, int]
    kind: str
    path: str


Judged = tuple[list[str], str]
"""Host sources that may show single devices; and in words what gives every device, or ""."""


class Node:
    """The places of a node that can give devices to a container.

    Args:
        kubelet: the kubelet's folder.
        further: more such places: the folders of the plugins' socket, of the record and so on.
        roots: folders that have the host's files, as `/` has.
    """

    def __init__(
        self, kubelet: str, further: Iterable[str] = (), roots: Iterable[str] = ()
    ) -> None:
        self._aliases = [(VAR_RUN, RUN)]
        self._kubelet = kubelet = self._named(clean(kubelet))
        self._pods = f"{kubelet}/pods/"
        self._roots = [self._named(clean(root)) for root in (*roots, DRIVER_ROOT) if root != "/"]
        closed = *OF_THE_NODE, *further, *(f"{kubelet}/{name}" for name in OF_THE_KUBELET)
        places = list(dict.fromkeys(map(self._named, closed)))
        self._real = {place: os.path.realpath(place) for place in (kubelet, *places)}
        view = self.view([])
        self._aliases += [(name, p) for p in self._real for name in self._others(p, view)]
        self._closed = tuple(f"{p}/" for p in places if p not in (DEV, f"{kubelet}/pods"))
        self._holders: set[str] = set()
        for name in (*places, *self._roots, *(alias for alias, _ in self._aliases)):
            parts = name.split("/")
            self._holders.update("/".join(parts[:end]) + "/" for end in range(1, len(parts) + 1))

    def view(self, paths: Iterable[str], until: float = inf) -> View:
        """Return what the plugin sees of paths."""
        return View([*self._real.values()], map(self._seen, paths), until)

    def _seen(self, path: str) -> str:
        path = self._named(path)
        if path.startswith(f"{self._kubelet}/"):
            return self._real[self._kubelet] + path.removeprefix(self._kubelet)
        return path

    def _is_own(self, path: str, pod: api.PodSandbox) -> bool:
        """Report whether a path is one that the kubelet or the engine makes for this pod."""
        folder = f"{self._pods}{pod.uid}/"
        if path.startswith(folder):
            return bool(pod.uid and OF_A_POD.fullmatch(path.removeprefix(folder)))
        found = OF_A_SANDBOX.fullmatch(path)
        return found is not None and pod.id in found.group("cri", "crio")

    def _others(self, place: str, view: View) -> Iterator[str]:
        """Yield other names of a place: a link's target, and paths in its file system."""
        names = [self._real[place]]
        with contextlib.suppress(HostError):  # `judge` will fail, too
            found = view.place(names[0])
            names += view.names(found) if found else ()
        yield from (name for name in map(self._named, names) if name != place)

    def _named(self, path: str) -> str:
        """Return a path with aliases replaced by the names of the known places."""
        for alias, name in self._aliases:
            if path == alias or path.startswith(f"{alias}/"):
                path = name + path.removeprefix(alias) or "/"
        return path

    def _on_host(self, path: str) -> str:
        """Return a path's name on the host, if it is in a root that has the host's files."""
        path = self._named(path)
        while root := next((root for root in self._roots if path.startswith(f"{root}/")), ""):
            path = self._named(path.removeprefix(root))  # it may be in itself
        return path

    def gives(self, path: str) -> bool:
        """Report whether a path of the host, or one above or below it, can give devices.

        A single volume or file of a pod, in the kubelet's pods/, cannot.
        """
        path = self._named(path)
        if path.startswith(self._pods):
            parts = path.removeprefix(self._pods).split("/")
            return len(parts) < 4 and parts[1:] != ["etc-hosts"]
        folder = f"{path.rstrip('/')}/"
        return folder in self._holders or folder.startswith(self._closed)

    def _matters(self, name: str) -> bool:
        return self.gives(name) or f"{name}/".startswith((f"{DEV}/", "/sys/"))

    def source(self, path: str, view: View) -> str:
        """Return the host's path for a source that gives devices or is the kernel's.

        Returns:
            "/" if the plugin does not see what the kubelet has mounted; for all others, the path.
        """
        path, seen = self._named(path), self._seen(path)
        found, mounted = view.place(seen), MOUNTED.match(seen)
        if found is None or (mounted and not found.target.startswith(mounted.group())):
            return "/" if mounted or path.startswith(self._pods) else path
        if found.kind in OF_KERNEL:
            return clean(OF_KERNEL[found.kind] + found.path)
        names = (self._on_host(path), *view.names(found), *view.held(found))
        return next(filter(self._matters, names), path)

    def judge(
        self, pod: api.PodSandbox, mounts: Iterable[api.Mount], known: Collection[str] = ()
    ) -> Judged:
        """Return what mounts show; mounts that cannot be judged in time give every device.

        Args:
            known: sources in GPUs' specifications. Their names count, because root writes these.
        """
        until = time.monotonic() + JUDGED_S
        sought: dict[tuple[str, tuple[str, ...]], str] = {}
        sources = []
        try:
            for number, mount in enumerate(mounts, 1):
                if number % 256 == 0:
                    check_time(until)
                path = _source(mount)
                is_known = path in known and not self._matters(self._on_host(path))
                if path and not is_known and not self._is_own(path, pod):
                    key = path, tuple(word for word in host_view.ACCESS if word in mount.options)
                    sought.setdefault(key, mount.source)
            view = self.view((path for path, _ in sought), until)
            for (path, held), shown in sought.items():
                check_time(until)
                source = self.source(path, view)
                if self.gives(source) or _has_settings(source, held):
                    return [], f"the mount of {shown}"
                sources.append(source)
        except HostError as error:
            return [], f"mounts that nvct cannot judge ({error.message})"
        return sources, ""


def check_time(until: float) -> None:
    """Raise HostError if it is later than a monotonic time."""
    if time.monotonic() > until:
        raise HostError(LATE)


class View:
    """What the plugin sees of the host's mounts, read once and only when needed.

    Args:
        folders: folders of the host that the plugin may have, under the same names.
        paths: further paths that will be asked for.
        until: the monotonic time after which an answer is too late.
    """

    def __init__(self, folders: Collection[str], paths: Iterable[str], until: float) -> None:
        self._folders, self._until = folders, until
        self._sought = sorted({f"{path.rstrip('/')}/" for path in (*folders, *paths)})

    @cached_property
    def _mounts(self) -> dict[str, str]:
        """The mounts in which the paths are, by targets; a later one covers an earlier one.

        Each mount or unmount on the node can make the reader wait for seconds.
        """
        if self._until == inf:
            return self._read()
        reading = Reading(self._read, self._until - time.monotonic())
        return reading.result(HostError(LATE))

    def _read(self) -> dict[str, str]:
        mounts: dict[str, str] = {}
        try:
            with open(MOUNTS, encoding="utf-8", errors="surrogateescape", newline="\n") as lines:
                for number, line in enumerate(lines):
                    if number % 32 == 0:
                        check_time(self._until)
                    target = unescape((*line.split(" ", 5), *[""] * 5)[4])
                    folder = f"{target.rstrip('/')}/"
                    at = bisect_left(self._sought, folder)
                    if at < len(self._sought) and self._sought[at].startswith(folder):
                        mounts[target] = line.rstrip("\n")
        except OSError as error:
            raise HostError(f"{MOUNTS} cannot be read: {error}") from error
        return mounts

    @cached_property
    def _depth(self) -> int:
        return max((target.count("/") for target in self._mounts), default=0) + 1

    def place(self, path: str) -> Place | None:
        """Return where a path is, None if no mount is seen.

        Raises:
            HostError: the mounts cannot be read.
        """
        path = path.rstrip("/")
        target = "/".join(path.split("/", self._depth)[: self._depth])
        while (line := self._mounts.get(target or "/")) is None:
            if not target:
                return None
            target = target.rpartition("/")[0]
        mount = Mount(line)
        within = mount.root.rstrip("/") + path.removeprefix(target)
        return Place(target or "/", (mount.major, mount.minor), mount.fstype, within or "/")

    @cached_property
    def _roots(self) -> list[tuple[tuple[int, int], str, str]]:
        """File systems, each with a folder in it and that folder's path on the host."""
        roots: dict[tuple[tuple[int, int], str, str], None] = {}
        for folder in self._folders:
            place = self.place(folder)
            if place is not None:
                on_host, within = folder.split("/"), place.path.rstrip("/").split("/")
                while len(within) > 1 and len(on_host) > 1 and on_host[-1] == within[-1]:
                    del on_host[-1], within[-1]
                roots[place.system, "/".join(within), "/".join(on_host)] = None
        return [*roots]

    def names(self, place: Place) -> Iterator[str]:
        """Yield the paths that a place may have on the host."""
        path = place.path.rstrip("/")
        for system, within, on_host in self._roots:
            if system == place.system and f"{path}/".startswith(f"{within}/"):
                yield on_host + path.removeprefix(within) or "/"

    def held(self, place: Place) -> Iterator[str]:
        """Yield paths of the host that may be below a place."""
        folder = f"{place.path.rstrip('/')}/"
        for system, within, on_host in self._roots:
            if system == place.system and within.startswith(folder):
                yield on_host or "/"


def _source(mount: api.Mount) -> str:
    """Return the path of the host that a mount shows: "" for none, "/" if it is not known."""
    options = set(mount.options)
    is_bind = mount.type == "bind" or bool(options & {"bind", "rbind"})
    is_removal = not mount.source and mount.destination.startswith(REMOVED)
    if "remount" in options:  # which can make another one writable
        return "/"
    if is_removal or (mount.type in OF_ITS_OWN and not is_bind):
        return ""
    is_plain = mount.source[:1] == "/" and len(mount.source) < PATH_MAX
    return clean(mount.source) if is_plain and (is_bind or not mount.type) else "/"


def _has_settings(source: str, options: Iterable[object]) -> bool:
    """Report whether a source has control groups or settings of the kernel that can be written."""
    shown = [Source(source, [*options])]
    return f"{source}/".startswith("/sys/") and bool(host_view.way_to_settings(shown, SHOWN))
