# SPDX-License-Identifier: Apache-2.0
"""Programs on a simulated node, for tests."""

import subprocess
from collections.abc import Mapping, Sequence

from nvct_sim import attach
from nvct_sim.process import spawn
from nvct_sim.tree import Node


def run_in(
    node: Node,
    argv: Sequence[str],
    env: Mapping[str, str] | None = None,
    *,
    driver_root: str = attach.DRIVER_ROOT,
    host_run: bool = True,
    cwd: str | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a program on a node and return its exit status and output."""
    process = spawn(
        argv, lambda: attach.enter(node, driver_root=driver_root, host_run=host_run), env=env, cwd=cwd,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    out, err = process.communicate()
    return subprocess.CompletedProcess(
        list(argv), process.returncode, out.decode(errors="replace"), err.decode(errors="replace")
    )
