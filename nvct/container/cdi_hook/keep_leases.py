# SPDX-License-Identifier: Apache-2.0
"""Hook keep-leases: the container's first process keeps the leases of the shim (free:N).

Hot. A createRuntime hook: it runs in the runtime's namespaces, where the process has its number.
"""

from __future__ import annotations

from nvct.container import leases
from nvct.container.cdi_hook.context import Context, process_of


def run(context: Context) -> None:
    """Rename the leases; BundleError or HostError if the process or a lease is gone."""
    pid, context.bundle = process_of(context.state())
    folder, holder, count = map(context.options.text, ("folder", "holder", "count"))
    leases.hand_over(folder, int(count), holder, pid)
