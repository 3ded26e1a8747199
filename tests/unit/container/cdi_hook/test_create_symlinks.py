# SPDX-License-Identifier: Apache-2.0
import os
import stat

import pytest

from nvct.container.cdi_hook.chmod import parse_mode
from nvct.container.rootfs.profile import render
from nvct.errors import UsageError
from tests.support.containers import Container


def test_links_are_made_with_their_folders_and_their_text_unchanged(container: Container) -> None:
    status = container.hook(
        "create-symlinks", "--link", "../a,b::/x/y/link", "--link", "/abs::/other"
    )

    assert status == 0
    assert container.tree() == {
        "x": "/", "x/y": "/", "x/y/link": "-> ../a,b", "other": "-> /abs",
    }  # fmt: skip


@pytest.mark.parametrize("target", ["/", "../../../..", "/proc/self/root"])
def test_a_hostile_folder_link_does_not_lead_out(container: Container, target: str) -> None:
    outside = container.bundle / "esc"
    container.link("/lib", target)

    container.hook("create-symlinks", "--link", "a::/lib/../../../esc", "--link", "a::/lib/esc")

    assert not outside.is_symlink()
    assert (container.root / "esc").is_symlink()


def mode_of(container: Container, path: str) -> int:
    return (container.root / path).lstat().st_mode & 0o7777


def test_existing_paths_get_the_mode_and_missing_ones_are_skipped(container: Container) -> None:
    container.file("/dev/dri/card0").chmod(0o600)

    status = container.hook(
        "chmod", "--mode", "755", "--path", "/missing", "--path", "/dev/dri/card0"
    )

    assert status == 0
    assert mode_of(container, "dev/dri/card0") == 0o755


def test_a_link_out_of_the_container_changes_nothing_outside(container: Container) -> None:
    outside = container.bundle / "host-file"
    outside.write_text("")
    outside.chmod(0o600)
    container.link("/a", str(outside))
    container.link("/b", "../host-file")

    assert container.hook("chmod", "--mode", "777", "--path", "/a", "--path", "/b") == 0
    assert outside.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(("text", "mode"), [("755", 0o755), ("0o1777", 0o1777), ("0", 0)])
def test_modes_are_octal(text: str, mode: int) -> None:
    assert parse_mode(text) == mode


@pytest.mark.parametrize("text", ["", "8", "u+x", "77777", "-1", "0x1", "\u0667"])
def test_other_modes_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_mode(text)


def test_a_path_that_cannot_be_walked_does_not_stop_the_others(
    container: Container, capfd: pytest.CaptureFixture[str]
) -> None:
    container.link("/loop", "loop")
    container.file("/later").chmod(0o600)

    status = container.hook("chmod", "--mode", "644", "--path", "/loop", "--path", "/later")

    assert status == 1
    assert "/loop" in capfd.readouterr().err
    assert mode_of(container, "later") == 0o644


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
