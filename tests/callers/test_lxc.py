# SPDX-License-Identifier: Apache-2.0
"""LXC's own hook `nvidia`, which Incus uses, too (nvidia.runtime=true)."""

import subprocess
from collections.abc import Callable

import pytest

from tests.callers.checks import SCRIPT, TRIPLET, has_gpus, publish
from tests.engines.box import Box

pytestmark = [pytest.mark.slow, pytest.mark.engine]
HOOK = "/usr/share/lxc/hooks/nvidia"
NO_DEVICE = "nvidia-container-cli: nvidia.com/gpu has no device '99'"
PROFILE = "etc/nvidia/nvidia-application-profiles-rc.d/10-container.conf"
LEFT = ["output", PROFILE, "etc/ld.so.cache"]
"""Files with content that were written in the image: `output` is the test's own."""
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
    box.write("/run/before", "")
    for name in ("subuid", "subgid"):
        box.write(f"/etc/{name}", f"root:{FIRST_ID}:65536\n")
    box.call("mkdir", "/run/containers-of-lxc")
    return box


def run(box: Box, *lines: str, priority: str = "ERROR") -> subprocess.CompletedProcess[str]:
    """Run SCRIPT in a container with more lines of configuration; return its output."""
    text = "\n".join([CONF, f"lxc.cgroup.dir = {box.cgroup}/lxc", *lines, ""])
    box.write("/run/lxc.conf", text)
    box.call("rm", "-f", "/run/image/output")  # of another run
    done = box.call(
        "lxc-start", "--foreground", "--name=gpu", "--lxcpath=/run/containers-of-lxc",
        "--rcfile=/run/lxc.conf", "--logfile=/run/lxc.log", f"--logpriority={priority}", "--", "/bin/sh", "/script",
    )  # fmt: skip
    done.stdout += box.call("cat", "/run/image/output").stdout
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
    left = box.call("find", "/run/image", "-newer", "/run/before", "-type", "f", "-size", "+0")
    assert set(left.stdout.split()) == {f"/run/image/{path}" for path in LEFT}, left


def test_the_sentence_of_nvct_is_in_the_log_of_level_debug(box: Box) -> None:
    lines = (f"lxc.hook.mount = {HOOK}", "lxc.environment = NVIDIA_VISIBLE_DEVICES=99")
    assert run(box, *lines, priority="ERROR").returncode
    assert NO_DEVICE not in box.read("/run/lxc.log")
    refused = run(box, *lines, priority="DEBUG")
    box.call("rm", "/run/image/nvidia.log")  # the hook asks for it at this level
    assert "Failed to run mount hooks" in refused.stderr
    assert NO_DEVICE in box.read("/run/lxc.log")


def test_without_the_hook_there_is_no_gpu(box: Box) -> None:
    assert run(box).stdout.splitlines()[0] == "0"
