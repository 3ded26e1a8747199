# SPDX-License-Identifier: Apache-2.0
"""Hook apply does all work for a container; its programs load the right libraries."""

import ctypes
import os
import shutil
import subprocess

import pytest

from tests.support.containers import Container
from tests.support.forked import in_a_mount_namespace, run_forked

LDCONFIG = shutil.which("ldconfig", path="/usr/sbin:/sbin:/usr/bin:/bin")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
APPLY = (
    "apply",
    "--link", "libcuda.so.580.1::/drv/libcuda.so.1",
    "--link", "libcuda.so.1::/drv/libcuda.so",
    "--folder", "/drv",
    "--host-driver-version", "550.1.1",
    "--application-profile",
    "--mask-params",
)  # fmt: skip


@pytest.fixture
def image(container: Container) -> Container:
    """An image that this machine's dynamic linker runs in, and a driver."""
    container.file("/lib64/ld-linux-x86-64.so.2")
    container.library("/opt/stub/libcuda.so.1", "libcuda.so.1", origin="stub")
    container.library("/drv/libcuda.so.580.1", "libcuda.so.1", origin="driver")
    container.file("/etc/ld.so.conf", "/opt/stub\ninclude /etc/ld.so.conf.d/*.conf\n")
    return container


def loaded_in(container: Container, name: str) -> str:
    """Load a library by dlopen in the container's root; return its path."""
    record = container.bundle / "told"
    fd = os.open(record, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)

    def child() -> None:
        os.chroot(container.root)
        os.chdir("/")
        library = ctypes.CDLL(name)
        os.write(fd, (ctypes.c_char * 16).in_dll(library, "origin").value)

    try:
        assert run_forked(child) == 0
    finally:
        os.close(fd)
    return record.read_text()


def ldconfig(container: Container) -> None:
    if LDCONFIG is None:
        pytest.skip("needs ldconfig")
    subprocess.run([LDCONFIG, "-r", str(container.root)], check=True)


@needs_root
def test_a_program_in_the_container_loads_the_drivers_library(image: Container) -> None:
    ldconfig(image)
    assert loaded_in(image, "libcuda.so.1") == "stub"

    assert image.hook(*APPLY) == 0

    assert loaded_in(image, "libcuda.so.1") == "driver"
    assert loaded_in(image, "libcuda.so") == "driver"


@needs_root
def test_it_loads_the_drivers_library_after_an_ldconfig_in_the_container(image: Container) -> None:
    shutil.rmtree(image.root / "opt")
    image.hook(*APPLY)
    (image.root / "etc/ld.so.cache").unlink()

    ldconfig(image)

    assert loaded_in(image, "libcuda.so.1") == "driver"


@needs_root
def test_the_compatibility_library_is_loaded_where_the_host_is_older(image: Container) -> None:
    image.library("/usr/local/cuda/compat/libcuda.so.575.1", "libcuda.so.1", origin="compat")

    assert image.hook(*APPLY) == 0

    assert loaded_in(image, "libcuda.so.1") == "compat"
    assert loaded_in(image, "libcuda.so") == "driver"


@in_a_mount_namespace
def test_the_params_mask_is_made_last(image: Container) -> None:
    image.params("ModifyDeviceFiles: 1\n")
    target = image.file("/proc/driver/nvidia/params", "ModifyDeviceFiles: 1\n")

    assert image.hook(*APPLY, "--proc-root", str(image.proc)) == 0
    assert target.read_text() == "ModifyDeviceFiles: 0\n"


def test_a_failing_step_is_reported_in_one_line_with_status_1(
    image: Container, capsys: pytest.CaptureFixture[str]
) -> None:
    (image.root / "drv/libcuda.so.1").mkdir()

    assert image.hook(*APPLY) == 1
    assert capsys.readouterr().err == (
        "nvidia-cdi-hook: /drv/libcuda.so.1 in the container is a directory [unsafe-path]\n"
    )
