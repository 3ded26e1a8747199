# SPDX-License-Identifier: Apache-2.0
"""The compiler of plans: CDI specs, of any vendor, into ready-made OCI fragments.

Cold. `nvct.plan.model` describes what comes out. A spec that no longer describes the host is
compiled all the same, with the sentence that refuses it: the create that needs it says why.
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

from nvct.cdi import edits as cdi_edits
from nvct.errors import NvctError
from nvct.oci import jsontext
from nvct.plan import facts, libraries, model

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nvct.cdi.registry import Registry
    from nvct.cdi.types import ContainerEdits, Device, Hook, Spec

APPLY = "apply"
"""The hook that does all of a container's work in one process (nvct.hook.apply)."""
WITH_VALUE = ("--link", "--folder")
VERSION_FILE = "driver/nvidia/version"
# Three digits: WSL and Tegra have a libcuda.so.1.1, which is no driver's version.
_LIBCUDA = re.compile(r"/libcuda\.so\.(\d{3}\.[\d.]+)$")
_LOADED = re.compile(r"Kernel Module[^\n]*?\s(\d+\.[\d.]+)\s")


def empty(config: str) -> model.Plan:
    """Return a plan without devices."""
    return {
        "nvct-plan": model.FORMAT, "config": config, "facts": [], "specs": [], "edits": [],
        "devices": {}, "kinds": [], "problems": [], "conflicts": {}, "host": {},
    }  # fmt: skip


def input_facts(paths: Sequence[str]) -> list[facts.Fact]:
    """Return the facts about the files and folders that something is compiled from."""
    now = time.time_ns()
    return [facts.take_file(path, now) for path in paths]


def compile_registry(registry: Registry, config: str, proc: str = "/proc") -> model.Plan:
    """Compile all that the CDI spec folders hold.

    Args:
        registry: what was found; its inputs must have been observed before it was read.
        config: path of the config.toml in force, the plan's key.
        proc: where procfs is.
    """
    plan = empty(config)
    plan["problems"] = [error.message for error in registry.errors.values()]
    places: dict[str, int] = {}
    for name, (spec_file, device) in sorted(registry.devices.items()):
        if spec_file.path not in places:
            places[spec_file.path] = len(plan["specs"])
            plan["specs"].append(_spec(spec_file.path, spec_file.spec, proc))
        _add_device(plan, name, device, spec=places[spec_file.path], path=spec_file.path)
    plan["conflicts"] = dict(sorted(registry.conflicts.items()))
    # A kind whose names all conflict is there: no other source may answer for it.
    plan["kinds"] = sorted({n.partition("=")[0] for n in (*plan["devices"], *plan["conflicts"])})
    return plan


def compile_spec(
    spec: Spec,
    path: str,
    config: str,
    proc: str = "/proc",
    *,
    parts: Mapping[str, Spec] | None = None,
) -> model.Plan:
    """Compile one spec that nvct has just made for this host.

    Args:
        spec: what every container gets.
        path: where it is kept.
        config: path of the config.toml in force, the plan's key.
        proc: where procfs is.
        parts: what containers with a driver capability get beyond it, as `specgen.parts` makes
            them.
    """
    plan = empty(config)
    parts = parts or {}
    common = {name: part.get("containerEdits") or {} for name, part in parts.items()}
    plan["specs"].append(_spec(path, spec, proc, common))
    for device in spec["devices"]:
        more = {
            name: other.get("containerEdits") or {}
            for name, part in parts.items()
            for other in part["devices"]
            if other["name"] == device["name"]
        }
        _add_device(
            plan, f"{spec['kind']}={device['name']}", device, spec=0, path=path, parts=more
        )
    plan["kinds"] = [spec["kind"]]
    return plan


def _spec(
    path: str, spec: Spec, proc: str, parts: Mapping[str, ContainerEdits] | None = None
) -> model.Spec:
    """Compile a spec's common edits, and look whether it still fits the host."""
    common: ContainerEdits = spec.get("containerEdits") or {}
    compiled: model.Spec = {"path": path, "facts": [], "edits": model.no_edits(), "refuse": ""}
    everything = [common, *(parts or {}).values()]
    compiled["refuse"] = _drift(everything, proc, compiled["facts"])
    try:
        compiled["edits"] = _with_parts(common, parts or {}, path)
    except NvctError as error:
        compiled["refuse"] = compiled["refuse"] or error.message.removeprefix(f"{path}: ")
    return compiled


def _add_device(
    plan: model.Plan,
    name: str,
    device: Device,
    *,
    spec: int,
    path: str,
    parts: Mapping[str, ContainerEdits] | None = None,
) -> None:
    """Compile one device; devices with equal edits share them, so that asking twice is once."""
    entry: model.Device = {"spec": spec, "edits": 0, "facts": [], "refuse": ""}
    edits: ContainerEdits = device.get("containerEdits") or {}
    everything = [edits, *(parts or {}).values()]
    for node in (node for one in everything for node in one.get("deviceNodes", ())):
        entry["facts"].append(facts.take("rdev", node.get("hostPath") or node["path"]))
    entry["refuse"] = next(filter(None, map(_missing, everything)), "")
    compiled = model.no_edits()
    try:
        compiled = _with_parts(edits, parts or {}, path)
    except NvctError as error:
        entry["refuse"] = entry["refuse"] or error.message.removeprefix(f"{path}: ")
    if compiled not in plan["edits"]:
        plan["edits"].append(compiled)
    entry["edits"] = plan["edits"].index(compiled)
    plan["devices"][name] = entry


def _with_parts(
    edits: ContainerEdits, parts: Mapping[str, ContainerEdits], source: str
) -> model.Edits:
    """Return compiled edits with compiled parts; what hooks the parts share is put together late.

    Raises:
        NvctError: an edit cannot be applied on this host.
    """
    if not any(parts.values()):
        return fragments(edits, source)
    hooks = [hook for hook in edits.get("hooks", ()) if _is_shared(hook)]
    made = fragments(
        {**edits, "hooks": [h for h in edits.get("hooks", ()) if h not in hooks]}, source
    )
    of_parts = [h for part in parts.values() for h in part.get("hooks", ()) if _is_shared(h)]
    if hooks or of_parts:
        made["hook"] = _hook_parts(hooks[0] if hooks else of_parts[0], own=bool(hooks))
    shared_hooks = libraries.Hooks([edits, *parts.values()])
    made["cache"] = libraries.entries(edits, shared_hooks)
    made["parts"] = {}
    for name, part in parts.items():
        shared = [hook for hook in part.get("hooks", ()) if _is_shared(hook)]
        rest = [hook for hook in part.get("hooks", ()) if hook not in shared]
        made["parts"][name] = fragments({**part, "hooks": rest}, source)
        made["parts"][name]["args"] = [text for hook in shared for text in _pairs(hook["args"])]
        made["parts"][name]["cache"] = libraries.entries(part, shared_hooks)
    return made


def _is_shared(hook: Hook) -> bool:
    return APPLY in hook.get("args", ())[:3]


def _hook_parts(hook: Hook, *, own: bool) -> model.HookParts:
    """Return a hook's text in pieces, so that arguments can be put in."""
    mark = "\0"
    at = hook["args"].index(APPLY) + 1
    edits: ContainerEdits = {"hooks": [{**hook, "args": [*hook["args"][:at], mark]}]}
    (text,) = fragments(edits, "")["hooks"][hook["hookName"]]
    head, _, tail = text.partition("," + jsontext.dumps(mark))
    return {"head": head, "args": _pairs(hook["args"]) if own else [], "tail": tail}


def _pairs(args: Sequence[str]) -> list[str]:
    """Return the arguments behind `apply` as JSON texts, an option and its value in one."""
    texts: list[str] = []
    words = iter(args[list(args).index(APPLY) + 1 :])
    for word in words:
        pair = [word, next(words)] if word in WITH_VALUE else [word]
        texts.append(",".join(map(jsontext.dumps, pair)))
    return texts


def fragments(edits: ContainerEdits, source: str) -> model.Edits:
    """Return container edits as the JSON texts that are pasted into config.json.

    Raises:
        NvctError: an edit cannot be applied on this host.
    """
    oci = cdi_edits.oci_edits(edits, source=source)
    text = jsontext.dumps
    return {
        "env": list(oci["env"]),
        "nodes": [
            {
                "path": node["path"],
                "host": node["host"],
                "node": text(node["node"]),
                "rule": text(node["rule"]) if node["rule"] else "",
            }
            for node in oci["nodes"]
        ],
        "mounts": [[str(mount["destination"]), text(mount)] for mount in oci["mounts"]],
        "hooks": {point: [text(hook) for hook in hooks] for point, hooks in oci["hooks"].items()},
        "gids": list(oci["gids"]),
        "net": {interface: text(device) for interface, device in oci["net"].items()},
        "rdt": text(oci["rdt"]) if oci["rdt"] else "",
    }


def _drift(common: Sequence[ContainerEdits], proc: str, found: list[facts.Fact]) -> str:
    """Return why a spec no longer describes the host, "" if it does; add the facts looked at."""
    mounts = (mount for one in common for mount in one.get("mounts", ()))
    libcuda = next((mount for mount in mounts if _LIBCUDA.search(mount["hostPath"])), None)
    if libcuda is not None:
        version_file = f"{proc}/{VERSION_FILE}"
        found.append(facts.take("text", version_file))
        found.append(facts.take("stat", libcuda["hostPath"]))
        match = _LIBCUDA.search(libcuda["hostPath"])
        loaded = loaded_version(proc)
        if match and loaded and match[1] != loaded:
            return f"it is for driver {match[1]}, but {loaded} is loaded"
    return next(filter(None, map(_missing, common)), "")


def _missing(edits: ContainerEdits) -> str:
    """Return which mount source or hook of some edits is not there, "" if all are."""
    for mount in edits.get("mounts", ()):
        if mount.get("type") == "bind" or {"bind", "rbind"} & set(mount.get("options", ())):
            path = mount["hostPath"]
            if not os.path.exists(path):
                return f"{path} is gone"
    for hook in edits.get("hooks", ()):
        if not os.path.exists(hook["path"]):
            return f"its hook {hook['path']} is missing"
        if not os.access(hook["path"], os.X_OK):
            return f"its hook {hook['path']} is no program"
        if not hook.get("env"):
            # runc would start it with the container's environment (CVE-2025-23266).
            return f"hook {hook['path']} has no env, so an image could run code in it"
    return ""


def loaded_version(proc: str) -> str:
    """Return the version of the loaded kernel module, "" where none is loaded."""
    try:
        text = Path(proc, VERSION_FILE).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    match = _LOADED.search(text)
    return match[1] if match else ""
