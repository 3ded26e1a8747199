# SPDX-License-Identifier: Apache-2.0
"""Versions of the CDI specification, and the lowest version that a spec needs.

A reader refuses a spec with fields of a later version than declared, so nvct declares the lowest
version that has all fields; old engines then read as many specs as possible. As in the CDI
library, the lowest is 0.3.0, which makes every 0.1.0 and 0.2.0 file unreadable.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from nvct.cdi.types import ContainerEdits, Spec

KNOWN = (
    "0.1.0", "0.2.0", "0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0",
)  # fmt: skip
LOWEST = "0.3.0"
LATEST = KNOWN[-1]


def is_known(version: str) -> bool:
    """Return whether a version exists; a leading v is permitted, as in the CDI library."""
    return version.removeprefix("v") in KNOWN


def is_older(version: str, other: str) -> bool:
    """Return whether a known version is older than another known one."""
    return KNOWN.index(version.removeprefix("v")) < KNOWN.index(other.removeprefix("v"))


def minimum_version(spec: Spec) -> str:
    """Return the lowest version that has all fields of a spec."""
    return minimum(spec)[0]


def minimum(spec: Spec) -> tuple[str, str]:
    """Return the lowest version that has all fields of a spec, and the field that needs it."""
    for version, reason, needs in NEEDS:
        if needs(spec):
            return version, reason
    return LOWEST, "every spec"


def all_edits(spec: Spec) -> Iterator[ContainerEdits]:
    """Yield the common edits of a spec, and the edits of each device."""
    yield spec.get("containerEdits") or {}
    for device in spec["devices"]:
        yield device.get("containerEdits") or {}


def objects(spec: Spec, kind: str) -> Iterator[dict[str, Any]]:
    """Yield the objects of a kind: "named" (the spec and its devices), or a member of edits."""
    if kind == "named":
        yield from (spec, *spec["devices"])  # type: ignore[misc]  # as plain dicts
        return
    for edits in all_edits(spec):
        value: Any = edits.get(kind, ())
        yield from [value] if isinstance(value, dict) else value


def has_hooks(spec: Spec) -> bool:
    """Report whether a spec starts a hook."""
    return any(edits.get("hooks") for edits in all_edits(spec))


def _edits_have(member: str) -> Callable[[Spec], bool]:
    """Return a test for a member of edits; intelRdt counts even if it is empty."""
    is_object = member == "intelRdt"
    return lambda spec: any(
        member in edits if is_object else edits.get(member) for edits in all_edits(spec)
    )


def _have(kind: str, member: str) -> Callable[[Spec], bool]:
    return lambda spec: any(entry.get(member) for entry in objects(spec, kind))


def _has_new_rdt(spec: Spec) -> bool:
    classes = objects(spec, "intelRdt")
    return any("schemata" in rdt or rdt.get("enableMonitoring") for rdt in classes)


def _has_digit_name(spec: Spec) -> bool:
    return any(device["name"][:1] in tuple("0123456789") for device in spec["devices"])


# Latest first. 0.8.0 and 1.0.0 changed the Go packages, not the documents.
NEEDS: tuple[tuple[str, str, Callable[[Spec], bool]], ...] = (
    ("1.1.0", "netDevices", _edits_have("netDevices")),
    ("1.1.0", "intelRdt's schemata and enableMonitoring", _has_new_rdt),
    ("0.7.0", "intelRdt", _edits_have("intelRdt")),
    ("0.7.0", "additionalGids", _edits_have("additionalGids")),
    ("0.6.0", "annotations", _have("named", "annotations")),
    ("0.6.0", "a class with a dot", lambda spec: "." in spec["kind"].partition("/")[2]),
    ("0.5.0", "a device name that begins with a digit", _has_digit_name),
    ("0.5.0", "the hostPath of a device node", _have("deviceNodes", "hostPath")),
    ("0.4.0", "the type of a mount", _have("mounts", "type")),
)
