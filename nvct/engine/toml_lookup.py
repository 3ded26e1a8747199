# SPDX-License-Identifier: Apache-2.0
"""What a TOML text has at a path, however it is spelled: header, dotted keys or inline table."""

from __future__ import annotations

from nvct.errors import EngineConfigError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from nvct.engine.toml_scan import Member, Path, Statement, Value


def value_at(lines: Sequence[Statement], path: Path) -> Value | None:
    """Return the value at a path, None where there is none or a table with a header."""
    for line in lines:
        if line.kind == "pair" and line.value is not None:
            if line.path == path:
                return line.value
            if line.value.kind == "inline" and path[: len(line.path)] == line.path:
                return _inside(line.value, path[len(line.path) :])
    return None


def _inside(value: Value, rest: Path) -> Value | None:
    for member in value.members:
        if member.parts == rest:
            return member.value
        if member.value.kind == "inline" and rest[: len(member.parts)] == member.parts:
            return _inside(member.value, rest[len(member.parts) :])
    return None


def member_at(lines: Sequence[Statement], path: Path) -> tuple[Value, int] | None:
    """Return the inline table that holds a key, and which of its members it is."""
    for line in lines:
        size = len(line.path)
        if line.kind == "pair" and line.value is not None and size < len(path):
            holder, rest = line.value, path[size:]
            if holder.kind != "inline" or path[:size] != line.path:
                continue
            return _holder(holder, rest)
    return None


def _holder(holder: Value, rest: Path) -> tuple[Value, int] | None:
    for place, member in enumerate(holder.members):
        if member.parts == rest:
            return holder, place
        if member.value.kind == "inline" and rest[: len(member.parts)] == member.parts:
            return _holder(member.value, rest[len(member.parts) :])
    return None


def span(member: Member) -> tuple[int, int]:
    """Return where a member of an inline table starts and ends."""
    return member.start, member.value.end


def is_table(lines: Sequence[Statement], path: Path) -> bool:
    """Say whether something lies below a path, or a header opens it."""
    return any(
        (line.kind in ("table", "tables") and line.path[: len(path)] == path)
        or (line.kind == "pair" and len(line.path) > len(path) and line.path[: len(path)] == path)
        for line in lines
    )


def refuse_in_the_way(lines: Sequence[Statement], wanted: Path, path: str) -> None:
    """Refuse a value, or an array of tables, where a table is needed on the way.

    Raises:
        EngineConfigError: there is one.
    """
    for size in range(1, len(wanted)):
        above = wanted[:size]
        value = value_at(lines, above)
        if value is not None and value.kind != "inline":
            raise EngineConfigError(
                f"{path}: {'.'.join(above)} is a value, not a table", hint="correct the file"
            )
        if any(line.kind == "tables" and line.path == above for line in lines):
            raise EngineConfigError(
                f"{path}: {'.'.join(above)} is an array of tables, not a table",
                hint="correct the file",
            )
