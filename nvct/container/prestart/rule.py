# SPDX-License-Identifier: Apache-2.0
"""One device rule of a container: a device and the allowed or denied access.

Hot; a module of its own because `rules` and the modules that `rules` loads import it.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

ANY = -1


class Rule:
    """One device rule.

    Attributes:
        kind: "c", "b" or "a" for both.
        major, minor: device numbers, or ANY.
        access: letters of "rwm": read, write, mknod.
    """

    __slots__ = ("access", "allow", "kind", "major", "minor")

    def __init__(self, kind: str, major: int, minor: int, access: str, *, allow: bool) -> None:
        self.kind = "c" if kind == "u" else kind
        self.major = major
        self.minor = minor
        self.access = access
        self.allow = allow

    @classmethod
    def read(cls, entry: dict[str, Any]) -> Rule:
        """Return the rule of an entry of linux.resources.devices, read as runtimes do."""
        numbers = [entry.get(key) for key in ("major", "minor")]
        major, minor = [n if isinstance(n, int) and n >= 0 else ANY for n in numbers]
        access = str(entry.get("access") or "rwm")
        kind = str(entry.get("type") or "a")
        return cls(kind, major, minor, access, allow=entry.get("allow") is True)

    @property
    def decides_everything(self) -> bool:
        """Whether the rule overrides all rules before it."""
        return (
            self.kind == "a" and self.major == self.minor == ANY and set(self.access) >= set("rwm")
        )

    def __str__(self) -> str:
        numbers = ["*" if n == ANY else str(n) for n in (self.major, self.minor)]
        return f"{self.kind} {':'.join(numbers)} {self.access}"
