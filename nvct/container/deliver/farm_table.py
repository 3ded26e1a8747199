# SPDX-License-Identifier: Apache-2.0
"""Selects from plan["farm"] by driver capabilities; nvct.farm.table makes that table.

Hot. Pure functions: no input or output.
"""

from __future__ import annotations

from nvct.container.plan.model import is_wanted
from nvct.oci import jsontext

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.container.plan.model import Farm

IN_VIEW = "VIEW/"


class FarmEntries:
    """The entries of a view's table for one container."""

    __slots__ = ("_capabilities", "table")

    def __init__(self, table: Farm, capabilities: list[str] | None) -> None:
        self.table = table
        self._capabilities = capabilities

    def has(self, capability: str) -> bool:
        """Report whether the container has a driver capability; true for ""."""
        return not capability or is_wanted(capability, self._capabilities)

    def of(self, key: str) -> list[list[str]]:
        """Return the distinct entries under a key of the table."""
        groups: dict[str, list[list[str]]] = self.table[key]  # type: ignore[literal-required]  # callers' literals
        distinct: dict[str, list[str]] = {}
        for name, entries in groups.items():
            if self.has(name):
                for entry in entries:
                    distinct["\0".join(entry)] = entry
        return list(distinct.values())

    def at(self, key: str, mount_point: str) -> list[tuple[str, str]]:
        """Return (name, path in the container) of the entries under a key."""
        return [(name, f"{mount_point}/{path}") for name, path in self.of(key)]

    def singles(self) -> list[tuple[list[str], str]]:
        """Return the separate mounts, each with its source's path in the view, "" if not in it."""
        inside = self.table["view"] + "/"
        singles = []
        for mount in self.of("mounts"):
            value = jsontext.parse(mount[1], "a plan")
            source = str(value.get("source", "")) if isinstance(value, dict) else ""
            singles.append((mount, source[len(inside) :] if source.startswith(inside) else ""))
        return singles

    def links(self) -> list[list[str]]:
        """Return links outside of the view, each with its target's path in the view."""
        return self.of("links") + (self.of("links32") if self._has_32_bits() else [])

    def of_32_bits(self, mount_point: str) -> list[tuple[str, str]] | None:
        """Return 32-bit libraries, None if the capability compat32 is not requested by name."""
        return self.at("cache32", mount_point) if self._has_32_bits() else None

    def _has_32_bits(self) -> bool:
        return self._capabilities is not None and "compat32" in self._capabilities

    def env(self, mount_point: str) -> list[str]:
        """Return the environment variables."""
        variables = []
        for name, entries in self.table["env"].items():
            for entry in entries if self.has(name) else ():
                key, equals, value = entry.partition("=")
                if value.startswith(IN_VIEW):
                    value = f"{mount_point}/{value[len(IN_VIEW) :]}"
                variables.append(f"{key}{equals}{value}")
        return variables


def extended(env: list[str], name: str, *folders: str) -> str:
    """Return a search path variable of an environment with folders appended."""
    values = [entry.partition("=")[2] for entry in env if entry.startswith(f"{name}=")]
    existing = (values[-1] if values else "").split(":")
    return f"{name}=" + ":".join(dict.fromkeys([f for f in (*existing, *folders) if f]))
