# SPDX-License-Identifier: Apache-2.0
"""What every caller's container is asked: devices, libraries, the linker."""

import subprocess

from nvct_sim import attach
from tests.engines.box import DRIVER_ROOT, PROGRAMS, Box
from tests.engines.checks import LISTED, NODES, UUID
from tests.engines.daemons import SPEC
from tests.engines.engines import CONFIG
from tests.support.software_images import TRIPLET

__all__ = ["TRIPLET"]

VIEW = "/.nvct/driver/lib64/libcuda.so.1"
"""libcuda by a specification in layout farm."""
SCRIPT = f"{NODES}; nvidia-smi -L; {LISTED}"


def has_gpus(done: subprocess.CompletedProcess[str], count: int = 1, libcuda: str = VIEW) -> None:
    """Assert that SCRIPT, in lines that may have a prefix, found GPUs and libcuda at a path."""
    output = done.stdout + done.stderr
    assert done.returncode == 0, done
    assert len(UUID.findall(output)) == count, done
    lines = [line.replace("|", " ").split()[-1] for line in output.splitlines() if line.strip()]
    assert str(count) in lines, done
    assert not libcuda or libcuda in lines, done


def publish(box: Box, *flags: str) -> None:
    """Write the specification of the box's host as a user does."""
    box.write(
        CONFIG,
        f'[nvidia-container-cli]\nroot = "{DRIVER_ROOT}"\n'
        f'[nvct]\nfarm-dir = "{attach.farm_dir(DRIVER_ROOT)}"\n',
    )
    hook = {"NVIDIA_CTK_CDI_HOOK_PATH": f"{PROGRAMS}/nvidia-cdi-hook"}
    done = box.call("nvct", "publish", f"--output={SPEC}", *flags, env=hook)
    assert done.returncode == 0, done
