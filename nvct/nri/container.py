# SPDX-License-Identifier: Apache-2.0
"""Converts containers from NRI's form to runtime-spec's, which rules apply to, and edits back."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
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
from nvct.errors import HostError
from nvct.nri import nri_pb2 as api
from nvct.nri.mounts import REMOVED, Judged
from nvct.oci.bundle import Bundle

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.container.plan.model import Edits

KIND = "container"
WITHOUT_NODES = ("shm", "pts", "mqueue", "hugepages")
"""Folders of /dev that have no device of a driver, and that pods can fill."""
VARIABLES, VARIABLES_LIMIT = ("NVIDIA_", "CUDA_"), 50_000
REST = {"allow": False, "type": "a", "access": "rwm"}
"""The first rule: engines deny the devices that no rule allows, but some do not show that."""
EVERYTHING = {"allow": True, "type": "a", "access": "rwm"}
IN_WORDS = "the device rule for *:*"
"""The name of EVERYTHING in a refusal (nvct.container.device_access)."""


def name_of(pod: api.PodSandbox, container: api.Container) -> str:
    """Return the name of a container for a log: namespace/pod/container, without missing parts."""
    return "/".join(filter(None, (pod.namespace, pod.name.strip("/"), container.name.strip("/"))))


def short_pod(pod: api.PodSandbox) -> api.PodSandbox:
    """Return a copy of what a record needs of a pod; the original keeps its message in memory."""
    return api.PodSandbox(id=pod.id, name=pod.name, namespace=pod.namespace)


def short(made: api.Container) -> api.Container:
    """Return a copy of what a record needs of a container; see `short_pod`."""
    linux = api.LinuxContainer(devices=made.linux.devices)
    names = ("id", "pod_sandbox_id", "name", "state", "created_at")
    return api.Container(linux=linux, **{name: getattr(made, name) for name in names})


def bundle(
    pod: api.PodSandbox,
    container: api.Container,
    adjust: api.ContainerAdjustment | None = None,
    edits: Sequence[Edits] = (),
    judged: Judged | None = None,
    *,
    has_env: bool = False,
) -> Bundle:
    """Return a container, with the changes that plugins make, as the config.json of a bundle.

    The pod's own names replace the names in annotations; Docker has no pods. A container that may
    use every device counts as privileged, because NRI shows neither capabilities nor read-only
    paths. Mounts of /dev count by their nodes.

    Args:
        edits: those of CDI names.
        judged: the judged mounts; None if only mounts that ask for devices count.
        has_env: whether all variables count, not only NVIDIA's.

    Raises:
        HostError: there are so many variables that the answer would be late.
    """
    linux, added = container.linux, adjust or api.ContainerAdjustment()
    given = (*linux.resources.devices, *added.linux.resources.devices)
    rules = [REST, *map(_rule, given)]
    is_privileged = any(rule["allow"] and rule["type"] == "a" for rule in rules)
    sources, way = judged or ([], "")
    if way:
        rules.append(EVERYTHING)
    texts = chain(container.env, (f"{pair.key}={pair.value}" for pair in added.env))
    env = [text for text in texts if has_env or text.startswith(VARIABLES)]
    if len(env) > VARIABLES_LIMIT:
        raise HostError(f"the container has more than {VARIABLES_LIMIT} variables")
    names = {
        CONTAINERD_TYPE: KIND, CONTAINERD_NAMESPACE: pod.namespace,
        CONTAINERD_NAME: container.name,
        CRIO_TYPE: KIND, CRIO_NAMESPACE: pod.namespace, CRIO_NAME: container.name,
    }  # fmt: skip
    devices = (*linux.devices, *added.linux.devices)
    document = {
        "process": {
            "env": env,
            "capabilities": {"bounding": [CAP_SYS_ADMIN] if is_privileged else []},
        },
        "annotations": {
            **container.annotations, **added.annotations, **(names if pod.namespace else {}),
        },
        "mounts": [
            {**_members(mount, "destination", "type", "source"), "options": [*mount.options]}
            for mount in (*container.mounts, *added.mounts)
            if (mount.type in SHOWN_TYPES if judged else _may_ask(mount))
        ],
        "linux": {
            "devices": [
                *(_members(device, "path", "type", "major", "minor") for device in devices),
                *nodes(edits), *_mounted(sources),
            ],
            "resources": {"devices": rules},
            "namespaces": [{"type": t} for t in sorted(_own_namespaces(pod, linux, added.linux))],
            "cgroupsPath": linux.cgroups_path,
            "readonlyPaths": ["/proc/sys", "/proc/bus"],
        },
    }  # fmt: skip
    return Bundle(name_of(pod, container), json.dumps(document))


def _own_namespaces(
    pod: api.PodSandbox, linux: api.LinuxContainer, changed: api.LinuxContainerAdjustment
) -> set[str]:
    """Return the kinds of namespaces that a container does not share with the host.

    containerd gives the path of the sandbox's namespace, which is the host's if the sandbox has
    none of its own. A path that a plugin gives may be the host's.
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


def _mounted(sources: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield the nodes in mounts below the host's /dev, which is also this plugin's /dev.

    They count, although the cgroup of an unprivileged container denies them.
    """
    found: device_numbers.Nodes = {}
    for source in sources:
        if source.startswith("/dev/") and source.split("/")[2] not in WITHOUT_NODES:
            device_numbers.add_mounted(found, source, 1)
    for (kind, major, minor), path in found.items():
        yield {"path": path, "type": kind, "major": major, "minor": minor}


def _members(message: api.Mount | api.LinuxDevice, *names: str) -> dict[str, Any]:
    return {name: getattr(message, name) for name in names}


def _rule(rule: api.LinuxDeviceCgroup) -> dict[str, Any]:
    numbers = {n: getattr(rule, n).value for n in ("major", "minor") if rule.HasField(n)}
    return {"allow": rule.allow, "type": rule.type or "a", "access": rule.access, **numbers}


def nodes(edits: Iterable[Edits]) -> list[dict[str, Any]]:
    """Return the device nodes of edits, as members of linux.devices."""
    return [json.loads(node["node"]) for edit in edits for node in edit["nodes"]]


def mounts(edits: Iterable[Edits]) -> list[api.Mount]:
    """Return the mounts of edits."""
    found = [json.loads(text) for edit in edits for _, text in edit["mounts"]]
    members = ("destination", "type", "source", "options")
    return [api.Mount(**{m: mount[m] for m in members if m in mount}) for mount in found]


def adjustment(edits: Sequence[Edits]) -> api.ContainerAdjustment:
    """Return edits in NRI's form, for engines that take no CDI names from plugins.

    Raises:
        HostError: NRI has no field for a part of the edits.
    """
    adjust = api.ContainerAdjustment(mounts=mounts(edits))
    for node in nodes(edits):
        members = {name: node[name] for name in ("path", "type", "major", "minor") if name in node}
        device = adjust.linux.devices.add(**members)
        for member, field in (("fileMode", "file_mode"), ("uid", "uid"), ("gid", "gid")):
            if member in node:
                getattr(device, field).value = node[member]
    for edit in edits:
        if edit["net"] or edit["rdt"]:
            raise HostError(
                "a CDI device has network devices or an RDT class, which this engine's NRI lacks",
                hint="use containerd 2.1 or CRI-O 1.34, or newer",
            )
        for text in edit["env"]:
            key, _, value = text.partition("=")
            adjust.env.add(key=key, value=value)
        for point, texts in edit["hooks"].items():
            added = getattr(adjust.hooks, re.sub("([A-Z])", r"_\1", point).lower())
            for hook in map(json.loads, texts):
                known = {name: hook[name] for name in ("path", "args", "env") if name in hook}
                timeout = {"timeout": {"value": hook["timeout"]}} if "timeout" in hook else {}
                added.add(**known, **timeout)
    return adjust
