# SPDX-License-Identifier: Apache-2.0
"""Hook noop: nothing, successfully. It shows that hooks are started at all."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.container.cdi_hook.context import Context


def run(_context: Context) -> None:
    """Do nothing, and read nothing."""
