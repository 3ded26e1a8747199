# SPDX-License-Identifier: Apache-2.0
"""A container as NRI shows it, in the form of runtime-spec: so the rules for config.json hold."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from nvct.container.host_view import SHOWN_TYPES
from nvct.container.request import device_numbers
from nvct.container.request.case import (
    CONTAINERD_NAME,
    CONTAINERD_NAMESPACE,
    CONTAINERD_TYPE,
    CRIO_NAME,
    CRIO_NAMESPACE,
    CRIO_TYPE,
)
from nvct.container.request.resolve import CAP_SYS_ADMIN, VOLUME_MOUNT_NAME
from nvct.container.request.volume_mounts import MOUNT_SOURCE
from nvct.nri import adjustments
from nvct.nri import nri_pb2 as api
from nvct.nri.mounts import REMOVED, Judged
from nvct.oci.bundle import Bundle

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.container.plan.model import Edits

KIND = "container"
WITHOUT_NODES = ("shm", "pts", "mqueue", "hugepages")
"""Folders of /dev that have no device of a driver, and that pods can fill."""
VARIABLES = ("NVIDIA_", "CUDA_")
REST = {"allow": False, "type": "a", "access": "rwm"}
"""Engines refuse the devices that no rule allows; not each shows that to plugins."""
EVERYTHING = {"allow": True, "type": "a", "access": "rwm"}
IN_WORDS = "the device rule for *:*"
"""How a refusal calls EVERYTHING (nvct.container.device_access)."""


def name_of(pod: api.PodSandbox, container: api.Container) -> str:
    """Return the name of a container for a log: namespace/pod/container, as far as it has them."""
    return "/".join(filter(None, (pod.namespace, pod.name.strip("/"), container.name.strip("/"))))


def bundle(
    pod: api.PodSandbox,
    container: api.Container,
    adjust: api.ContainerAdjustment | None = None,
    edits: Sequence[Edits] = (),
    judged: Judged | None = None,
    *,
    has_env: bool = False,
) -> Bundle:
    """Return a container, with what plugins change in it, as the config.json of a bundle.

    The pod's own names replace what annotations say of them; Docker has no pods. A container that
    may use every device counts as privileged: NRI shows no capabilities, nor which paths are held
    read-only. Mounts of /dev count by their nodes.

    Args:
        edits: those of CDI names.
        judged: the mounts; None if only a request counts.
        has_env: every variable counts, not only those of NVIDIA: a pod can have millions.
    """
    linux = container.linux
    added = adjust or api.ContainerAdjustment()
    changed = added.linux
    given = (*linux.resources.devices, *changed.resources.devices)
    rules = [REST, *(_rule(rule) for rule in given)]
    is_privileged = any(rule["allow"] and rule["type"] == "a" for rule in rules)
    devices = [_device(device) for device in (*linux.devices, *changed.devices)]
    mounts = [*container.mounts, *added.mounts]
    sources, way = judged or ([], "")
    if way:
        rules.append(EVERYTHING)
    kinds = _own_namespaces(pod, linux, changed)
    env = [*container.env, *(f"{pair.key}={pair.value}" for pair in added.env)]
    names = {
        CONTAINERD_TYPE: KIND, CONTAINERD_NAMESPACE: pod.namespace,
        CONTAINERD_NAME: container.name,
        CRIO_TYPE: KIND, CRIO_NAMESPACE: pod.namespace, CRIO_NAME: container.name,
    }  # fmt: skip
    document = {
        "process": {
            "env": [text for text in env if has_env or text.startswith(VARIABLES)],
            "capabilities": {"bounding": [CAP_SYS_ADMIN] if is_privileged else []},
        },
        "annotations": {
            **container.annotations, **added.annotations, **(names if pod.namespace else {}),
        },
        "mounts": [
            _mount(mount) for mount in mounts
            if (mount.type in SHOWN_TYPES if judged else _may_ask(mount))
        ],
        "linux": {
            "devices": [*devices, *adjustments.nodes(edits), *_mounted(sources)],
            "resources": {"devices": rules},
            "namespaces": [{"type": kind} for kind in sorted(kinds)],
            "cgroupsPath": linux.cgroups_path,
            "readonlyPaths": ["/proc/sys", "/proc/bus"],
        },
    }  # fmt: skip
    return Bundle(name_of(pod, container), json.dumps(document))


def _own_namespaces(
    pod: api.PodSandbox, linux: api.LinuxContainer, changed: api.LinuxContainerAdjustment
) -> set[str]:
    """Return the kinds of namespaces that a container does not share with the host.

    containerd gives the path of the sandbox's namespace, and that is the host's if the sandbox has
    none of its own. What is behind a path that a plugin gives is not known.
    """
    of_pod = {each.type for each in pod.linux.namespaces}
    kinds = {each.type for each in linux.namespaces if not each.path or each.type in of_pod}
    kinds |= set() if linux.namespaces else {"pid", "cgroup"}  # Docker shows none
    for each in changed.namespaces:
        kinds.discard(each.type.removeprefix(REMOVED))
        if not each.path and not each.type.startswith(REMOVED):
            kinds.add(each.type)
    return kinds


def _may_ask(mount: api.Mount) -> bool:
    return mount.source == MOUNT_SOURCE and VOLUME_MOUNT_NAME in mount.destination


def _mount(mount: api.Mount) -> dict[str, Any]:
    texts = {member: getattr(mount, member) for member in ("destination", "type", "source")}
    return {**texts, "options": list(mount.options)}


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
    return {member: getattr(device, member) for member in ("path", "type", "major", "minor")}


def _rule(rule: api.LinuxDeviceCgroup) -> dict[str, Any]:
    found: dict[str, Any] = {"allow": rule.allow, "type": rule.type or "a", "access": rule.access}
    for member in ("major", "minor"):
        if rule.HasField(member):
            found[member] = getattr(rule, member).value
    return found
