# SPDX-License-Identifier: Apache-2.0
"""Containers on a simulated node read the node's part of /proc and /sys."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from nvct.linux.constants import MNT_DETACH
from nvct.linux.kernel import KERNEL
from nvct_sim import run_folder
from nvct_sim.bundle import CAPABILITIES, config
from tests.integration.conftest import REPOSITORY, SimulatedNode
from tests.integration.rootless import is_open
from tests.support.processes import captured

RUNTIME_ENV, KIND_ENV = "RUNTIME", "KIND"
LOOK = r"""
grep -c -E '^ *[0-9]+ nvidia(ctl|-uvm|-caps)?$' /proc/devices
cat /proc/driver/nvidia/version
ls /proc/driver/nvidia/gpus | wc -l
grep -c . /proc/driver/nvidia-caps/mig-minors
cat /sys/module/nvidia/version
cat /sys/bus/pci/devices/0000:18:00.0/vendor
cd /sys/bus/pci/devices/0000:18:00.0/driver && pwd -P
cat /sys/bus/pci/devices/0000:18:00.0/config | wc -c
grep Pid: /proc/self/status | head -n 1
(echo x > /proc/devices) 2>&1 | grep -o 'Read-only file system'
grep -c . /proc/cpuinfo > /dev/null && echo own
"""
USERS = {"containerID": 0, "hostID": 200_000, "size": 65536}
KINDS: dict[str, dict[str, Any]] = {
    "usual": {},
    "privileged": {"capabilities": [*CAPABILITIES, "CAP_SYS_ADMIN", "CAP_SYS_RAWIO"]},
    "user-namespace": {"users": [USERS]},
}


def start(work: Path) -> None:
    """Start a container by the node's runtime; this function runs on the node."""
    if os.path.ismount("/sys/fs/cgroup/unified"):  # crun refuses the hybrid layout
        KERNEL.umount2("/sys/fs/cgroup/unified", MNT_DETACH)
    kind = KINDS[os.environ[KIND_ENV]]
    runtime = f"{run_folder.PROGRAMS}/{os.environ[RUNTIME_ENV]}"
    folder = Path("/run/bundle")  # every user may enter it, unlike pytest's folder
    shutil.copytree(work / "rootfs", folder / "rootfs", symlinks=True)
    document = config(["/bin/sh", "-c", LOOK])
    for name, held in document["process"]["capabilities"].items():
        if "capabilities" in kind and name != "ambient":
            held[:] = kind["capabilities"]
    if "users" in kind:
        document["linux"]["namespaces"].append({"type": "user"})
        document["linux"].update(uidMappings=kind["users"], gidMappings=kind["users"])
        document["linux"]["resources"] = {}
        subprocess.run(["chown", "-R", "200000:200000", folder / "rootfs"], check=True)
    (folder / "config.json").write_text(json.dumps(document), encoding="utf-8")
    done = captured(
        [runtime, "--root", work / "state", "run", "--bundle", folder, f"sim-{os.getpid()}"]
    )
    assert done.returncode == 0, done
    lines = done.stdout.splitlines()
    assert int(lines[0]) == 4, done.stdout
    assert "NVRM version" in lines[1]
    assert "580.159.04" in lines[1]
    assert lines[3] == "8"
    assert int(lines[4]) > 100
    assert lines[5:7] == ["580.159.04", "0x10de"]
    assert lines[7:9] == ["/sys/bus/pci/drivers/nvidia", "4096"]
    assert lines[10:] == ["Read-only file system", "own"]


@pytest.mark.parametrize(
    "kind",
    [
        # Other users cannot read some checkouts; then the test is skipped.
        pytest.param(kind, marks=() if kind == "user-namespace" else pytest.mark.engine)
        for kind in KINDS
    ],
)
@pytest.mark.parametrize("runtime", run_folder.RUNTIMES)
def test_a_container_sees_the_node_s_driver(
    runtime: str, kind: str, simulated: SimulatedNode
) -> None:
    if shutil.which(runtime) is None:
        pytest.skip(f"no {runtime} on this host")
    if kind == "user-namespace" and not is_open(REPOSITORY):
        pytest.skip(f"{REPOSITORY} cannot be read by everybody, as the hook's user needs")
    simulated.run(start, {RUNTIME_ENV: runtime, KIND_ENV: kind})
