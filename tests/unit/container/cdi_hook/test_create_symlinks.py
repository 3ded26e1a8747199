# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from tests.support.containers import Container


def test_links_are_made_with_their_folders_and_their_text_unchanged(container: Container) -> None:
    status = container.hook(
        "create-symlinks", "--link", "../a,b::/x/y/link", "--link", "/abs::/other"
    )

    assert status == 0
    assert container.tree() == {
        "x": "/", "x/y": "/", "x/y/link": "-> ../a,b", "other": "-> /abs",
    }  # fmt: skip


def test_an_existing_link_stays(container: Container) -> None:
    container.link("/b", "a")
    before = (container.root / "b").lstat().st_ino

    assert container.hook("create-symlinks", "--link", "a::/b") == 0
    assert (container.root / "b").lstat().st_ino == before


def test_a_file_or_another_link_is_replaced(container: Container) -> None:
    container.file("/b", "old")
    container.link("/c", "old")

    assert container.hook("create-symlinks", "--link", "a::/b", "--link", "a::/c") == 0
    assert container.tree() == {"b": "-> a", "c": "-> a"}


def test_a_folder_in_the_way_fails(
    container: Container, capsys: pytest.CaptureFixture[str]
) -> None:
    container.file("/b/x")

    assert container.hook("create-symlinks", "--link", "a::/b") == 1
    assert "/b in the container is a directory [unsafe-path]" in capsys.readouterr().err


@pytest.mark.parametrize("target", ["/", "../../../..", "/proc/self/root"])
def test_a_hostile_folder_link_does_not_lead_out(container: Container, target: str) -> None:
    outside = container.bundle / "esc"
    container.link("/lib", target)

    container.hook("create-symlinks", "--link", "a::/lib/../../../esc", "--link", "a::/lib/esc")

    assert not outside.is_symlink()
    assert (container.root / "esc").is_symlink()
