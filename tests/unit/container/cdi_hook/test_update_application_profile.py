# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import stat

import pytest

from nvct.container.rootfs.profile import render
from tests.support.containers import Container

FOLDER = "etc/nvidia/nvidia-application-profiles-rc.d"
PROFILE = f"{FOLDER}/10-container.conf"


def test_a_profile_has_the_format_of_the_driver() -> None:
    assert render(0b1000) == (
        b'{"profiles":[{"name":"_container_","settings":["EGLVisibleDGPUDevices",0x8]}],'
        b'"rules":[{"pattern":[],"profile":"_container_"}]}'
    )


def test_a_container_without_gpu_nodes_is_unchanged(container: Container) -> None:
    container.file("/dev/nvidia0", "a file, no device")
    before = container.tree()

    assert container.hook("update-application-profile") == 0
    assert container.tree() == before


def test_a_container_without_dev_is_unchanged(container: Container) -> None:
    assert container.hook("update-application-profile") == 0
    assert container.tree() == {}


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_gpus_are_named_by_their_minors(
    container: Container, capsys: pytest.CaptureFixture[str]
) -> None:
    dev = container.root / "dev"
    dev.mkdir()
    for name, minor in [("nvidia0", 3), ("nvidia1", 0), ("nvidia9", 64), ("nvidiactl", 255)]:
        os.mknod(dev / name, stat.S_IFCHR | 0o600, os.makedev(195, minor))
    (dev / "nvidia5").symlink_to("/dev/nvidia1")

    for _ in range(2):
        assert container.hook("update-application-profile") == 0

    assert container.read(PROFILE) == render(0b1001).decode()
    assert (container.root / PROFILE).stat().st_mode & 0o7777 == 0o444
    assert (container.root / FOLDER).stat().st_mode & 0o7777 == 0o555
    assert (container.root / FOLDER).parent.stat().st_mode & 0o7777 == 0o755
    assert "GPU with minor 64 is left out" in capsys.readouterr().err
