# SPDX-License-Identifier: Apache-2.0
"""The agent's process: `python -I -m nvct.agent [TASK...]`; `nvct agent` checks and starts it."""

from __future__ import annotations

import gc
import os
import sys

from nvct.agent.core.program import GARBAGE, WORKER_ENV, EarlySignals
from nvct.errors import HostError, NvctError, line

TYPE_CHECKING = False
if TYPE_CHECKING:  # it imports asyncio, but NVML's process must be forked first
    from nvct.agent.nvml.client import NvmlClient


def main() -> None:
    """Run the tasks that the arguments name."""
    gc.set_threshold(GARBAGE)
    EarlySignals()  # tasks read their settings when they start, so an early SIGHUP has no effect
    try:
        client = _client(os.environ.get(WORKER_ENV, ""))
        from nvct.agent import main as agent
        from nvct.agent.task_table import DEFAULT

        agent.run(sys.argv[1:] or DEFAULT, os.environ, client)
    except (NvctError, OSError) as failure:
        error = failure if isinstance(failure, NvctError) else HostError(str(failure))
        sys.stderr.write(f"{line('nvct agent', error)}\n")
        sys.exit(error.exit_status)


def _client(worker: str) -> NvmlClient:
    """Return a client of the worker's socket; without a socket, start NVML's process here."""
    if worker:
        from nvct.agent.nvml.worker_client import NvmlWorkerClient

        return NvmlWorkerClient(worker)
    from nvct.agent.nvml import supervisor as nvml_supervisor

    # It forks: before anything starts a thread, and while this process is small.
    supervisor = nvml_supervisor.start()
    from nvct.agent.nvml.client import NvmlClient

    return NvmlClient(supervisor.connection)


if __name__ == "__main__":
    main()
