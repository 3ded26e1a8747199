# SPDX-License-Identifier: Apache-2.0
"""What every caller's container is asked: devices, libraries, the linker."""

from __future__ import annotations

import subprocess

from tests.engines.checks import LISTED, NODES, UUID

VIEW = "/.nvct/driver/lib64/libcuda.so.1"
"""libcuda by a specification in layout farm."""
SCRIPT = f"{NODES}; nvidia-smi -L; {LISTED}"


def has_gpus(done: subprocess.CompletedProcess[str], count: int = 1, libcuda: str = VIEW) -> None:
    """Assert that SCRIPT, in lines that may have a prefix, found GPUs and libcuda at a path."""
    output = done.stdout + done.stderr
    assert done.returncode == 0, done
    assert len(UUID.findall(output)) == count, done
    lines = [line.split()[-1] for line in output.splitlines() if line.strip()]
    assert str(count) in lines, done
    assert not libcuda or libcuda in lines, done
