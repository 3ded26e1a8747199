# SPDX-License-Identifier: Apache-2.0
"""The agent's process: `python -I -m nvct.agent [TASK...]`; `nvct agent` checks and starts it."""

from __future__ import annotations

import os
import sys

from nvct.errors import HostError, NvctError, line


def main() -> None:
    """Run the tasks that the arguments name."""
    try:
        from nvct.agent import nvml_supervisor

        # Before anything that starts a thread, and while this process is small.
        supervisor = nvml_supervisor.start()
        from nvct.agent import main as agent
        from nvct.agent.task_table import DEFAULT

        agent.run(sys.argv[1:] or DEFAULT, os.environ, supervisor)
    except (NvctError, OSError) as failure:
        error = failure if isinstance(failure, NvctError) else HostError(str(failure))
        sys.stderr.write(f"{line('nvct agent', error)}\n")
        sys.exit(error.exit_status)


if __name__ == "__main__":
    main()
