# SPDX-License-Identifier: Apache-2.0
"""A change of a folder ends a wait at once; without inotify, a look after some time does."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from nvct.agent.machine import folder_watch
from nvct.agent.machine.folder_watch import FolderWatch

LONG_S = 30.0
BLIND_S = 0.02


@pytest.fixture(autouse=True)
def _long_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_watch, "LOOK_S", LONG_S)


def waited_s(folder: Path, change: Callable[[], object]) -> float:
    """Return how long a wait takes during which a change is made."""

    async def run() -> float:
        with FolderWatch() as changes:
            await changes.wait([str(folder)], BLIND_S)  # it begins
            asyncio.get_running_loop().call_later(0.01, change)
            began = time.monotonic()
            await changes.wait([str(folder)], BLIND_S)
            return time.monotonic() - began

    return asyncio.run(run())


@pytest.mark.parametrize("change", ["make", "remove", "rename", "remove the folder"])
def test_a_change_ends_the_wait(tmp_path: Path, change: str) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (tmp_path / "new").touch()
    if change == "remove":
        (folder / "file").touch()
    changes: dict[str, Callable[[], object]] = {
        "make": (folder / "file").touch,
        "remove": (folder / "file").unlink,
        "rename": lambda: (tmp_path / "new").rename(folder / "file"),
        "remove the folder": folder.rmdir,
    }

    assert waited_s(folder, changes[change]) < LONG_S / 2


async def test_a_change_between_two_waits_is_not_missed(tmp_path: Path) -> None:
    began = time.monotonic()
    with FolderWatch() as changes:
        await changes.wait([str(tmp_path)], BLIND_S)
        (tmp_path / "file").touch()
        await changes.wait([str(tmp_path)], BLIND_S)
    assert time.monotonic() - began < LONG_S / 2


async def test_a_folder_that_is_missing_is_watched_when_it_is_there(tmp_path: Path) -> None:
    folder = tmp_path / "folder"

    began = time.monotonic()
    with FolderWatch() as changes:
        await changes.wait([str(folder)], LONG_S)  # it begins with the one above
        asyncio.get_running_loop().call_later(0.01, folder.mkdir)
        await changes.wait([str(folder)], LONG_S)
        await changes.wait([str(folder)], LONG_S)  # it begins
        asyncio.get_running_loop().call_later(0.01, (folder / "file").touch)
        await changes.wait([str(folder)], LONG_S)
    assert time.monotonic() - began < LONG_S / 2


async def test_a_folder_in_nowhere_is_looked_at_often(tmp_path: Path) -> None:
    began = time.monotonic()
    with FolderWatch() as changes:
        for _ in range(3):
            await changes.wait([str(tmp_path / "no/folder")], BLIND_S)
    assert 3 * BLIND_S <= time.monotonic() - began < LONG_S / 2


def test_without_inotify_the_wait_is_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused() -> None:
        raise OSError("too many")

    monkeypatch.setattr(folder_watch, "Inotify", refused)

    assert waited_s(tmp_path, (tmp_path / "file").touch) < LONG_S / 2
