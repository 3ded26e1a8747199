# SPDX-License-Identifier: Apache-2.0
"""Graphics: libraries with versions of their own, and modules that Xorg and gbm load by path."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from nvct.host.libraries import Search
    from nvct.host.model import DriverFile


def find(search: Search, version: str, dirs: Sequence[str]) -> list[DriverFile]:
    """Return them."""
    del search, version, dirs
    return []
