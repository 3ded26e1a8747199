# SPDX-License-Identifier: Apache-2.0
"""Tables of a claim's configuration, which anybody may write: each field must be known."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from nvct.errors import RequestError


def checked(table: object, known: Collection[str], path: str) -> dict[str, Any]:
    """Return a table of somebody's document.

    Raises:
        RequestError: it is no table, or has an unknown field.
    """
    where = f"{path} of the claim's configuration" if path else "the claim's configuration"
    if not isinstance(table, dict):
        raise RequestError(f"{where} is no object")
    unknown = sorted(str(name) for name in table.keys() - set(known))
    if unknown:
        raise RequestError(
            f"{where} has no field {unknown[0]}", hint=f"known are {', '.join(known)}"
        )
    return table
