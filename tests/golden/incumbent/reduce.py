# SPDX-License-Identifier: Apache-2.0
"""Reduce a CDI spec of either generator to sets of sentences that can be compared.

Contract: pure. Nothing is dropped but order, major and minor numbers (nvct leaves them to whoever
injects), the hooks' own path and what every mount has: the options of files, and a host path that
is the container's below the driver root. An edit that is not known here is an error, not a gap.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

Json: TypeAlias = Mapping[str, Any]
Sets: TypeAlias = dict[str, list[str]]
Reduced: TypeAlias = dict[str, Any]

FILE_OPTIONS = ["ro", "nosuid", "nodev", "rbind", "rprivate"]
HOOKS_WITHOUT_ARGUMENTS = ("disable-device-node-modification", "update-application-profile")
APPLY_FLAGS = {
    "--mask-params": "disable-device-node-modification",
    "--application-profile": "update-application-profile",
}
FLAGS_WITH_VALUE = {"--link": "link", "--folder": "folder"}


def reduce(spec: Json, places: Mapping[str, str], version: str) -> Reduced:
    """Return kind, common edits and devices of a spec.

    Args:
        spec: of either generator.
        places: what stands for a folder of the host, longest first: the driver root is "$ROOT".
        version: of the driver, "V" in the result.

    Raises:
        ValueError: the spec has something that cannot be reduced.
    """

    def short(text: str) -> str:
        for folder, name in places.items():
            text = text.replace(folder, name)
        return text.replace(version, "V")

    devices: dict[str, Any] = {}
    for device in spec["devices"]:
        edits = _edits(device["containerEdits"], short)
        same = [name for name, known in devices.items() if known["edits"] == edits]
        if same and device["name"] != "all":
            devices[same[0]]["names"].append(device["name"])
        else:
            devices[device["name"]] = {"names": [device["name"]], "edits": edits}
    common = _edits(spec["containerEdits"], short)
    return {"kind": spec["kind"], "common": common, "devices": devices}


def _edits(edits: Json, short: Callable[[str], str]) -> Sets:
    known = {"deviceNodes", "env", "mounts", "hooks", "additionalGids"}
    if unknown := set(edits) - known:
        raise ValueError(f"edits of a kind that is not known here: {sorted(unknown)}")
    sets: dict[str, set[str]] = {
        "nodes": {_node(node, short) for node in edits.get("deviceNodes", [])},
        "env": {short(text) for text in edits.get("env", [])},
        "mounts": {_mount(mount, short) for mount in edits.get("mounts", [])},
        "groups": {str(gid) for gid in edits.get("additionalGids", [])},
        "functions": {short(text) for hook in edits.get("hooks", []) for text in _functions(hook)},
    }
    return {name: sorted(texts) for name, texts in sets.items() if texts}


def _node(node: Json, short: Callable[[str], str]) -> str:
    known = {"path", "hostPath", "type", "major", "minor", "fileMode", "permissions", "gid"}
    if unknown := set(node) - known:
        raise ValueError(f"a node has {sorted(unknown)}: {node}")
    words = [node["path"], f"{node.get('fileMode', 0):o}", node.get("permissions", "")]
    if node.get("gid"):
        words.append(f"gid {node['gid']}")
    host_path = short(node.get("hostPath", node["path"]))
    return " ".join(words if host_path == node["path"] else [*words, "from", host_path])


def _mount(mount: Json, short: Callable[[str], str]) -> str:
    if unknown := set(mount) - {"hostPath", "containerPath", "options"}:
        raise ValueError(f"a mount has {sorted(unknown)}: {mount}")
    path, host_path = short(mount["containerPath"]), short(mount["hostPath"])
    source = [] if host_path == f"$ROOT{path}" else ["from", host_path]
    options = [] if mount["options"] == FILE_OPTIONS else mount["options"]
    return " ".join([path, *source, *options])


def _functions(hook: Json) -> Iterator[str]:
    if hook["hookName"] != "createContainer" or hook["env"] != ["NVIDIA_CTK_DEBUG=false"]:
        raise ValueError(f"a hook of {hook['hookName']} with {hook.get('env')}")
    name, *args = hook["args"][1:]
    if name in HOOKS_WITHOUT_ARGUMENTS and not args:
        yield name
        return
    if name not in ("apply", "create-symlinks", "enable-cuda-compat", "update-ldcache"):
        raise ValueError(f"hook {name} with {args}")
    yield from _arguments(name, args)


def _arguments(name: str, args: Sequence[str]) -> Iterator[str]:
    values = {at + 1 for at, arg in enumerate(args) if arg in FLAGS_WITH_VALUE}
    for (at, arg), (_, following) in pairwise([*enumerate(args), (len(args), "")]):
        if at in values:
            continue
        if arg in FLAGS_WITH_VALUE:
            yield f"{FLAGS_WITH_VALUE[arg]} {following}"
        elif arg in APPLY_FLAGS:
            yield APPLY_FLAGS[arg]
        elif arg.startswith("--host-driver-version="):
            yield f"compat for {arg.partition('=')[2]}"
        else:
            raise ValueError(f"argument {arg} of hook {name}")
