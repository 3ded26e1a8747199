# SPDX-License-Identifier: Apache-2.0
"""The compiler of plans: makes OCI fragments from CDI specs, and from this host's inventory.

Cold. `nvct.container.plan.model` describes the result. A spec that no longer fits the host is
compiled too, with the reason to refuse it: a create that needs the spec fails with that reason.
nvct's own plan has a part for each capability: a create combines the parts that are asked for.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import NamedTuple, TypeAlias, cast

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

Compile: TypeAlias = "Callable[[], tuple[model.Edits, str]]"
"""Returns compiled edits, and a text that only equal edits have. Raises NvctError."""


class Part(NamedTuple):
    """Edits of a container, with the hook's work and the entries of ld.so.cache."""

    edits: ContainerEdits  # in nvct's own plan without the hook
    work: model.Work | None = None
    cache: Sequence[list[str]] = ()


class Own(NamedTuple):
    """The input of nvct's own plan."""

    kind: str
    # parts by capability: key "" has the part that every container gets, each other key the part
    # that its capability adds
    common: Mapping[str, Part]
    # names of a device, and the device's parts by capability
    devices: Sequence[tuple[Sequence[str], Mapping[str, Part]]]
    hook: model.Program | None = None


class Known:
    """A cache of the compiled edits of devices, for a caller that compiles the same specs again.

    The key is the device's object: a file that is read again has new ones. Edits that the last
    compilation did not use are dropped.
    """

    __slots__ = ("_former", "_made")

    def __init__(self) -> None:
        self._former: dict[int, tuple[Device, model.Edits, str]] = {}
        self._made: dict[int, tuple[Device, model.Edits, str]] = {}

    def begin(self) -> None:
        """Begin a compilation."""
        self._former, self._made = self._made, {}

    def edits(self, device: Device, source: str) -> tuple[model.Edits, str]:
        """Return a device's edits, and a text that only equal edits have. Raises NvctError."""
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
    """Compile the specs of the CDI folders.

    Unless `sees_files`, mount sources and hook programs are assumed to exist. `known` is a cache.
    """
    known = known or Known()
    known.begin()
    job = _Compilation(config, roots, sees_files=sees_files)
    plan = job.plan
    plan["problems"] = [error.message for error in registry.errors.values()]
    numbers: dict[str, int] = {}
    for name, (spec_file, device) in sorted(registry.devices.items()):
        path = spec_file.path
        if path not in numbers:
            numbers[path] = len(numbers)
            job.add_spec(path, _alone(spec_file.spec.get("containerEdits")))
        parts = _alone(device.get("containerEdits"))
        job.add_device([name], parts, numbers[path], partial(known.edits, device, path))
    plan["conflicts"] = dict(sorted(registry.conflicts.items()))
    # A kind is listed even if all its names conflict: then no other source must answer for it.
    plan["kinds"] = sorted({n.partition("=")[0] for n in (*plan["devices"], *plan["conflicts"])})
    return plan


def compile_spec(spec: Spec, path: str, config: str, roots: Roots | None = None) -> model.Plan:
    """Compile one spec that nvct has made for this host."""
    common = _alone(spec.get("containerEdits"))
    devices = [([each["name"]], _alone(each.get("containerEdits"))) for each in spec["devices"]]
    return compile_own(Own(spec["kind"], common, devices), path, config, roots)


def compile_own(own: Own, path: str, config: str, roots: Roots | None = None) -> model.Plan:
    """Compile nvct's own plan from its parts."""
    job = _Compilation(config, roots)
    plan = job.plan
    if own.hook:
        plan["hook"] = own.hook
    job.add_spec(path, own.common)
    for names, parts in own.devices:
        full = [f"{own.kind}={name}" for name in names]
        job.add_device(full, parts, 0, partial(job.edits, parts, path))
    plan["devices"] = dict(sorted(plan["devices"].items()))
    plan["kinds"] = [own.kind]
    return plan


def _alone(edits: ContainerEdits | None) -> dict[str, Part]:
    """Return the edits of a spec as a part that every container gets."""
    return {"": Part(edits or {})}


class _Compilation:
    """A plan that is being made; `sees_files` as in `compile_registry`."""

    def __init__(self, config: str, roots: Roots | None, *, sees_files: bool = True) -> None:
        self.plan = empty(config)
        self._roots = roots or Roots()
        self._sees_files = sees_files
        self._nodes: dict[str, fingerprints.Fingerprint] = {}  # by path
        self._numbers: dict[str, int] = {}  # of the plan's edits, by their text

    def add_spec(self, path: str, parts: Mapping[str, Part]) -> None:
        """Compile a spec's common edits, and check whether the spec still fits the host."""
        facts: list[fingerprints.Fingerprint] = []
        drift = _drift(parts, self._roots, facts) or self._missing(parts)
        compiled, _, problem = _attempt(path, partial(self.edits, parts, path))
        self.plan["specs"].append(
            {"path": path, "facts": facts, "edits": compiled, "refuse": drift or problem}
        )

    def add_device(
        self, names: Sequence[str], parts: Mapping[str, Part], spec: int, compile_: Compile
    ) -> None:
        """Add a device of a spec; equal edits are stored once, and a create applies them once."""
        edits = self.plan["edits"]
        nodes = (node for part in parts.values() for node in part.edits.get("deviceNodes", ()))
        paths = dict.fromkeys(node.get("hostPath") or node["path"] for node in nodes)
        for path in paths.keys() - self._nodes.keys():
            self._nodes[path] = fingerprints.take("node", path)
        refuse = self._missing(parts)
        compiled, text, problem = _attempt(self.plan["specs"][spec]["path"], compile_)
        number = self._numbers.setdefault(text, len(edits))
        if number == len(edits):
            edits.append(compiled)
        entry: model.Device = {
            "spec": spec,
            "edits": number,
            "facts": [self._nodes[path] for path in paths],
            "refuse": refuse or problem,
        }
        self.plan["devices"].update(dict.fromkeys(names, entry))

    def edits(self, parts: Mapping[str, Part], source: str) -> tuple[model.Edits, str]:
        """Return the compiled edits of some parts, and a text that only equal edits have.

        If "" is the only part, its hook is an OCI hook for every container: a Tegra's CSV files
        name whole directories, and only the hook sees the libraries in them. Raises NvctError.
        """
        compiled = {name: fragments(part.edits, source) for name, part in parts.items()}
        base = compiled.pop("")
        if compiled:
            base["parts"] = compiled
            for name, part in parts.items():
                edits = compiled.get(name, base)
                edits["cache"] = list(part.cache)
                if part.work is not None:
                    edits["work"] = part.work
        elif parts[""].work is not None:
            text = hook_command.text({"program": self.plan["hook"], "work": parts[""].work})
            base["hooks"] = {hook_command.POINT: [text]}
        return base, json.dumps(base)

    def _missing(self, parts: Mapping[str, Part]) -> str:
        """Return why a file that parts need is not usable, "" if all are."""
        if not self._sees_files:
            return ""
        for part in parts.values():
            for mount in part.edits.get("mounts", ()):
                if mount.get("type") == "bind" or {"bind", "rbind"} & set(
                    mount.get("options", ())
                ):
                    path = mount["hostPath"]
                    if not os.path.exists(path):
                        return f"{path} is gone"
        hooks = [hook for part in parts.values() for hook in part.edits.get("hooks", ())]
        programs = [(hook["path"], hook.get("env", ())) for hook in hooks]
        if any(part.work for part in parts.values()):
            programs.append((self.plan["hook"]["path"], self.plan["hook"]["env"]))
        problems = (mounted.hook_problem(path, env) for path, env in programs)
        return next((problem[1] for problem in problems if problem), "")


def _attempt(source: str, compile_: Compile) -> tuple[model.Edits, str, str]:
    """Return compiled edits, their text and ""; no edits and the reason if compiling fails."""
    try:
        return (*compile_(), "")
    except NvctError as error:
        return model.no_edits(), "", error.message.removeprefix(f"{source}: ")


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


def in_parts(inventory: Inventory, options: Options) -> Own:
    """Return the input of nvct's own plan, in parts by capability.

    Raises UsageError, UnknownDeviceError or HostError as `generate`.
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
    """Return the parts by capability; a capability without entries has none, "" always has one."""
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
    SONAME, and `libX.so` if `work` makes such a link. With them, the hook does not read the
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
