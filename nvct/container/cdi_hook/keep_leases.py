# SPDX-License-Identifier: Apache-2.0
"""Hook keep-leases: the container's first process keeps the leases of the shim (free:N).

Hot. A createRuntime hook: it runs in the runtime's namespaces, where the process has its number.
"""

from __future__ import annotations

from nvct.container import leases
from nvct.container.cdi_hook.context import STATE_HINT
from nvct.errors import BundleError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.container.cdi_hook.context import Context


def run(context: Context) -> None:
    """Rename the leases.

    Raises:
        BundleError: the container's state has no process.
        HostError: a lease is gone.
    """
    pid = context.state().get("pid")
    if not isinstance(pid, int) or isinstance(pid, bool) or pid < 2:
        raise BundleError(f"the container's state has the pid {pid!r:.40}", hint=STATE_HINT)
    options = context.options
    leases.hand_over(options.text("folder"), options.values("device"), options.text("holder"), pid)
