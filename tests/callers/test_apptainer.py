# SPDX-License-Identifier: Apache-2.0
"""Apptainer: --nvccli starts nvidia-container-cli; --nv finds the host's driver by itself."""

import subprocess
from collections.abc import Callable

import pytest

from tests.callers.checks import SCRIPT, TRIPLET, has_gpus, publish
from tests.engines import suite
from tests.engines.box import DRIVER_ROOT, Box

pytestmark = pytest.mark.slow
NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
LIBRARIES = "/.singularity.d/libs"
LIBCUDA = f"/usr/lib/{TRIPLET}/libcuda.so.1"
ONE = {"NVIDIA_VISIBLE_DEVICES": "0", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}


class Apptainer:
    """Apptainer as its package sets it up, on a host with the driver in ld.so.cache."""

    def __init__(self, box: Box) -> None:
        self.box = box
        publish(box)  # writes config.toml, where nvidia-container-cli finds the driver
        box.call("cp", "-a", f"{suite.tree('apptainer')}/etc/apptainer", "/etc")
        box.call("cp", "-a", f"{box.work}/rootfs", "/run/image")
        box.call("chown", "-R", "65534:65534", "/run/image")  # --nvccli needs folders of the user
        box.call("mkdir", "-p", "/var/lib/apptainer/mnt/session")
        box.write("/etc/ld.so.conf.d/nvidia.conf", f"{DRIVER_ROOT}/usr/lib/{TRIPLET}\n")
        assert box.call("ldconfig").returncode == 0
        box.see(f"{DRIVER_ROOT}/usr/bin")

    def run(
        self, *flags: str, prefix: tuple[str, ...] = (), script: str = SCRIPT, **env: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a script in a container of a folder."""
        words = ("apptainer", "exec", *flags, "/run/image", "/bin/sh", "-c", script)
        return self.box.call(*prefix, *words, env={"HOME": "/tmp", **env})


@pytest.fixture(scope="module")
def apptainer(machine_of: Callable[[str], Box]) -> Apptainer:
    return Apptainer(machine_of("apptainer"))


# This machine lacks a capability that Apptainer gives to root's containers.
@pytest.mark.parametrize(
    ("prefix", "flags"), [((), ("--no-privs",)), (NOBODY, ("--userns",))], ids=["root", "nobody"]
)
def test_nvccli(prefix: tuple[str, ...], flags: tuple[str, ...], apptainer: Apptainer) -> None:
    nvccli = (*flags, "--nv", "--nvccli", "--writable-tmpfs")
    has_gpus(apptainer.run(*nvccli, prefix=prefix), 8, LIBCUDA)
    has_gpus(apptainer.run(*nvccli, "--contain", prefix=prefix, **ONE), 1, LIBCUDA)


def test_nv_needs_nothing_of_nvct(apptainer: Apptainer) -> None:
    script = f"ls /dev | grep -c 'nvidia[0-9]'; ls {LIBRARIES}"
    done = apptainer.run("--no-privs", "--nv", script=script)
    assert done.returncode == 0, done
    number, *libraries = done.stdout.split()
    assert number == "8", done
    assert "libcuda.so.1" in libraries, done
