# SPDX-License-Identifier: Apache-2.0
"""Lowers a CDI spec to the version of an old engine: removes fields of later versions.

Cold. Drops only fields that the devices can do without; each loss is a sentence. A field that the
devices need is an error that names it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, cast

from nvct.cdi import versions
from nvct.cdi.types import Spec
from nvct.errors import CdiSpecError, UsageError

Json: TypeAlias = dict[str, Any]

BIND = ("bind", "rbind")

# Hints for the reasons in `versions.NEEDS`; the others have the hint of `lower`.
HINTS = {
    "a class with a dot": "choose another --class, and no coherent annotations",
    "a device name that begins with a digit": "choose --device-name-strategy uuid or type-index",
    "the hostPath of a device node": "make the spec where the nodes have the container's paths",
}


def check_version(version: str) -> str:
    """Return a version that a spec can have, without a leading v.

    Raises:
        UsageError: the version is unknown, or no engine reads specs of it.
    """
    plain = version.removeprefix("v")
    if not versions.is_known(version) or versions.is_older(plain, versions.LOWEST):
        known = versions.KNOWN[versions.KNOWN.index(versions.LOWEST) :]
        raise UsageError(
            f"CDI version {version!r} is unknown, or too old for any engine",
            hint=f"it is one of {', '.join(known)}",
        )
    return plain


def lower(spec: Spec, maximum: str) -> tuple[Spec, list[str]]:
    """Return a spec that needs no version above a maximum, and sentences about the losses.

    Raises:
        UsageError: the maximum is not a version.
        CdiSpecError: the devices need a field of a later version.
    """
    maximum = check_version(maximum)
    losses: list[str] = []
    for drop in DROPS:
        if versions.is_older(maximum, versions.minimum_version(spec)):
            spec = cast("Spec", drop(cast("Json", spec), losses))
    needed, reason = versions.minimum(spec)
    if versions.is_older(maximum, needed):
        raise CdiSpecError(
            f"the spec cannot be written for CDI {maximum}: {reason} needs {needed}",
            hint=HINTS.get(reason, "the devices do not work without it"),
        )
    spec = cast("Spec", {**spec, "cdiVersion": needed})
    return spec, losses


def _drop_gids(spec: Json, losses: list[str]) -> Json:
    gids: set[int] = set()

    def remove(edits: Json) -> Json:
        gids.update(edits.get("additionalGids", ()))
        return {key: value for key, value in edits.items() if key != "additionalGids"}

    changed = _each(spec, remove)
    if gids:
        losses.append(
            f"containers do not get the groups {', '.join(map(str, sorted(gids)))}: "
            "users that are not root may be refused the nodes of these groups"
        )
    return changed


def _drop_annotations(spec: Json, losses: list[str]) -> Json:
    holders = [spec, *spec["devices"]]
    if any(holder.get("annotations") for holder in holders):
        losses.append("annotations are left out")
    changed = {key: value for key, value in spec.items() if key != "annotations"}
    changed["devices"] = [
        {key: value for key, value in device.items() if key != "annotations"}
        for device in spec["devices"]
    ]
    return changed


def _drop_host_paths(spec: Json, losses: list[str]) -> Json:
    """Remove the host paths that are equal to the container paths; nothing is lost."""
    del losses

    def remove(edits: Json) -> Json:
        nodes = [
            {k: v for k, v in node.items() if k != "hostPath" or v != node["path"]}
            for node in edits.get("deviceNodes", ())
        ]
        return {**edits, "deviceNodes": nodes} if nodes else edits

    return _each(spec, remove)


def _drop_mount_types(spec: Json, losses: list[str]) -> Json:
    """Remove the type of bind mounts, which their options contain as well; nothing is lost."""
    del losses

    def remove(edits: Json) -> Json:
        mounts = [
            {k: v for k, v in mount.items() if k != "type" or not _is_bind(mount)}
            for mount in edits.get("mounts", ())
        ]
        return {**edits, "mounts": mounts} if mounts else edits

    return _each(spec, remove)


def _is_bind(mount: Json) -> bool:
    options = mount.get("options", ())
    return mount["type"] == "bind" and any(option in BIND for option in options)


def _each(spec: Json, change: Callable[[Json], Json]) -> Json:
    """Return a spec with changed edits; those of a device must not be empty."""
    changed = {**spec, "devices": []}
    if "containerEdits" in spec:
        changed["containerEdits"] = change(spec["containerEdits"])
    for device in spec["devices"]:
        edits = change(device["containerEdits"])
        if "intelRdt" not in edits and not any(edits.values()):
            raise CdiSpecError(
                f"device {device['name']} has no edits left for such a low CDI version",
                hint="choose a higher --cdi-version-max",
            )
        changed["devices"].append({**device, "containerEdits": edits})
    return changed


# The fields to drop, by the version that introduced them, latest first. netDevices and intelRdt
# are not here: a device that has them needs them.
DROPS: tuple[Callable[[Json, list[str]], Json], ...] = (
    _drop_gids,  # 0.7.0
    _drop_annotations,  # 0.6.0
    _drop_host_paths,  # 0.5.0
    _drop_mount_types,  # 0.4.0
)
