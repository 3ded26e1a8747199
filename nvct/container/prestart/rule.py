# SPDX-License-Identifier: Apache-2.0
"""One device rule of a container: who may open what, and how.

Hot; apart from `rules`, which gives it to those that deliver it.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

ANY = -1


class Rule:
    """One device rule.

    Attributes:
        allow: whether it allows or denies.
        kind: "c", "b" or "a" for both.
        major, minor: ANY for every number.
        access: of "rwm".
    """

    __slots__ = ("access", "allow", "kind", "major", "minor")

    def __init__(self, kind: str, major: int, minor: int, access: str, *, allow: bool) -> None:
        """Keep them."""
        self.kind = "c" if kind == "u" else kind
        self.major = major
        self.minor = minor
        self.access = access
        self.allow = allow

    @classmethod
    def read(cls, entry: dict[str, Any]) -> Rule:
        """Make one of an entry of linux.resources.devices, as runtimes read it."""
        numbers = [entry.get(key) for key in ("major", "minor")]
        major, minor = [n if isinstance(n, int) and n >= 0 else ANY for n in numbers]
        access = str(entry.get("access") or "rwm")
        kind = str(entry.get("type") or "a")
        return cls(kind, major, minor, access, allow=entry.get("allow") is True)

    @property
    def decides_everything(self) -> bool:
        """Whether no rule before this one matters."""
        return (
            self.kind == "a" and self.major == self.minor == ANY and set(self.access) >= set("rwm")
        )

    def __str__(self) -> str:
        numbers = ["*" if n == ANY else str(n) for n in (self.major, self.minor)]
        return f"{self.kind} {':'.join(numbers)} {self.access}"
