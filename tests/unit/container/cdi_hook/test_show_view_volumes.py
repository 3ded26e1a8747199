# SPDX-License-Identifier: Apache-2.0
"""Hook apply with a view, in containers with volumes: these have other users, the host too."""

import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from nvct.linux.constants import MS_BIND, MS_PRIVATE, MS_SHARED
from nvct.linux.kernel import KERNEL
from tests.support.containers import Container
from tests.support.forked import in_mount_namespace
from tests.unit.container.cdi_hook.test_show_view import APPLY, VIEW, image

__all__ = ["image"]

ICD = "/etc/vulkan/icd.d/nvidia.json"
FLAPPER = """
import os, sys
path = sys.argv[1]
while True:
    for target in sys.argv[2:]:
        os.symlink(target, path + "-new")
        os.rename(path + "-new", path)
"""


def mounted(image: Container, place: str, do: Callable[[], object]) -> Path:
    """Run something where a path of the container is a volume that spreads mounts to the host.

    Returns:
        The volume's folder, or file, on the host.
    """
    volume = image.bundle / "volume"
    target = image.root / place.lstrip("/")

    def child() -> None:
        KERNEL.mount(str(image.bundle), str(image.bundle), None, MS_BIND)
        KERNEL.mount(None, str(image.bundle), None, MS_SHARED)
        KERNEL.mount(str(image.root), str(image.root), None, MS_BIND)
        KERNEL.mount(None, str(image.root), None, MS_PRIVATE)
        KERNEL.mount(str(volume), str(target), None, MS_BIND)
        do()

    in_mount_namespace(child)
    return volume


def tree_of(folder: Path) -> dict[str, str]:
    found = {}
    for path in sorted(folder.rglob("*")):
        kind = "/" if path.is_dir() else "" if path.is_symlink() else path.read_text()
        found[str(path.relative_to(folder))] = str(path.readlink()) if path.is_symlink() else kind
    return found


@pytest.mark.parametrize("place", ["/etc/vulkan/icd.d", "/vol"])
def test_a_file_of_a_volume_is_not_covered(image: Container, place: str) -> None:
    """A mount there could show on the host, wherever the volume comes from."""
    volume = image.bundle / "volume"
    volume.mkdir()
    (volume / "nvidia.json").write_text("volume's")
    (image.root / place.lstrip("/")).mkdir(parents=True)
    if place == "/vol":
        image.link("/etc/vulkan/icd.d", "/vol")

    def hook() -> None:
        assert image.hook(*APPLY) == 0
        assert (volume / "nvidia.json").read_text() == "volume's"

    mounted(image, place, hook)


@pytest.mark.parametrize("content", ["own", ""])
@pytest.mark.parametrize("path", [ICD, "/usr/bin/nvidia-smi", "/usr/lib64/libcuda.so.1"])
def test_a_file_that_is_mounted_stays(image: Container, path: str, content: str) -> None:
    (image.bundle / "volume").write_text(content)
    image.file(path, "image's")

    def hook() -> None:
        assert image.hook(*APPLY) == 0
        assert (image.root / path.lstrip("/")).read_text() == content

    assert mounted(image, path, hook).read_text() == content


@pytest.mark.parametrize("folder", ["/usr/bin", "/usr/lib64", "/etc/vulkan/icd.d", "/etc", "/usr"])
def test_a_volume_stays_as_it_is(image: Container, folder: str) -> None:
    """Also one in which an earlier container, or a container in a container, has its links."""
    (image.root / "dev").mkdir()
    os.mknod(image.root / "dev/nvidia0", stat.S_IFCHR | 0o666, os.makedev(195, 0))
    assert image.hook(*APPLY) == 0
    place = image.root / folder.lstrip("/")
    (place / "nvidia-old").symlink_to(f"{VIEW}/bin/nvidia-old")
    volume = image.bundle / "volume"
    subprocess.run(["cp", "-a", place, volume], check=True)
    if folder != "/usr":
        (place / "nvidia-old").unlink()
    for name in ("nvidia.json", "ld.so.cache", "00-nvct.conf"):
        for path in volume.rglob(name):
            path.unlink()
    before = tree_of(volume)

    def hook() -> None:
        assert image.hook(*APPLY, "--application-profile") == 0

    mounted(image, folder, hook)

    assert tree_of(volume) == before


def test_a_folder_that_changes_under_the_hook_gets_no_mount_elsewhere(image: Container) -> None:
    volume = image.bundle / "volume"
    volume.mkdir()
    (volume / "nvidia.json").write_text("volume's")
    (image.root / "vol").mkdir()
    image.file("/own/nvidia.json", "image's")
    image.link("/etc/vulkan/icd.d", "/own")
    place = image.root / "etc/vulkan/icd.d"

    def hook() -> None:
        command = [sys.executable, "-c", FLAPPER, str(place), "/vol", "/own"]
        flapper = subprocess.Popen(command)
        try:
            end = time.monotonic() + 2
            while time.monotonic() < end:
                image.hook(*APPLY)
                assert (volume / "nvidia.json").read_text() == "volume's"
            assert flapper.poll() is None
        finally:
            os.kill(flapper.pid, signal.SIGKILL)
            flapper.wait()

    mounted(image, "/vol", hook)
