# SPDX-License-Identifier: Apache-2.0
"""What each container of a rendered chart reaches: the table in SECURITY.md.

What an attacker gains is prose, by container; everything else is derived, so a mount or right that
is added changes the table.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

Object = dict[str, Any]


@dataclass(frozen=True)
class Placed:
    """A container and the pod that it runs in.

    Attributes:
        owner: kind and name of the object that the pod is of.
        part: of the release, as a label has it.
        pod: its spec.
        container: as the manifest has it.
    """

    owner: str
    part: str
    pod: Object
    container: Object

    @property
    def context(self) -> Object:
        """The container's securityContext."""
        context: Object = self.container.get("securityContext", {})
        return context


def containers(objects: Iterable[Object]) -> Iterator[Placed]:
    """Yield each container of rendered manifests, init containers first."""
    for each in objects:
        spec = each.get("spec", {})
        pod = spec if each["kind"] == "Pod" else spec.get("template", {}).get("spec")
        for container in [*pod.get("initContainers", ()), *pod["containers"]] if pod else ():
            part = each["metadata"].get("labels", {}).get("app.kubernetes.io/component", "")
            yield Placed(f"{each['kind']} {each['metadata']['name']}", part, pod, container)


AGENT = "`agent`"
ROOT = "root of this node"
GAINS = {
    AGENT: f"{ROOT}, by what it tells the kubelet for pods",
    f"{AGENT} with an NVML of its own": ROOT,
    "`nvml-worker`": ROOT,
    "`nri`": f"{ROOT}, by what it tells the engine",
    "`toolkit`": ROOT,
    f"uninstallation, {AGENT}": f"{ROOT}: it writes to the host's root",
    "uninstallation, `toolkit`": ROOT,
    "uninstallation, `done`": "nothing",
    "uninstallation, `pull`": "nothing",
    "uninstallation, `wait`": "what specs and messages of the pods of this namespace say",
    "`helm test`, `test`": "one GPU, as each pod that requests one",
}
"""By container, as the table names it: what somebody gains who runs code in it."""
CDI, NRI = "/var/run/cdi", "/var/run/nri"
ROOTS = ("/", "/dev", "/etc", "/run", CDI, "/usr/local/nvidia")
"""Folders of the host by which whoever writes to them becomes root there."""
OF = {
    "uninstall": "uninstallation, ",
    "uninstall-wait": "uninstallation, ",
    "test": "`helm test`, ",
}
"""What the table calls parts of the release besides the agent's pods."""
HEAD = ("container", "fact", "what")


def rows(objects: Iterable[Object]) -> list[tuple[str, ...]]:
    """Return the rows of the table; one per fact, in the order of the manifests.

    Raises:
        KeyError: it is not said what an attacker in a container gains.
    """
    objects = list(objects)
    made: list[tuple[str, ...]] = []
    for placed in containers(objects):
        name = name_of(placed)
        made.append((name, "privilege", ", ".join(privilege(placed))))
        made += [(name, "volume", text) for text in volumes(placed)]
        made += [(name, "right", text) for text in rights(placed, objects)]
        made.append((name, "an attacker gains", GAINS[name]))
    return made


def name_of(placed: Placed) -> str:
    """Return what the table calls a container."""
    name = f"{OF.get(placed.part, '')}`{placed.container['name']}`"
    if name == AGENT and placed.context.get("privileged"):
        return f"{AGENT} with an NVML of its own"
    return name


def is_root(placed: Placed) -> bool:
    """Report whether a container's facts alone make an attacker root of the node."""
    written = set(folders(placed).values())
    tells_kubelet = any(folder.endswith("/device-plugins") for folder in written)
    tells_engine = any(
        each["mountPath"] == NRI for each in placed.container.get("volumeMounts", ())
    )
    root = placed.context.get("privileged") or written & {*ROOTS}
    return bool(root or tells_kubelet or tells_engine)


def folders(placed: Placed) -> dict[str, str]:
    """Return the mount points of folders of the host that a container may change, and these."""
    by_name = {each["name"]: each for each in placed.pod.get("volumes", ())}
    return {
        mount["mountPath"]: by_name[mount["name"]]["hostPath"]["path"]
        for mount in placed.container.get("volumeMounts", ())
        if "hostPath" in by_name[mount["name"]] and not mount.get("readOnly")
    }


def privilege(placed: Placed) -> Iterator[str]:
    """Yield what the kernel allows a container: capabilities and namespaces of the host."""
    context = placed.context
    capabilities = context.get("capabilities", {})
    if context.get("privileged"):
        yield "privileged"
    else:
        yield "no capability" if "ALL" in capabilities.get("drop", ()) else "default capabilities"
        yield from capabilities.get("add", ())
        if context.get("allowPrivilegeEscalation") is not False:
            yield "programs with set-user-id"
        yield f"seccomp {context.get('seccompProfile', {}).get('type', 'off')}"
    yield from (each for each in ("hostPID", "hostNetwork", "hostIPC") if placed.pod.get(each))
    if not context.get("readOnlyRootFilesystem"):
        yield "its own files rw"


def volumes(placed: Placed) -> Iterator[str]:
    """Yield the mounts of a container, but its token's."""
    by_name = {each["name"]: each for each in placed.pod.get("volumes", ())}
    for mount in placed.container.get("volumeMounts", ()):
        volume = by_name[mount["name"]]
        if "projected" in volume:
            continue
        (kind,) = volume.keys() - {"name"}
        access = "ro" if mount.get("readOnly") or kind in ("configMap", "secret") else "rw"
        source = f"`{volume[kind]['path']}` of the host" if kind == "hostPath" else kind
        yield f"`{mount['mountPath']}` {access}: {source}"


def rights(placed: Placed, objects: Iterable[Object]) -> Iterator[str]:
    """Yield what a container's token may do in the cluster."""
    tokens = {each["name"] for each in placed.pod.get("volumes", ()) if "projected" in each}
    mounted = {mount["name"] for mount in placed.container.get("volumeMounts", ())}
    if not (tokens & mounted or placed.pod.get("automountServiceAccountToken", True)):
        return
    account, objects = placed.pod.get("serviceAccountName", "default"), list(objects)
    rules = {(each["kind"], each["metadata"]["name"]): each.get("rules") for each in objects}
    for each in objects:
        if account not in {subject["name"] for subject in each.get("subjects", ())}:
            continue
        scope = "" if each["kind"] == "ClusterRoleBinding" else " of its namespace"
        for rule in rules[each["roleRef"]["kind"], each["roleRef"]["name"]] or ():
            what = [*rule["resources"], *rule.get("resourceNames", ())]
            yield f"{', '.join(rule['verbs'])}: {' '.join(what)}{scope}"


def table(found: Iterable[tuple[str, ...]]) -> str:
    """Return rows in Markdown; a container is named once."""
    lines = [f"| {' | '.join(HEAD)} |\n", "|---|---|---|\n"]
    before = ""
    for name, fact, text in found:
        lines.append(f"| {name if name != before else ''} | {fact} | {text} |\n")
        before = name
    return "".join(lines)
