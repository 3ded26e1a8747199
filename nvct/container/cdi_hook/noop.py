# SPDX-License-Identifier: Apache-2.0
"""Hook noop: does nothing. It shows that the runtime starts hooks."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.container.cdi_hook.context import Context


def run(_context: Context) -> None:
    """Do nothing."""
