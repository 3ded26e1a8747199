# SPDX-License-Identifier: Apache-2.0
"""The call of enroot's hook 98-nvidia.sh, in namespaces of an ordinary user as enroot makes them.

enroot itself is in no registry that the tests use.
"""

import subprocess
from collections.abc import Callable

import pytest

from tests.callers.checks import SCRIPT, TRIPLET, has_gpus, publish
from tests.engines.box import Box

pytestmark = [pytest.mark.slow, pytest.mark.engine]
NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
ROOT = "/run/enroot/image"
INSIDE = f"""\
set -e
export ENROOT_ROOTFS={ROOT}
mount --rbind $ENROOT_ROOTFS $ENROOT_ROOTFS
mount --rbind /proc $ENROOT_ROOTFS/proc
mount -t tmpfs dev $ENROOT_ROOTFS/dev
nvidia-container-cli --user configure --no-cgroups --ldconfig=@/usr/sbin/ldconfig $CLI "$ENROOT_ROOTFS"
chroot $ENROOT_ROOTFS /bin/sh /script
"""


@pytest.fixture(scope="module")
def box(machine_of: Callable[[str], Box]) -> Box:
    box = machine_of("lxc")
    publish(box)  # writes config.toml, where nvidia-container-cli finds the driver
    box.call("mkdir", "-p", "/run/enroot")
    box.call("cp", "-a", f"{box.work}/rootfs", ROOT)
    box.write(f"{ROOT}/script", SCRIPT)
    box.call("chown", "-R", "65534:65534", "/run/enroot")
    return box


def run(box: Box, options: str) -> subprocess.CompletedProcess[str]:
    words = (*NOBODY, "unshare", "--user", "--map-root-user", "--mount", "sh", "-c", INSIDE)
    return box.call(*words, env={"CLI": options, "NVIDIA_VISIBLE_DEVICES": "0"})


@pytest.mark.parametrize(("device", "count"), [("0", 1), ("0,3", 2), ("all", 8)])
def test_the_hook_brings_devices_and_libraries(device: str, count: int, box: Box) -> None:
    done = run(box, f"--device={device} --compute --utility")
    has_gpus(done, count, f"/usr/lib/{TRIPLET}/libcuda.so.1")
    left = box.call("find", ROOT, "-name", "*cuda*", "-size", "+0", "-type", "f")
    assert left.stdout == "", left


def test_every_capability(box: Box) -> None:
    every = "--compute --compat32 --display --graphics --utility --video"
    has_gpus(run(box, f"--device=all {every}"), 8, libcuda="")  # the cache lists two of them


def test_a_device_that_is_not_there_is_refused(box: Box) -> None:
    done = run(box, "--device=77 --compute --utility")
    assert done.returncode, done
    assert "77" in done.stderr, done
