# SPDX-License-Identifier: Apache-2.0
"""Finds the differences between CDI specs and the host.

Contract: changes nothing, and reads only stat data of the files that specs name, and the start of
a spec file for its provenance. The checks that fit any vendor's spec run on every spec in force;
the driver's version and the GPUs are checked only in specs that give an NVIDIA driver. Each
difference occurs once per spec, however many devices it affects.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from nvct.cdi import types as cdi
from nvct.cdi import versions
from nvct.cdi.check import conflicts, coverage, mounted
from nvct.cdi.check.conflicts import Drift, EffectiveSpec, Kind
from nvct.cdi.make import provenance
from nvct.cdi.make.generate import ALLOW_BUILDS
from nvct.cdi.make.provenance import Identity
from nvct.cdi.read.registry import Registry
from nvct.host import procfs
from nvct.host.gpu import nodes
from nvct.host.model import Inventory
from nvct.linux import device_nodes

BIND = {"bind", "rbind"}


@dataclass(frozen=True, slots=True, kw_only=True)
class HostState:
    """The current state of the host; `loaded` is the kernel module's version, "" for none."""

    live: Inventory | None
    loaded: str
    stat_node: nodes.StatNode = device_nodes.node


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The result of a check."""

    specs: int
    devices: int
    gives_driver: bool  # whether a spec gives an NVIDIA driver
    loaded: str
    drift: tuple[Drift, ...]
    # the devices of this host that an admin excluded from the specs
    held_back: tuple[str, ...] = ()
    # a sentence for each spec that has no hooks, or whose devices every build can use
    choices: tuple[str, ...] = ()


def check(registry: Registry, host: HostState) -> Report:
    """Compare the specs of a registry with the host; never raises."""
    specs = conflicts.in_force(registry)
    drifts, held_back = conflicts.overlaps(registry), list[Drift]()
    for spec in specs:
        drifts += _spec(spec, host)
    if host.live and host.live.mode == "nvml":
        changed, missing = coverage.compare(specs, host.live)
        is_limited = any(spec.origin and spec.origin.only for spec in specs)
        drifts += changed if is_limited else [*changed, *missing]
        held_back = missing if is_limited else []
    return Report(
        specs=len(specs),
        devices=len(registry.devices),
        gives_driver=any(driver_version(spec) for spec in specs),
        loaded=host.loaded,
        drift=tuple(drifts),
        held_back=tuple(drift.sentence.removeprefix(coverage.NOT_GIVEN) for drift in held_back),
        choices=tuple(sentence for spec in specs for sentence in _choices(spec)),
    )


def _choices(spec: EffectiveSpec) -> Iterator[str]:
    path = spec.file.path
    if spec.origin and spec.origin.no_hooks:
        yield f"{path}: no hooks, as `nvct publish --no-hooks={spec.origin.no_hooks}` says"
    holders = versions.objects(spec.file.spec, "named")
    if any(str(one.get("annotations", {}).get(ALLOW_BUILDS)).lower() == "true" for one in holders):
        yield f"{path}: every BuildKit build can use the devices, as --allow-builds says"


def driver_version(spec: EffectiveSpec) -> str:
    """Return the version of the driver that a spec gives, "" if it gives none or is unknown."""
    for edits, _ in spec.edits():
        for mount in edits.get("mounts", ()):
            if version := mounted.version_of(mounted.driver_library(mount)):
                return version
    return spec.origin.driver if spec.origin else ""


def _spec(spec: EffectiveSpec, host: HostState) -> list[Drift]:
    drifts: dict[tuple[Kind, str], Drift] = {}
    for drift in (*_version(spec, host), *_parts(spec, host), *_view(spec, host)):
        key = drift.kind, drift.path
        before = drifts.get(key)
        # A difference in the common edits has no devices: it affects all of them.
        if before and before.devices and drift.devices[-1:] != before.devices[-1:]:
            drifts[key] = replace(before, devices=(*before.devices, *drift.devices))
        elif not before:
            drifts[key] = drift
    return list(drifts.values())


def _version(spec: EffectiveSpec, host: HostState) -> Iterator[Drift]:
    version = driver_version(spec)
    if not version or version == host.loaded:
        return
    if not host.loaded and host.live and host.live.mode != "nvml":
        return  # WSL has no NVIDIA module
    now = (
        f"but {host.loaded} is loaded"
        if host.loaded
        else f"and {procfs.NOT_LOADED}: modprobe nvidia"
    )
    yield spec.drift("driver-version", f"it is for driver {version}, {now}")


def _parts(spec: EffectiveSpec, host: HostState) -> Iterator[Drift]:
    identities = spec.origin.files if spec.origin else {}
    for edits, devices in spec.edits():
        parts = (
            *((_mount(mount, identities), mount["hostPath"]) for mount in edits.get("mounts", ())),
            *(
                (_node(node, host.stat_node, is_ours=spec.origin is not None), _host(node))
                for node in edits.get("deviceNodes", ())
            ),
            *(
                (mounted.hook_problem(hook["path"], hook.get("env", ())), hook["path"])
                for hook in edits.get("hooks", ())
            ),
        )
        for problem, path in parts:
            if problem:
                yield spec.drift(*problem, path, devices)


def _view(spec: EffectiveSpec, host: HostState) -> Iterator[Drift]:
    """Compare the driver's files with those that a mounted view was made of."""
    views = [m for edits, _ in spec.edits() for m in edits.get("mounts", ()) if mounted.is_view(m)]
    if not views or spec.origin is None or host.live is None:
        return
    for file in host.live.files:
        problem = _changed_file(file.host_path, spec.origin.files.get(file.container_path))
        if problem:
            yield spec.drift(*problem, file.host_path)


def _mount(mount: cdi.Mount, identities: Mapping[str, Identity]) -> tuple[Kind, str] | None:
    path = mount["hostPath"]
    is_bind = mount.get("type", "") in {"", "none", "bind"} or BIND & set(mount.get("options", ()))
    if not is_bind or not path.startswith("/"):
        return None  # e.g. a tmpfs
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return "file-gone", f"{path} is gone"
    except OSError as error:
        return "file-gone", f"{path} cannot be used: {error.strerror}"
    return _changed_file(path, identities.get(mount["containerPath"]))


def _changed_file(path: str, before: Identity | None) -> tuple[Kind, str] | None:
    now = provenance.identity(path)
    if before is None or now is None or provenance.is_same(before, now):
        return None
    return (
        "file-changed",
        f"{path} is not the file from which the spec was made: {_changed(before, now)}",
    )


def _changed(before: Identity, now: Identity) -> str:
    if before[2] != now[2]:
        return f"it has {now[2]} bytes, not {before[2]}"
    return "it is another inode" if before[1] != now[1] else "it has been written since"


def _host(node: cdi.DeviceNode) -> str:
    return node.get("hostPath") or node["path"]


def _node(
    node: cdi.DeviceNode, stat_node: nodes.StatNode, *, is_ours: bool
) -> tuple[Kind, str] | None:
    path = _host(node)
    kind = node.get("type", "")
    try:
        node_stat = stat_node(path)
        numbers, types = node_stat[:2] if node_stat else None, {"", "c", "u"}
        if not node_stat:
            status = os.lstat(path)
            if stat.S_ISFIFO(status.st_mode):
                return None if kind in {"", "p"} else ("node-changed", f"{path} is a FIFO")
            if not stat.S_ISBLK(status.st_mode):
                return "node-changed", f"{path} is not a device node"
            numbers, types = (os.major(status.st_rdev), os.minor(status.st_rdev)), {"", "b"}
    except (FileNotFoundError, NotADirectoryError):
        return "node-gone", f"device node {path} is gone"
    except OSError as error:
        return "node-gone", f"device node {path} cannot be used: {error.strerror}"
    if kind not in types:
        return "node-changed", f"{path} is not of type {kind}, which the spec says"
    in_spec = node.get("major", 0), node.get("minor", 0)
    if numbers and in_spec[0] and in_spec != numbers:
        return (
            "node-changed",
            f"{path} is device {numbers[0]}:{numbers[1]}, the spec says {in_spec[0]}:{in_spec[1]}",
        )
    # Other vendors may choose mode and gid; nvct writes those of the host.
    return _access(node, path, node_stat[2:]) if is_ours and node_stat else None


def _access(
    node: cdi.DeviceNode, path: str, found: tuple[int, int, int]
) -> tuple[Kind, str] | None:
    mode, _, gid = found
    in_spec = node.get("fileMode", mode & 0o777)
    if in_spec != mode & 0o777:
        return "node-changed", f"{path} has mode {mode & 0o777:o}, the spec says {in_spec:o}"
    if node.get("gid", 0) != gid:
        return "node-changed", f"{path} has gid {gid}, the spec says {node.get('gid', 0)}"
    return None
