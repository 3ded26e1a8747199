# SPDX-License-Identifier: Apache-2.0
"""The driver's files as the node's own CDI specification gives them.

`nvct publish` writes a specification of the host. In layout farm, it gives the driver's files by
one mount of a view, and one hook. The device plugin cannot make a view from its container, so its
own specifications take these edits from the published one.
"""

from __future__ import annotations

from typing import NamedTuple

from nvct.cdi import registry
from nvct.cdi.types import ContainerEdits, Spec
from nvct.paths import GPU_KIND
from nvct.spec import mounted, provenance


class Published(NamedTuple):
    """The edits that give the driver's files.

    Attributes:
        path: of the published specification, "" if none gives a view of the driver.
        edits: its mounts, hooks and variables, {} without a path.
        reason: why there is no path.
    """

    path: str
    edits: ContainerEdits
    reason: str = ""


def find(folder: str, driver_version: str) -> Published:
    """Return the edits of the node's specification that mounts a view of a driver.

    Args:
        folder: of the host's CDI specifications.
        driver_version: the loaded driver's; the view of another one is not taken.
    """
    content = registry.scan((folder,))
    reasons = [error.message for error in content.errors.values()]
    for file in content.specs:
        if file.spec["kind"] != GPU_KIND:
            continue
        reason = _why_not(file.spec, file.path, driver_version)
        if not reason:
            return Published(file.path, _edits(file.spec))
        reasons.append(f"{file.path} {reason}")
    return Published("", {}, reasons[-1] if reasons else f"{folder} has no file of nvct publish")


def _why_not(spec: Spec, path: str, driver_version: str) -> str:
    """Return why the edits of a specification are not taken, "" if they are."""
    if not any(mounted.is_view(mount) for mount in _common(spec).get("mounts", ())):
        return "gives a mount for each file"
    origin = provenance.read(spec, path)
    if origin is None:
        return "does not say of which driver it is"
    if origin.driver != driver_version:
        return f"is of driver {origin.driver}, and {driver_version} is loaded"
    return ""


def _edits(spec: Spec) -> ContainerEdits:
    common = _common(spec)
    edits: ContainerEdits = {}
    if "env" in common:
        edits["env"] = common["env"]
    if "mounts" in common:
        edits["mounts"] = common["mounts"]
    if "hooks" in common:
        edits["hooks"] = common["hooks"]
    return edits


def _common(spec: Spec) -> ContainerEdits:
    return spec.get("containerEdits", {})
