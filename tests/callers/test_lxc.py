# SPDX-License-Identifier: Apache-2.0
"""LXC's own hook `nvidia`, which Incus uses, too (nvidia.runtime=true)."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

from tests.callers.checks import SCRIPT, TRIPLET, has_gpus, publish
from tests.engines.box import Box

pytestmark = [pytest.mark.slow, pytest.mark.engine]
HOOK = "/usr/share/lxc/hooks/nvidia"
FIRST_ID = 100000
"""The host's id of root in the container: the hook serves unprivileged containers only."""
CONF = f"""\
lxc.include = /usr/share/lxc/config/common.conf
lxc.include = /usr/share/lxc/config/userns.conf
lxc.idmap = u 0 {FIRST_ID} 65536
lxc.idmap = g 0 {FIRST_ID} 65536
lxc.rootfs.path = dir:/run/image
lxc.net.0.type = empty
lxc.apparmor.profile = unconfined
lxc.mount.auto = proc:mixed
"""


@pytest.fixture(scope="module")
def box(machine_of: Callable[[str], Box]) -> Box:
    box = machine_of("lxc")
    publish(box)  # writes config.toml, where nvidia-container-cli finds the driver
    box.call("cp", "-a", f"{box.work}/rootfs", "/run/image")
    box.write("/run/image/script", f"{{ {SCRIPT}; }} > /output 2>&1\n")
    box.call("chown", "-R", f"{FIRST_ID}:{FIRST_ID}", "/run/image")
    for name in ("subuid", "subgid"):
        box.write(f"/etc/{name}", f"root:{FIRST_ID}:65536\n")
    box.call("mkdir", "/run/containers-of-lxc")
    return box


def run(box: Box, *lines: str) -> subprocess.CompletedProcess[str]:
    """Run SCRIPT in a container with more lines of configuration; return its output."""
    text = "\n".join([CONF, f"lxc.cgroup.dir = {box.cgroup}/lxc", *lines, ""])
    box.write("/run/lxc.conf", text)
    done = box.call(
        "lxc-start", "--foreground", "--name=gpu", "--lxcpath=/run/containers-of-lxc",
        "--rcfile=/run/lxc.conf", "--logfile=/run/lxc.log", "--", "/bin/sh", "/script",
    )  # fmt: skip
    done.stdout += box.read("/run/image/output")
    return done


@pytest.mark.parametrize(("devices", "count"), [("0", 1), ("all", 8)])
def test_the_hook_brings_what_the_container_asks_for(devices: str, count: int, box: Box) -> None:
    done = run(
        box,
        f"lxc.hook.mount = {HOOK}",
        f"lxc.environment = NVIDIA_VISIBLE_DEVICES={devices}",
        "lxc.environment = NVIDIA_DRIVER_CAPABILITIES=compute,utility",
    )
    has_gpus(done, count, f"/usr/lib/{TRIPLET}/libcuda.so.1")
    left = box.call("find", "/run/image", "-name", "*cuda*", "-size", "+0", "-type", "f")
    assert left.stdout == "", left


def test_without_the_hook_there_is_no_gpu(box: Box) -> None:
    assert run(box).stdout.splitlines()[0] == "0"
