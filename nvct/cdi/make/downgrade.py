# SPDX-License-Identifier: Apache-2.0
"""Lowers a CDI spec to the version of an old engine: removes fields of later versions.

Cold side. Drops only fields without which the devices still work, and reports each in a sentence.
If the devices need a field, an error names it.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

from nvct.cdi import versions
from nvct.cdi.make.generate import ALLOW_BUILDS
from nvct.cdi.types import Spec
from nvct.errors import CdiSpecError, UsageError

BIND = ("bind", "rbind")

# Hints for the reasons in `versions.NEEDS`; the others have the hint of `lower`.
HINTS = {
    "a class with a dot": "choose another --class, and no coherent annotations",
    "a device name that begins with a digit": "choose --device-name-strategy uuid or type-index",
    "the hostPath of a device node": "generate it where nodes have the container's paths",
}


def check_version(version: str) -> str:
    """Return a version without a leading v; UsageError if no spec can have it."""
    plain = version.removeprefix("v")
    if not versions.is_known(version) or versions.is_older(plain, versions.LOWEST):
        known = versions.KNOWN[versions.KNOWN.index(versions.LOWEST) :]
        raise UsageError(
            f"CDI version {version!r} is unknown, or too old for any engine",
            hint=f"it is one of {', '.join(known)}",
        )
    return plain


def lower(spec: Spec, maximum: str) -> tuple[Spec, list[str]]:
    """Return a spec of at most a version, and what it lost; CdiSpecError if devices need more."""
    maximum = check_version(maximum)
    losses: list[str] = []
    spec = deepcopy(spec)
    for drop in DROPS:
        if versions.is_older(maximum, versions.minimum_version(spec)):
            drop(spec, losses)
    needed, reason = versions.minimum(spec)
    if versions.is_older(maximum, needed):
        raise CdiSpecError(
            f"the spec cannot be written for CDI {maximum}: {reason} needs {needed}",
            hint=HINTS.get(reason, "the devices do not work without it"),
        )
    spec["cdiVersion"] = needed
    return spec, losses


def _drop_gids(spec: Spec, losses: list[str]) -> None:
    gids: set[int] = set()
    for edits in versions.all_edits(spec):
        gids.update(edits.pop("additionalGids", ()))
    if gids:
        losses.append(
            f"containers do not get the groups {', '.join(map(str, sorted(gids)))}: "
            "users that are not root may be refused the nodes of these groups"
        )
    for device in spec["devices"]:
        edits = device["containerEdits"]
        if "intelRdt" not in edits and not any(edits.values()):
            raise CdiSpecError(
                f"device {device['name']} has no edits left for such a low CDI version",
                hint="choose a higher --cdi-version-max",
            )


def _drop_annotations(spec: Spec, losses: list[str]) -> None:
    removed = [holder.pop("annotations", None) for holder in versions.objects(spec, "named")]
    if any(removed):
        losses.append("annotations are left out")
    if any(annotations and ALLOW_BUILDS in annotations for annotations in removed):
        losses.append("--allow-builds has no effect: it is an annotation")


def _drop_host_paths(spec: Spec, _: list[str]) -> None:
    """Remove the host paths that are equal to the container paths; nothing is lost."""
    for node in versions.objects(spec, "deviceNodes"):
        if node.get("hostPath") == node["path"]:
            del node["hostPath"]


def _drop_mount_types(spec: Spec, _: list[str]) -> None:
    """Remove the type of bind mounts, which their options contain as well; nothing is lost."""
    for mount in versions.objects(spec, "mounts"):
        if mount.get("type") == "bind" and not set(BIND).isdisjoint(mount.get("options", ())):
            del mount["type"]


# The fields to drop, by the version that introduced them, latest first. netDevices and intelRdt
# are not here: a device that has them needs them.
DROPS: tuple[Callable[[Spec, list[str]], None], ...] = (
    _drop_gids,  # 0.7.0
    _drop_annotations,  # 0.6.0
    _drop_host_paths,  # 0.5.0
    _drop_mount_types,  # 0.4.0
)
