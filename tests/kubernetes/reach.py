# SPDX-License-Identifier: Apache-2.0
"""What each container of a rendered chart reaches: the facts of the table in SECURITY.md."""

from __future__ import annotations

from dataclasses import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    Object = dict[str, Any]


@dataclass(frozen=True)
class Placed:
    """A container and the pod that it runs in.

    Attributes:
        owner: kind and name of the object that the pod is of.
        pod: its spec.
        container: as the manifest has it.
    """

    owner: str
    pod: Object
    container: Object

    @property
    def context(self) -> Object:
        """The container's securityContext."""
        context: Object = self.container.get("securityContext", {})
        return context


def containers(objects: Iterable[Object]) -> Iterator[Placed]:
    """Yield each container of rendered manifests, init containers first."""
    for each in objects:
        spec = each.get("spec", {})
        pod = spec if each["kind"] == "Pod" else spec.get("template", {}).get("spec")
        for container in [*pod.get("initContainers", ()), *pod["containers"]] if pod else ():
            yield Placed(f"{each['kind']} {each['metadata']['name']}", pod, container)
