# SPDX-License-Identifier: Apache-2.0
"""The compiler of plans: CDI specs, of any vendor, into ready-made OCI fragments.

Cold. `nvct.container.plan.model` describes what comes out. A spec that no longer describes the
host is compiled all the same, with the sentence that refuses it: the create that needs it says
why.
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import NamedTuple

from nvct.cdi import edits as cdi_edits
from nvct.container.plan import fingerprints, hook_command, model
from nvct.errors import NvctError
from nvct.oci import jsontext

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nvct.cdi.registry import Registry
    from nvct.cdi.types import ContainerEdits, Spec

VERSION_FILE = "driver/nvidia/version"
# Three digits: WSL and Tegra have a libcuda.so.1.1, which is no driver's version.
_LIBCUDA = re.compile(r"/libcuda\.so\.(\d{3}\.[\d.]+)$")
_LOADED = re.compile(r"Kernel Module[^\n]*?\s(\d+\.[\d.]+)\s")


class Part(NamedTuple):
    """What a container gets.

    Attributes:
        edits: of a spec; of nvct's own without its hook.
        work: what that hook would do, None for nothing.
        cache: how the dynamic linker finds what the edits mount (nvct.container.plan.model).
    """

    edits: ContainerEdits
    work: model.Work | None = None
    cache: Sequence[list[str]] = ()


class Own(NamedTuple):
    """What nvct's own plan is compiled from.

    Attributes:
        kind: of its devices.
        common: what every container gets, under "", and what each driver capability adds.
        devices: names of a device, and the same for it alone.
        hook: the program that does the work.
    """

    kind: str
    common: Mapping[str, Part]
    devices: Sequence[tuple[Sequence[str], Mapping[str, Part]]]
    hook: model.Program


def empty(config: str) -> model.Plan:
    """Return a plan without devices."""
    return {
        "nvct-plan": model.FORMAT, "config": config, "facts": [], "specs": [], "edits": [],
        "devices": {}, "kinds": [], "problems": [], "conflicts": {}, "host": {},
    }  # fmt: skip


def input_facts(paths: Sequence[str]) -> list[fingerprints.Fingerprint]:
    """Return the facts about the files and folders that something is compiled from."""
    now = time.time_ns()
    return [fingerprints.take_file(path, now) for path in paths]


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
        path = spec_file.path
        if path not in places:
            places[path] = len(plan["specs"])
            common = _alone(spec_file.spec.get("containerEdits"))
            plan["specs"].append(_spec(plan, path, common, proc))
        edits = _alone(device.get("containerEdits"))
        _add_device(plan, [name], edits, spec=places[path], path=path)
    plan["conflicts"] = dict(sorted(registry.conflicts.items()))
    # A kind whose names all conflict is there: no other source may answer for it.
    plan["kinds"] = sorted({n.partition("=")[0] for n in (*plan["devices"], *plan["conflicts"])})
    return plan


def compile_spec(spec: Spec, path: str, config: str, proc: str = "/proc") -> model.Plan:
    """Compile one spec that nvct has just made for this host.

    Args:
        spec: what containers get.
        path: where it is kept.
        config: path of the config.toml in force, the plan's key.
        proc: where procfs is.
    """
    plan = empty(config)
    plan["specs"].append(_spec(plan, path, _alone(spec.get("containerEdits")), proc))
    for device in spec["devices"]:
        name = f"{spec['kind']}={device['name']}"
        _add_device(plan, [name], _alone(device.get("containerEdits")), spec=0, path=path)
    plan["kinds"] = [spec["kind"]]
    return plan


def compile_own(own: Own, path: str, config: str, proc: str = "/proc") -> model.Plan:
    """Compile what nvct has just found on this host; as `compile_spec`."""
    plan = empty(config)
    plan["hook"] = own.hook
    plan["specs"].append(_spec(plan, path, own.common, proc))
    for names, parts in own.devices:
        full = [f"{own.kind}={name}" for name in names]
        _add_device(plan, full, parts, spec=0, path=path)
    plan["devices"] = dict(sorted(plan["devices"].items()))
    plan["kinds"] = [own.kind]
    return plan


def _alone(edits: ContainerEdits | None) -> dict[str, Part]:
    """Return the edits of a spec as parts: every container gets them."""
    return {"": Part(edits or {})}


def _spec(plan: model.Plan, path: str, parts: Mapping[str, Part], proc: str) -> model.Spec:
    """Compile a spec's common edits, and look whether it still fits the host."""
    compiled: model.Spec = {"path": path, "facts": [], "edits": model.no_edits(), "refuse": ""}
    compiled["refuse"] = _drift(parts, proc, compiled["facts"]) or _missing(plan, parts)
    try:
        compiled["edits"] = _with_parts(plan, parts, path)
    except NvctError as error:
        compiled["refuse"] = compiled["refuse"] or error.message.removeprefix(f"{path}: ")
    return compiled


def _add_device(
    plan: model.Plan, names: Sequence[str], parts: Mapping[str, Part], *, spec: int, path: str
) -> None:
    """Compile one device; devices with equal edits share them, so that asking twice is once."""
    entry: model.Device = {"spec": spec, "edits": 0, "facts": [], "refuse": ""}
    nodes = (node for part in parts.values() for node in part.edits.get("deviceNodes", ()))
    for place in dict.fromkeys(node.get("hostPath") or node["path"] for node in nodes):
        entry["facts"].append(fingerprints.take("rdev", place))
    entry["refuse"] = _missing(plan, parts)
    compiled = model.no_edits()
    try:
        compiled = _with_parts(plan, parts, path)
    except NvctError as error:
        entry["refuse"] = entry["refuse"] or error.message.removeprefix(f"{path}: ")
    if compiled not in plan["edits"]:
        plan["edits"].append(compiled)
    entry["edits"] = plan["edits"].index(compiled)
    for name in names:
        plan["devices"][name] = entry


def _with_parts(plan: model.Plan, parts: Mapping[str, Part], source: str) -> model.Edits:
    """Return compiled edits with compiled parts.

    Without any part the hook stays one, whatever the container: a Tegra's lists name whole
    directories, and only the hook sees what libraries are mounted with them.

    Raises:
        NvctError: an edit cannot be applied on this host.
    """
    made = {name: fragments(part.edits, source) for name, part in parts.items()}
    base = made.pop("")
    if not made:
        work = parts[""].work
        if work is not None:
            text = hook_command.text({"program": plan["hook"], "work": work})
            base["hooks"] = {hook_command.POINT: [text]}
        return base
    base["parts"] = made
    for name, part in parts.items():
        edits = made.get(name, base)
        edits["cache"] = list(part.cache)
        if part.work is not None:
            edits["work"] = part.work
    return base


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


def _drift(parts: Mapping[str, Part], proc: str, found: list[fingerprints.Fingerprint]) -> str:
    """Return why a spec is for another driver, "" if it is not; add the facts looked at."""
    mounts = (mount for part in parts.values() for mount in part.edits.get("mounts", ()))
    libcuda = next((mount for mount in mounts if _LIBCUDA.search(mount["hostPath"])), None)
    if libcuda is not None:
        version_file = f"{proc}/{VERSION_FILE}"
        found.append(fingerprints.take("text", version_file))
        found.append(fingerprints.take("stat", libcuda["hostPath"]))
        match = _LIBCUDA.search(libcuda["hostPath"])
        loaded = loaded_version(proc)
        if match and loaded and match[1] != loaded:
            return f"it is for driver {match[1]}, but {loaded} is loaded"
    return ""


def _missing(plan: model.Plan, parts: Mapping[str, Part]) -> str:
    """Return which mount source or hook is not there, "" if all are."""
    for part in parts.values():
        for mount in part.edits.get("mounts", ()):
            if mount.get("type") == "bind" or {"bind", "rbind"} & set(mount.get("options", ())):
                path = mount["hostPath"]
                if not os.path.exists(path):
                    return f"{path} is gone"
    hooks = [hook for part in parts.values() for hook in part.edits.get("hooks", ())]
    programs = [(hook["path"], hook.get("env")) for hook in hooks]
    if any(part.work for part in parts.values()):
        programs.append((plan["hook"]["path"], plan["hook"]["env"]))
    for path, env in programs:
        if not os.path.exists(path):
            return f"its hook {path} is missing"
        if not os.access(path, os.X_OK):
            return f"its hook {path} is no program"
        if not env:
            # runc would start it with the container's environment (CVE-2025-23266).
            return f"hook {path} has no env, so an image could run code in it"
    return ""


def loaded_version(proc: str) -> str:
    """Return the version of the loaded kernel module, "" where none is loaded."""
    try:
        text = Path(proc, VERSION_FILE).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    match = _LOADED.search(text)
    return match[1] if match else ""
