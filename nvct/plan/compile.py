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
from nvct.plan import facts, model

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from nvct.cdi.registry import Registry
    from nvct.cdi.types import ContainerEdits, Device, Spec

VERSION_FILE = "driver/nvidia/version"
_LIBCUDA = re.compile(r"/libcuda\.so\.(\d[\d.]+)$")
_LOADED = re.compile(r"Kernel Module[^\n]*?\s(\d+\.[\d.]+)\s")


def empty(config: str) -> model.Plan:
    """Return a plan without devices."""
    return {
        "nvct-plan": model.FORMAT, "config": config, "facts": [], "specs": [], "edits": [],
        "devices": {}, "kinds": [], "problems": [], "conflicts": {},
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
        _add_device(plan, name, places[spec_file.path], device, spec_file.path)
    plan["conflicts"] = dict(sorted(registry.conflicts.items()))
    # A kind whose names all conflict is there: no other source may answer for it.
    plan["kinds"] = sorted({n.partition("=")[0] for n in (*plan["devices"], *plan["conflicts"])})
    return plan


def compile_spec(spec: Spec, path: str, config: str, proc: str = "/proc") -> model.Plan:
    """Compile one spec that nvct has just made for this host."""
    plan = empty(config)
    plan["specs"].append(_spec(path, spec, proc))
    for device in spec["devices"]:
        _add_device(plan, f"{spec['kind']}={device['name']}", 0, device, path)
    plan["kinds"] = [spec["kind"]]
    return plan


def _spec(path: str, spec: Spec, proc: str) -> model.Spec:
    """Compile a spec's common edits, and look whether it still fits the host."""
    common: ContainerEdits = spec.get("containerEdits") or {}
    compiled: model.Spec = {"path": path, "facts": [], "edits": _no_edits(), "refuse": ""}
    compiled["refuse"] = _drift(common, proc, compiled["facts"])
    try:
        compiled["edits"] = fragments(common, path)
    except NvctError as error:
        compiled["refuse"] = compiled["refuse"] or error.message.removeprefix(f"{path}: ")
    return compiled


def _add_device(plan: model.Plan, name: str, spec: int, device: Device, path: str) -> None:
    """Compile one device; devices with equal edits share them, so that asking twice is once."""
    entry: model.Device = {"spec": spec, "edits": 0, "facts": [], "refuse": ""}
    edits: ContainerEdits = device.get("containerEdits") or {}
    for node in edits.get("deviceNodes", ()):
        entry["facts"].append(facts.take("rdev", node.get("hostPath") or node["path"]))
    entry["refuse"] = _missing(edits)
    compiled = _no_edits()
    if not entry["refuse"]:
        try:
            compiled = fragments(edits, path)
        except NvctError as error:
            entry["refuse"] = error.message.removeprefix(f"{path}: ")
    if compiled not in plan["edits"]:
        plan["edits"].append(compiled)
    entry["edits"] = plan["edits"].index(compiled)
    plan["devices"][name] = entry


def _no_edits() -> model.Edits:
    return {"env": [], "nodes": [], "mounts": [], "hooks": {}, "gids": [], "net": {}, "rdt": ""}


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


def _drift(common: ContainerEdits, proc: str, found: list[facts.Fact]) -> str:
    """Return why a spec no longer describes the host, "" if it does; add the facts looked at."""
    libcuda = next((m for m in common.get("mounts", ()) if _LIBCUDA.search(m["hostPath"])), None)
    if libcuda is not None:
        version_file = f"{proc}/{VERSION_FILE}"
        found.append(facts.take("text", version_file))
        found.append(facts.take("stat", libcuda["hostPath"]))
        match = _LIBCUDA.search(libcuda["hostPath"])
        loaded = loaded_version(proc)
        if match and loaded and match[1] != loaded:
            return f"it is for driver {match[1]}, but {loaded} is loaded"
    return _missing(common)


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
