# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from nvct.container.cdi_hook.chmod import parse_mode
from nvct.errors import UsageError
from tests.support.containers import Container


def mode_of(container: Container, path: str) -> int:
    return (container.root / path).lstat().st_mode & 0o7777


def test_existing_paths_get_the_mode_and_missing_ones_are_skipped(
    container: Container,
) -> None:
    container.file("/dev/dri/card0").chmod(0o600)

    status = container.hook(
        "chmod", "--mode", "755", "--path", "/missing", "--path", "/dev/dri/card0"
    )

    assert status == 0
    assert mode_of(container, "dev/dri/card0") == 0o755


def test_sticky_and_set_id_bits_are_kept(container: Container) -> None:
    (container.root / "tmp").mkdir()

    assert container.hook("chmod", "--mode=1777", "--path=/tmp") == 0
    assert mode_of(container, "tmp") == 0o1777


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


def test_without_a_path_nothing_is_changed(container: Container) -> None:
    assert container.hook("chmod", "--mode", "644", state={}) == 0
