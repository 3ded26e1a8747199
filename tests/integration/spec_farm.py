# SPDX-License-Identifier: Apache-2.0
"""Containers of engines that read a CDI specification by the farm, on a simulated node."""

from __future__ import annotations

from tests.integration.inside import UUID, configure, generate, make, run

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

ASKS = {"cdi.k8s.io/test": "nvidia.com/gpu=0"}
MOUNT_POINT = "/.nvct/driver"
LISTED = "ldconfig -p | grep 'libcuda.so.1 ' | sed 's/.*=> //'"


def one_mount(work: Path) -> None:
    """A container has one mount of the driver's files and one hook, and finds the driver."""
    configure(work)
    spec = generate()
    common = spec["containerEdits"]
    assert [m["containerPath"] for m in common["mounts"]][:1] == [MOUNT_POINT], common["mounts"]
    script = (
        f"nvidia-smi -L; echo --; {LISTED}; echo --; ldconfig; {LISTED}; echo --; nvidia-smi -L;"
        " echo --; cat /etc/OpenCL/vendors/*.icd"
    )
    folder = make(work, "s-one", script, annotations=ASKS)
    said = run(work, folder)
    assert said.returncode == 0, said
    first, listed, again, last, icds = said.stdout.split("--\n")
    assert len(UUID.findall(first)) == len(UUID.findall(last)) == 1, said
    assert icds.split() == ["libnvidia-opencl.so.1"]
    assert listed.split()[0] == again.split()[0] == f"{MOUNT_POINT}/lib64/libcuda.so.1", said
