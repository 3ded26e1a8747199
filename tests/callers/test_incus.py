# SPDX-License-Identifier: Apache-2.0
"""Incus: nvidia.runtime=true brings the driver by LXC's hook, devices of type gpu the nodes."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nvct.errors import ContainerNotPossibleError
from tests.callers.checks import SCRIPT, TRIPLET, has_gpus, publish
from tests.engines.box import PROGRAMS, Box

pytestmark = pytest.mark.slow
METADATA = "architecture: x86_64\ncreation_date: 1700000000\nproperties: {os: test}\n"
ON_PATH = f"""
set -e
mkdir -p /run/bin/upper /run/bin/work
mount -t overlay bin -o lowerdir=/usr/bin,upperdir=/run/bin/upper,workdir=/run/bin/work /usr/bin
ln -s {PROGRAMS}/nvidia-container-cli /usr/bin/
"""
"""The hook is called with no other PATH than the system's."""
IMPORT = """
set -e
mkdir /run/image && cd /run/image
cp -a $ROOTFS rootfs && mv /run/metadata.yaml .
tar -czf /run/image.tar.gz metadata.yaml rootfs
incus image import /run/image.tar.gz --alias plain
"""
DIR = "/run/incus-state"
GROUPS = ("monitor", "container")
"""The control groups of LXC, which are put below the box's, to go with them."""


def call(box: Box, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    done = box.call(*words, env={**env, "INCUS_DIR": DIR})
    assert done.returncode == 0, done
    return done


@pytest.fixture(scope="module")
def no_group_stays() -> Iterator[None]:
    """Remove LXC's pivot group, which cannot be put elsewhere, after the machine has ended."""
    yield
    for group in Path("/sys/fs/cgroup").glob("*/lxc.pivot"):
        group.rmdir()


@pytest.fixture(scope="module")
def box(no_group_stays: None, machine_of: Callable[[str], Box]) -> Box:
    """A machine with incusd, whose container `gpu` has no network."""
    box = machine_of("incus")
    publish(box)  # writes config.toml, where nvidia-container-cli finds the driver
    for name in ("subuid", "subgid"):
        box.write(f"/etc/{name}", "root:1000000:65536\n")
    call(box, "sh", "-c", ON_PATH)
    program = ("INCUS_SECURITY_APPARMOR=false", f"INCUS_DIR={DIR}", "/usr/libexec/incus/incusd")
    box.start(["env", *program, "--group=root"], "incusd.log")
    try:
        box.until(lambda: box.accepts(f"{DIR}/unix.socket"), "incusd.log")
    except ContainerNotPossibleError as error:
        pytest.skip(error.message)
    call(box, "incus", "storage", "create", "default", "dir")
    root = ("profile", "device", "add", "default", "root", "disk", "path=/", "pool=default")
    call(box, "incus", *root)
    box.write("/run/metadata.yaml", METADATA)
    call(box, "sh", "-c", IMPORT, ROOTFS=f"{box.work}/rootfs")
    options = (
        "--config=nvidia.runtime=true",
        "--config=nvidia.driver.capabilities=compute,utility",
    )
    call(box, "incus", "init", "plain", "gpu", *options)
    return box


def test_incus_reads_what_nvidia_container_cli_tells_of_gpus(box: Box) -> None:
    told = call(box, "incus", "info", "--resources").stdout
    assert told.count("Model: NVIDIA H100 80GB HBM3") == 8, told


def test_devices_of_type_gpu(box: Box) -> None:
    addresses = call(box, "ls", "/proc/driver/nvidia/gpus").stdout.split()
    for flags, count in (((), 8), ((f"pci={addresses[1]}",), 1)):
        call(box, "incus", "config", "device", "add", "gpu", "device", "gpu", *flags)
        call(box, "incus", "start", "gpu")
        done = call(box, "incus", "exec", "gpu", "--", "/bin/sh", "-c", SCRIPT)
        call(box, "incus", "stop", "--force", "gpu")
        call(box, "incus", "config", "device", "remove", "gpu", "device")
        has_gpus(done, count, f"/usr/lib/{TRIPLET}/libcuda.so.1")
