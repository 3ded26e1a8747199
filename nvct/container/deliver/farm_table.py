# SPDX-License-Identifier: Apache-2.0
"""What of plan["farm"] a container gets: by its driver capabilities (nvct.compile.farm_table).

Hot. Pure: values in, values out.
"""

from __future__ import annotations

from nvct.container.plan.model import is_wanted
from nvct.oci import jsontext

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.container.plan.model import Farm

IN_VIEW = "VIEW/"


class Share:
    """A container's share of a view.

    Attributes:
        table: of the view.
    """

    __slots__ = ("_capabilities", "table")

    def __init__(self, table: Farm, capabilities: list[str] | None) -> None:
        """Keep both; capabilities as `nvct.container.plan.model.collect` takes them."""
        self.table = table
        self._capabilities = capabilities

    def has(self, capability: str) -> bool:
        """Tell whether a capability is among the container's; "" is everybody's."""
        return not capability or is_wanted(capability, self._capabilities)

    def of(self, key: str) -> list[list[str]]:
        """Return the entries under a key of the table, each once."""
        groups: dict[str, list[list[str]]] = self.table[key]  # type: ignore[literal-required]  # callers' literals
        found: dict[str, list[str]] = {}
        for name, entries in groups.items():
            if self.has(name):
                for entry in entries:
                    found["\0".join(entry)] = entry
        return list(found.values())

    def at(self, key: str, place: str) -> list[tuple[str, str]]:
        """Return (name, path in the container) of the entries under a key."""
        return [(name, f"{place}/{path}") for name, path in self.of(key)]

    def singles(self) -> list[tuple[list[str], str]]:
        """Return what has a place of its own, with its path in the view, "" where it has none."""
        inside = self.table["view"] + "/"
        found = []
        for mount in self.of("mounts"):
            value = jsontext.parse(mount[1], "a plan")
            source = str(value.get("source", "")) if isinstance(value, dict) else ""
            found.append((mount, source[len(inside) :] if source.startswith(inside) else ""))
        return found

    def links(self) -> list[list[str]]:
        """Return the links that stand outside of the view, with their paths in it."""
        return self.of("links") + (self.of("links32") if self._has_32_bits() else [])

    def of_32_bits(self, place: str) -> list[tuple[str, str]] | None:
        """Return 32-bit libraries, None for who has not asked for them by name."""
        return self.at("cache32", place) if self._has_32_bits() else None

    def _has_32_bits(self) -> bool:
        return self._capabilities is not None and "compat32" in self._capabilities

    def env(self, place: str) -> list[str]:
        """Return the variables."""
        found = []
        for name, entries in self.table["env"].items():
            for entry in entries if self.has(name) else ():
                key, equals, value = entry.partition("=")
                if value.startswith(IN_VIEW):
                    value = f"{place}/{value[len(IN_VIEW) :]}"
                found.append(f"{key}{equals}{value}")
        return found


def extended(env: list[str], name: str, *folders: str) -> str:
    """Return a variable of an environment with folders behind its own."""
    values = [entry.partition("=")[2] for entry in env if entry.startswith(f"{name}=")]
    parts = (values[-1] if values else "").split(":")
    return f"{name}=" + ":".join(dict.fromkeys([p for p in (*parts, *folders) if p]))
