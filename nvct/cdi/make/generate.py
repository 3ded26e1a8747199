# SPDX-License-Identifier: Apache-2.0
"""Generates a CDI spec from an inventory.

Contract: equal inventories and options give equal documents; entries whose order does not matter
are sorted. No I/O. Majors and minors of nodes are written only with `node_numbers`; otherwise the
program that injects the nodes looks them up, because most of them change at each boot.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import NamedTuple, cast

from nvct import paths
from nvct.cdi import types as cdi
from nvct.cdi.make import edits as cdi_edits
from nvct.cdi.make import hooks, injection, naming
from nvct.cdi.make.edits import Json, combined, tidy
from nvct.cdi.make.injection import Device, Injection
from nvct.cdi.names import check_kind
from nvct.cdi.versions import minimum_version
from nvct.container.plan import model
from nvct.errors import RequestError, UsageError
from nvct.host.model import DriverFile, Inventory

VOID_ENV = "NVIDIA_VISIBLE_DEVICES=void"
ALLOW_BUILDS = "org.mobyproject.buildkit.device.autoallow"
"""With this annotation, BuildKit gives the devices to builds without --allow device
(solver/llbsolver/cdidevices)."""
COHERENT_KEY = "gpu.nvidia.com/coherent"
COHERENT_PARTS = {"true": "coherent", "false": "noncoherent"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of a generated spec."""

    # vendor, cls: the spec's kind; the mode's own if empty
    vendor: str = ""
    cls: str = ""
    device_name_strategies: Sequence[str] = ("index", "uuid")
    device_ids: Sequence[str] = ("all",)  # indices, UUIDs, names, "all" or "none"
    all_device: bool = True  # add a device "all" that contains the others
    hook_path: str = paths.HOOK_PATH
    # names of hooks whose work `apply` leaves out, or "all"
    disabled_hooks: Sequence[str] = ()
    # names that override disabled_hooks; chmod is off unless named here
    enabled_hooks: Sequence[str] = ()
    # write type, major and minor of device nodes, for engines that cannot look at the host's
    # nodes; such a spec is wrong after the next boot
    node_numbers: bool = False
    gid_groups: bool = True  # give containers the groups of nodes that others cannot use
    allow_builds: bool = False  # let BuildKit give the devices to every build
    # (from, to) pairs that replace roots of host paths, for a spec that is made in a container and
    # used on its host
    host_roots: Sequence[tuple[str, str]] = ()
    view: MountedView | None = None  # the driver's files as one mount; None for a mount per file


@dataclass(frozen=True, slots=True, kw_only=True)
class MountedView:
    """A farm view that a spec mounts."""

    source: str
    shown: model.View  # what the hook shows in the container
    files: Sequence[DriverFile]  # sockets and folders, which are not in a view
    env: Sequence[str]


class Job(NamedTuple):
    """One generation: inventory, options, the spec's kind, its devices, its enabled hooks."""

    inventory: Inventory
    options: Options
    kind: str
    devices: Sequence[Device]
    hooks: frozenset[str]


def prepare(inventory: Inventory, options: Options) -> Job:
    """Return what a spec is made of. UsageError, UnknownDeviceError, HostError without devices."""
    kind = _kind(inventory, options)
    strategies = naming.check_strategies(options.device_name_strategies)
    enabled = hooks.enabled_names(options.disabled_hooks, options.enabled_hooks)
    devices = injection.devices(
        inventory, options.device_ids, strategies, all_device=options.all_device
    )
    return Job(inventory, options, kind, devices, enabled & injection.RULES[inventory.mode].hooks)


def generate(inventory: Inventory, options: Options | None = None) -> cdi.Spec:
    """Return the CDI spec of a machine.

    A GPU with a known addressing mode has the annotation `COHERENT_KEY`; `split` removes it.
    Raises UsageError if an option has an unknown value; UnknownDeviceError if a device id names
    nothing; HostError if no device can be given to a container.
    """
    options = options or Options()
    job = prepare(inventory, options)
    common = _common_edits(job)
    entries = [
        _entry(name, edits, device)
        for device in job.devices
        for edits in (tidy(_device_edits(device, job), common),)
        for name in device.names
    ]
    spec: Json = {
        "cdiVersion": "",
        "kind": job.kind,
        "devices": sorted(entries, key=lambda entry: str(entry["name"])),
        "containerEdits": tidy(common, {}),
    }
    if options.allow_builds:
        spec["annotations"] = {ALLOW_BUILDS: "true"}
    for source, target in options.host_roots:
        spec = cdi_edits.move_root(spec, source, target)
    # Before this line, edits are plain dicts, so that they can be moved and compared.
    document = cast("cdi.Spec", spec)
    document["cdiVersion"] = minimum_version(document)
    return document


def _kind(inventory: Inventory, options: Options) -> str:
    rules = injection.RULES[inventory.mode]
    vendor, cls = options.vendor or rules.vendor, options.cls or rules.cls
    try:
        check_kind(vendor, cls)
    except RequestError as error:
        raise UsageError(error.message, hint=error.hint) from error
    return f"{vendor}/{cls}"


def _entry(name: str, edits: Json, device: Device) -> Json:
    entry: Json = {"name": name, "containerEdits": edits}
    if device.coherent is not None:
        entry["annotations"] = {COHERENT_KEY: str(device.coherent).lower()}
    return entry


def _device_edits(device: Device, job: Job) -> Json:
    # CDI refuses a device without an edit. This one changes nothing: it is also a common edit.
    return combined(_injected(part, job) for part in device.injections) or {"env": [VOID_ENV]}


def _injected(part: Injection, job: Job) -> Json:
    directories = sorted({os.path.dirname(node.path) for node in part.nodes} - {"/dev"})
    work = hooks.work_of(job.hooks, part.files, part.links)
    entries = hooks.chmod_hook(job.options.hook_path, job.hooks, directories)
    return edits(job, part, hooks=entries + hooks.apply_hook(job.options.hook_path, work))


def _common_edits(job: Job) -> Json:
    """Return the common edits; with a view, one mount has all of the driver's files."""
    view, content = job.options.view, injection.for_every_container(job.inventory)
    work = hooks.common_work(job.inventory, job.hooks, () if view else content.files)
    entries = hooks.apply_hook(job.options.hook_path, work, view.shown if view else None)
    if view is None:
        env = [*libcuda_env(job, content.files), VOID_ENV]
        return edits(job, content, env=env, hooks=entries)
    content = content._replace(files=tuple(view.files))
    common = edits(job, content, env=[*view.env, VOID_ENV], hooks=entries)
    mount = cdi_edits.mount(view.source, view.shown["mount_point"])
    return combined([common, {"mounts": [mount]}])


def libcuda_directories(files: Sequence[DriverFile]) -> list[str]:
    """Return the container directories that hold libcuda."""
    paths = (f.container_path for f in files if f.kind == "library" and f.capability != "compat32")
    splits = (os.path.split(path) for path in paths)
    return sorted({folder for folder, name in splits if f"{name}.".startswith("libcuda.so.")})


def libcuda_env(job: Job, files: Sequence[DriverFile]) -> list[str]:
    """Return the variable with libcuda's directories, [] if no file is libcuda."""
    dirs = libcuda_directories(files)
    has_env = dirs and injection.RULES[job.inventory.mode].has_libcuda_env
    return [f"NVIDIA_CTK_LIBCUDA_DIR={':'.join(dirs)}"] if has_env else []


def edits(
    job: Job, content: Injection, *, env: Sequence[str] = (), hooks: Sequence[Json] = ()
) -> Json:
    """Return container edits for nodes and files."""
    return cdi_edits.make(
        content.nodes,
        content.files,
        env=env,
        hooks=hooks,
        node_numbers=job.options.node_numbers,
        gid_groups=job.options.gid_groups,
    )


def split(spec: cdi.Spec) -> dict[str, cdi.Spec]:
    """Return specs by the suffix of their file names: "", "coherent", "noncoherent".

    As in nvidia-container-toolkit with the flag enable-coherent-annotations: schedulers on Grace
    systems can request one class of GPUs, and MIG devices are only in the whole spec. The
    annotation that distinguishes the GPUs is removed, and a part without devices is omitted. Each
    part has a device `all` if the spec has one.
    """
    spec = deepcopy(spec)
    by_value: dict[str | None, list[cdi.Device]] = {}
    for device in spec["devices"]:
        annotations = device.get("annotations", {})
        by_value.setdefault(annotations.pop(COHERENT_KEY, None), []).append(device)
        if not annotations:
            device.pop("annotations", None)
    specs = {"": _part(spec, spec["kind"], spec["devices"])}
    has_all = any(device["name"] == "all" for device in spec["devices"])
    for value, suffix in COHERENT_PARTS.items():
        devices = by_value.get(value, [])
        if devices and has_all:
            edits = combined(cast("Json", device["containerEdits"]) for device in devices)
            everyone = {"name": "all", "containerEdits": tidy(edits, {})}
            devices = [*devices, cast("cdi.Device", everyone)]
        if devices:
            specs[suffix] = _part(spec, f"{spec['kind']}.{suffix}", devices)
    return specs


def _part(spec: cdi.Spec, kind: str, devices: list[cdi.Device]) -> cdi.Spec:
    part = cast("cdi.Spec", {**spec, "kind": kind, "devices": devices})
    part["cdiVersion"] = minimum_version(part)
    return part
