# SPDX-License-Identifier: Apache-2.0
"""A container as NRI shows it, in the form of runtime-spec: so the rules for config.json hold."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from nvct.container.request import device_numbers
from nvct.container.request.case import (
    CONTAINERD_NAME,
    CONTAINERD_NAMESPACE,
    CONTAINERD_TYPE,
    CRIO_NAME,
    CRIO_NAMESPACE,
    CRIO_TYPE,
)
from nvct.container.request.resolve import CAP_SYS_ADMIN
from nvct.container.request.volume_mounts import MOUNT_SOURCE
from nvct.host import procfs
from nvct.linux.mountinfo import Mount
from nvct.nri import nri_pb2 as api
from nvct.oci.bundle import Bundle, clean

KIND = "container"
WITHOUT_NODES = ("shm", "pts", "mqueue", "hugepages")
"""Folders of /dev that have no device of a driver, and that pods can fill."""
VAR_RUN = "/var/run"
"""A link to /run, most often."""
OF_THE_NODE = (
    "/dev", "/etc/cdi", "/run/cdi", "/run/containerd/containerd.sock", "/run/crio/crio.sock",
    "/run/nri", "/run/nvct", VAR_RUN,
)  # fmt: skip
OF_THE_KUBELET = ("device-plugins", "dra_manager_state", "plugins_registry")
"""By these, somebody could give himself devices: nodes, and what engine and kubelet believe."""
RUN, SOCKETS = "/run/", "/var/run/nri"
SUBPATHS = "/volume-subpaths/"
"""A folder of a pod, where the kubelet mounts what a subPath names (pkg/volume/util/subpath)."""
MOUNTS = "/proc/self/mountinfo"
EVERYTHING = {"allow": True, "type": "a", "access": "rwm"}


def name_of(pod: api.PodSandbox, container: api.Container) -> str:
    """Return the name of a container for a log: namespace/pod/container, as far as it has them."""
    return "/".join(filter(None, (pod.namespace, pod.name.strip("/"), container.name.strip("/"))))


def bundle(
    pod: api.PodSandbox,
    container: api.Container,
    adjust: api.ContainerAdjustment | None = None,
    nodes: Iterable[dict[str, Any]] = (),
    kubelet: str = "/var/lib/kubelet",
) -> Bundle:
    """Return a container, with what plugins change in it, as the config.json of a bundle.

    The pod's own names replace what annotations say of them; Docker has no pods. A container that
    may use every device counts as privileged: NRI shows no capabilities. So it is not judged
    whether it could leave its control group by the host's processes or mounts; those of /dev count
    by their nodes.

    Args:
        nodes: further linux.devices, those of CDI names.
    """
    linux = container.linux
    rules = [_rule(rule) for rule in linux.resources.devices]
    kinds = {namespace.type for namespace in linux.namespaces}
    is_privileged = any(rule["allow"] and rule["type"] == "a" for rule in rules)
    added = adjust or api.ContainerAdjustment()
    devices = [_device(device) for device in (*linux.devices, *added.linux.devices)]
    mounts = [_mount(mount) for mount in (*container.mounts, *added.mounts)]
    sources = {clean(mount["source"]) for mount in mounts}
    if any(SUBPATHS in source for source in sources):
        text = procfs.read_text(MOUNTS) or ""
        sources = {source_of(each, kubelet, text) for each in sources}
    if any(_is_of_node(source, kubelet) for source in sources):
        rules.append(EVERYTHING)
    names = {
        CONTAINERD_TYPE: KIND, CONTAINERD_NAMESPACE: pod.namespace,
        CONTAINERD_NAME: container.name,
        CRIO_TYPE: KIND, CRIO_NAMESPACE: pod.namespace, CRIO_NAME: container.name,
    }  # fmt: skip
    document = {
        "process": {
            "env": [*container.env, *(f"{pair.key}={pair.value}" for pair in added.env)],
            "capabilities": {"bounding": [CAP_SYS_ADMIN] if is_privileged else []},
        },
        "annotations": {**container.annotations, **(names if pod.namespace else {})},
        "mounts": [mount for mount in mounts if mount["source"] == MOUNT_SOURCE],
        "linux": {
            "devices": [*devices, *nodes, *_mounted(sources)],
            "resources": {"devices": rules},
            "namespaces": [{"type": kind} for kind in sorted(kinds | {"cgroup", "pid"})],
            "cgroupsPath": linux.cgroups_path,
        },
    }  # fmt: skip
    return Bundle(name_of(pod, container), json.dumps(document))


def source_of(path: str, kubelet: str, mountinfo: str) -> str:
    """Return what the kubelet has mounted for a subPath, if it has to do with one of the places.

    A file system may be mounted elsewhere here than on the host. So places are compared by file
    system and path in it. Those of /run that the plugin's pod does not see are beside SOCKETS.

    Returns:
        The path of the place or within it, "/" if the mount is not seen here; else `path`.
    """
    if SUBPATHS not in path:
        return path
    found = _location(path, mountinfo)
    if found is None or found.target != path:
        return "/"
    sockets = _location(os.path.realpath(SOCKETS), mountinfo)
    for place in _places(kubelet):
        if place == VAR_RUN:
            continue  # what is in it counts
        where = _location(os.path.realpath(place), mountinfo)
        if place.startswith(RUN) and sockets is not None:
            in_run = place.removeprefix(RUN)
            where = sockets._replace(path=f"{sockets.path.removesuffix('nri')}{in_run}")
        if where is not None and found.system == where.system:
            ours, theirs = f"{where.path.rstrip('/')}/", f"{found.path.rstrip('/')}/"
            if theirs.startswith(ours):
                return clean(f"{place}/{theirs.removeprefix(ours)}")
            if ours.startswith(theirs):
                return place
    return path


class Location(NamedTuple):
    """A path of a mounted file system: where that is mounted, its numbers, and the path in it."""

    target: str
    system: tuple[int, int]
    path: str


def _location(path: str, mountinfo: str) -> Location | None:
    """Return where a path is; a later mount covers an earlier one. None if no mount is seen."""
    best, length = "", -1
    for line in mountinfo.split("\n"):
        target = (*line.split(" ", 5), *("",) * 5)[4]
        covers = bool(target) and f"{path}/".startswith(f"{target.rstrip('/')}/")
        if covers and len(target) >= length:
            best, length = line, len(target)
    if not best:
        return None
    mount = Mount(best)
    rest = path.removeprefix(mount.target.rstrip("/"))
    return Location(mount.target, (mount.major, mount.minor), mount.root.rstrip("/") + rest or "/")


def _places(kubelet: str) -> tuple[str, ...]:
    return (*OF_THE_NODE, *(f"{kubelet}/{name}" for name in OF_THE_KUBELET))


def _is_of_node(source: str, kubelet: str) -> bool:
    """Report whether a source is or holds a folder of the node by which devices are given."""
    if source.startswith(f"{VAR_RUN}/"):
        source = source.removeprefix("/var")
    places = _places(kubelet)
    is_within = any(source.startswith(f"{place}/") for place in places if place != "/dev")
    return is_within or any(f"{place}/".startswith(f"{source.rstrip('/')}/") for place in places)


def _mount(mount: api.Mount) -> dict[str, Any]:
    return {
        "destination": mount.destination,
        "type": mount.type,
        "source": mount.source,
        "options": list(mount.options),
    }


def _mounted(sources: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield the nodes in mounts of folders below the host's /dev, which here is the plugin's own.

    The container's control group refuses them, if it is not privileged; they count nevertheless.
    """
    found: device_numbers.Nodes = {}
    for source in sources:
        if source.startswith("/dev/") and source.split("/")[2] not in WITHOUT_NODES:
            device_numbers.add_mounted(found, source, 1)
    for (kind, major, minor), path in found.items():
        yield {"path": path, "type": kind, "major": major, "minor": minor}


def _device(device: api.LinuxDevice) -> dict[str, Any]:
    return {
        "path": device.path,
        "type": device.type,
        "major": device.major,
        "minor": device.minor,
    }


def _rule(rule: api.LinuxDeviceCgroup) -> dict[str, Any]:
    found: dict[str, Any] = {"allow": rule.allow, "type": rule.type or "a", "access": rule.access}
    for member in ("major", "minor"):
        if rule.HasField(member):
            found[member] = getattr(rule, member).value
    return found
