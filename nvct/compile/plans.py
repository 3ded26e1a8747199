# SPDX-License-Identifier: Apache-2.0
"""The compiler of plans: CDI specs, of any vendor, and this host's inventory to OCI fragments.

Cold. `nvct.container.plan.model` describes the result. A spec that no longer fits the host is
compiled too, with the reason to refuse it: a create that needs the spec fails with that reason.
nvct's own plan is in parts, one per capability: a create combines those that are asked for.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import NamedTuple, cast

from nvct.cdi.check import mounted
from nvct.cdi.make import edits as cdi_edits
from nvct.cdi.make import generate, injection
from nvct.cdi.make import hooks as cdi_hooks
from nvct.cdi.make.generate import Job, Options
from nvct.cdi.make.injection import Injection
from nvct.cdi.make.oci_edits import fragments
from nvct.cdi.read.registry import Registry
from nvct.cdi.types import ContainerEdits, Device, Spec
from nvct.container.plan import fingerprints, hook_command, model
from nvct.container.plan.model import merge
from nvct.container.rootfs.libraries import is_library, order
from nvct.errors import NvctError
from nvct.host import capabilities, procfs
from nvct.host.model import DriverFile, Inventory
from nvct.host.roots import Roots


class Part(NamedTuple):
    """Edits of a container, with work and linker entries."""

    edits: ContainerEdits  # of a spec; in nvct's own plan without its hook
    work: model.Work | None = None
    cache: Sequence[list[str]] = ()


class Own(NamedTuple):
    """The input of nvct's own plan."""

    kind: str
    # parts by capability: key "" has the part of every container, each other key the part that its
    # capability adds
    common: Mapping[str, Part]
    # names of a device, and the device's parts by capability
    devices: Sequence[tuple[Sequence[str], Mapping[str, Part]]]
    hook: model.Program | None = None


class Known:
    """The compiled edits of devices of specs, for whoever compiles again what has not changed.

    A device is known by its object: whoever reads a file again gets another one. Those that the
    last compilation did not need are forgotten.
    """

    __slots__ = ("_former", "_made")

    def __init__(self) -> None:
        self._former: dict[int, tuple[Device, model.Edits, str]] = {}
        self._made: dict[int, tuple[Device, model.Edits, str]] = {}

    def begin(self) -> None:
        """Begin a compilation."""
        self._former, self._made = self._made, {}

    def edits(self, device: Device, source: str) -> tuple[model.Edits, str]:
        """Return a device's edits, and a text that only equal ones have. Raises NvctError."""
        known = self._former.get(id(device))
        if known is None or known[0] is not device:
            compiled = fragments(device.get("containerEdits") or {}, source)
            known = device, compiled, json.dumps(compiled)
        self._made[id(device)] = known
        return known[1:]


def empty(config: str) -> model.Plan:
    """Return a plan without devices."""
    return {
        "nvct-plan": model.FORMAT, "config": config, "facts": [], "specs": [], "edits": [],
        "devices": {}, "kinds": [], "problems": [], "conflicts": {}, "host": {},
    }  # fmt: skip


def input_fingerprints(paths: Sequence[str]) -> list[fingerprints.Fingerprint]:
    """Return the fingerprints of the files and folders that are input of a plan."""
    now = time.time_ns()
    return [fingerprints.take_file(path, now) for path in paths]


def compile_registry(
    registry: Registry,
    config: str,
    roots: Roots | None = None,
    *,
    sees_files: bool = True,
    known: Known | None = None,
) -> model.Plan:
    """Compile the specs of the CDI folders, with fingerprints from before they were read.

    Unless `sees_files`, mount sources and hooks count as there. `known` has what was compiled
    before.
    """
    roots, known = roots or Roots(), known or Known()
    known.begin()
    plan = empty(config)
    plan["problems"] = [error.message for error in registry.errors.values()]
    spec_numbers: dict[str, int] = {}
    numbers: dict[str, int] = {}
    nodes: dict[str, fingerprints.Fingerprint] = {}
    for name, (spec_file, device) in sorted(registry.devices.items()):
        path = spec_file.path
        if path not in spec_numbers:
            spec_numbers[path] = len(plan["specs"])
            common = _alone(spec_file.spec.get("containerEdits"))
            plan["specs"].append(_spec(plan, path, common, roots, sees_files=sees_files))
        parts = _alone(device.get("containerEdits"))
        entry = _entry(plan, parts, spec_numbers[path], nodes, sees_files=sees_files)
        compiled, text = model.no_edits(), ""
        try:
            compiled, text = known.edits(device, path)
        except NvctError as error:
            entry["refuse"] = entry["refuse"] or error.message.removeprefix(f"{path}: ")
        entry["edits"] = numbers.setdefault(text, len(plan["edits"]))
        if entry["edits"] == len(plan["edits"]):
            plan["edits"].append(compiled)
        plan["devices"][name] = entry
    plan["conflicts"] = dict(sorted(registry.conflicts.items()))
    # A kind is listed even if all its names conflict: no other source may answer for it.
    plan["kinds"] = sorted({n.partition("=")[0] for n in (*plan["devices"], *plan["conflicts"])})
    return plan


def compile_spec(spec: Spec, path: str, config: str, roots: Roots | None = None) -> model.Plan:
    """Compile one spec that nvct has made for this host."""
    common = _alone(spec.get("containerEdits"))
    devices = [([each["name"]], _alone(each.get("containerEdits"))) for each in spec["devices"]]
    return compile_own(Own(spec["kind"], common, devices), path, config, roots)


def compile_own(own: Own, path: str, config: str, roots: Roots | None = None) -> model.Plan:
    """Compile nvct's own plan from its parts."""
    plan, roots = empty(config), roots or Roots()
    if own.hook:
        plan["hook"] = own.hook
    plan["specs"].append(_spec(plan, path, own.common, roots))
    for names, parts in own.devices:
        full = [f"{own.kind}={name}" for name in names]
        _add_device(plan, full, parts, path)
    plan["devices"] = dict(sorted(plan["devices"].items()))
    plan["kinds"] = [own.kind]
    return plan


def _alone(edits: ContainerEdits | None) -> dict[str, Part]:
    """Return the edits of a spec as a part that every container gets."""
    return {"": Part(edits or {})}


def _spec(
    plan: model.Plan,
    path: str,
    parts: Mapping[str, Part],
    roots: Roots,
    *,
    sees_files: bool = True,
) -> model.Spec:
    """Compile a spec's common edits, and check whether the spec still fits the host."""
    compiled: model.Spec = {"path": path, "facts": [], "edits": model.no_edits(), "refuse": ""}
    compiled["refuse"] = _drift(parts, roots, compiled["facts"])
    if sees_files:
        compiled["refuse"] = compiled["refuse"] or _missing(plan, parts)
    try:
        compiled["edits"] = _with_parts(plan, parts, path)
    except NvctError as error:
        compiled["refuse"] = compiled["refuse"] or error.message.removeprefix(f"{path}: ")
    return compiled


def _entry(
    plan: model.Plan,
    parts: Mapping[str, Part],
    spec: int,
    known: dict[str, fingerprints.Fingerprint],
    *,
    sees_files: bool = True,
) -> model.Device:
    """Return a device without its edits; `known` keeps the fingerprints of nodes."""
    entry: model.Device = {"spec": spec, "edits": 0, "facts": [], "refuse": ""}
    nodes = (node for part in parts.values() for node in part.edits.get("deviceNodes", ()))
    for path in dict.fromkeys(node.get("hostPath") or node["path"] for node in nodes):
        if path not in known:
            known[path] = fingerprints.take("node", path)
        entry["facts"].append(known[path])
    entry["refuse"] = _missing(plan, parts) if sees_files else ""
    return entry


def _add_device(
    plan: model.Plan, names: Sequence[str], parts: Mapping[str, Part], path: str
) -> None:
    """Compile one device; devices with equal edits share them, so no edit is applied twice."""
    entry = _entry(plan, parts, 0, {})
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

    If there is only the part "", its hook is an OCI hook for every container: a Tegra's lists name
    whole directories, and only the hook sees the libraries in them.
    """
    compiled = {name: fragments(part.edits, source) for name, part in parts.items()}
    base = compiled.pop("")
    if not compiled:
        work = parts[""].work
        if work is not None:
            text = hook_command.text({"program": plan["hook"], "work": work})
            base["hooks"] = {hook_command.POINT: [text]}
        return base
    base["parts"] = compiled
    for name, part in parts.items():
        edits = compiled.get(name, base)
        edits["cache"] = list(part.cache)
        if part.work is not None:
            edits["work"] = part.work
    return base


def version_fingerprints(roots: Roots) -> list[fingerprints.Fingerprint]:
    """Return the fingerprints of the files that `procfs.driver_version` reads."""
    file = f"{roots.proc}/driver/nvidia/version"
    taken = [fingerprints.take("text", file)]
    if not os.path.exists(file):
        taken.append(fingerprints.take("text", f"{roots.sys}/module/nvidia/version"))
    return taken


def _drift(parts: Mapping[str, Part], roots: Roots, taken: list[fingerprints.Fingerprint]) -> str:
    """Return the reason if a spec is for another driver, else ""; add fingerprints to `taken`."""
    mounts = (mount for part in parts.values() for mount in part.edits.get("mounts", ()))
    libraries = [path for path in map(mounted.driver_library, mounts) if "/libcuda." in path]
    if libraries:
        taken += version_fingerprints(roots)
        taken.append(fingerprints.take("stat", libraries[0]))
        version, loaded = mounted.version_of(libraries[0]), procfs.driver_version(roots)
        if loaded and version != loaded:
            return f"it is for driver {version}, but {loaded} is loaded"
    return ""


def _missing(plan: model.Plan, parts: Mapping[str, Part]) -> str:
    for part in parts.values():
        for mount in part.edits.get("mounts", ()):
            if mount.get("type") == "bind" or {"bind", "rbind"} & set(mount.get("options", ())):
                path = mount["hostPath"]
                if not os.path.exists(path):
                    return f"{path} is gone"
    hooks = [hook for part in parts.values() for hook in part.edits.get("hooks", ())]
    programs = [(hook["path"], hook.get("env", ())) for hook in hooks]
    if any(part.work for part in parts.values()):
        programs.append((plan["hook"]["path"], plan["hook"]["env"]))
    problems = (mounted.hook_problem(path, env) for path, env in programs)
    return next((problem[1] for problem in problems if problem), "")


def in_parts(inventory: Inventory, options: Options) -> Own:
    """Return the edits by capability: key "" has those of every container.

    Each other key has the edits that its capability adds. Raises UsageError, UnknownDeviceError or
    HostError as `generate`.
    """
    job = generate.prepare(inventory, options)
    return Own(
        kind=job.kind,
        common=_parts(job, injection.for_every_container(inventory), is_common=True),
        devices=[
            (device.names, _parts(job, _joined(device.injections), is_common=False))
            for device in job.devices
        ],
        hook=cdi_hooks.program(options.hook_path),
    )


def _joined(injections: tuple[Injection, ...]) -> Injection:
    nodes, files, links = zip(*injections, strict=True)
    return Injection(
        tuple(dict.fromkeys(chain(*nodes))),
        tuple(dict.fromkeys(chain(*files))),
        tuple(dict.fromkeys(chain(*links))),
    )


def _parts(job: Job, content: Injection, *, is_common: bool) -> dict[str, Part]:
    """Return the parts of the capabilities that have any entry; "" is always included."""
    nodes = capabilities.nodes_by_capability(content.nodes)
    files = capabilities.files_by_capability(content.files)
    default_files = capabilities.files_of(content.files, capabilities.DEFAULT)
    all_files = capabilities.files_of(content.files, capabilities.NAMES)
    files["compat32"] = tuple(file for file in all_files if file not in default_files)
    shares = {name: Injection(nodes[name], files[name]) for name in nodes}
    shares[""] = shares[""]._replace(links=content.links)
    shares = {name: share for name, share in shares.items() if any(share) or not name}
    works = {name: _work(job, name, share, is_common=is_common) for name, share in shares.items()}
    merged = merge(list(works.values()))
    return {
        name: Part(
            edits=_edits(job, name, share, is_common=is_common),
            work=works[name] if any(works[name].values()) else None,
            cache=linker_entries(share.files, merged),
        )
        for name, share in shares.items()
    }


def _work(job: Job, name: str, share: Injection, *, is_common: bool) -> model.Work:
    if is_common and not name:
        return cdi_hooks.common_work(job.inventory, job.hooks, share.files)
    return cdi_hooks.work_of(job.hooks, share.files, share.links)


def _edits(job: Job, name: str, share: Injection, *, is_common: bool) -> ContainerEdits:
    env = []
    if is_common:
        env = [*generate.libcuda_env(job, share.files), *([] if name else [generate.VOID_ENV])]
    return cast("ContainerEdits", cdi_edits.tidy(generate.edits(job, share, env=env), {}))


def linker_entries(files: Iterable[DriverFile], work: model.Work) -> list[list[str]]:
    """Return (machine, name, container path) of each library that is mounted by itself.

    By these entries of ld.so.cache a container's dynamic linker finds the driver's libraries. The
    names are those that the hook computes in a container (nvct.container.rootfs.libraries): the
    SONAME, and `libX.so` if `work` makes such a link. Computed in advance, they save a read of the
    mounted files.
    """
    links: dict[str, dict[str, str]] = {}
    for target, path in work["links"]:
        folder, name = os.path.split(path)
        links.setdefault(folder, {})[name] = target
    names: dict[tuple[str, str, str], str] = {}
    for file in files:
        folder, name = os.path.split(file.container_path)
        if not file.machine or folder not in work["folders"] or not is_library(name):
            continue
        soname = os.path.basename(file.soname) or name
        beside = _leading_to(name, links.get(folder, {}))
        key = file.machine, folder, soname
        if soname == name or soname in beside:
            names[key] = soname
        elif key not in names or order(names[key]) <= order(name):
            names[key] = name
        for link in beside:
            if link.endswith(".so") and soname.startswith(link):
                names[file.machine, folder, link] = link
    return [
        [machine, name, f"{folder}/{file}"]
        for (machine, folder, name), file in sorted(names.items())
    ]


def _leading_to(name: str, links: dict[str, str]) -> list[str]:
    leading: list[str] = []
    queue = [name]
    while queue:
        target = queue.pop()
        new = [link for link, text in links.items() if text == target and link not in leading]
        queue += new
        leading += new
    return leading
