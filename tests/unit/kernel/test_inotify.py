# SPDX-License-Identifier: Apache-2.0
import errno
import os
import select
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvct.kernel import inotify
from nvct.kernel.inotify import Event, Inotify

CHANGES = inotify.CREATE | inotify.DELETE | inotify.MOVED_TO | inotify.DELETE_SELF
IGNORED = 0x8000  # IN_IGNORED, inotify(7): the watch has ended
OVERFLOW = 0x4000  # IN_Q_OVERFLOW


@pytest.fixture
def events() -> Iterator[Inotify]:
    with Inotify() as events:
        yield events


def is_readable(events: Inotify) -> bool:
    return bool(select.select([events], [], [], 0)[0])


def test_the_changes_of_a_folder_are_read_in_their_order(events: Inotify, tmp_path: Path) -> None:
    watch = events.add(str(tmp_path), CHANGES)
    assert events.read() == []
    assert not is_readable(events)

    (tmp_path / "kubelet.sock").touch()
    (tmp_path / "other").write_text("a change of a file is not asked for")
    (tmp_path / "other").rename(tmp_path / "kubelet.sock")
    (tmp_path / "kubelet.sock").unlink()

    assert is_readable(events)
    assert events.read() == [
        Event(watch, inotify.CREATE, "kubelet.sock"),
        Event(watch, inotify.CREATE, "other"),
        Event(watch, inotify.MOVED_TO, "kubelet.sock"),
        Event(watch, inotify.DELETE, "kubelet.sock"),
    ]
    assert not is_readable(events)


def test_each_folder_has_a_number(events: Inotify, tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
    first, second = (events.add(str(folder), CHANGES) for folder in folders)
    (folders[1] / "x").touch()
    (folders[0] / "y").touch()
    assert [(e.watch, e.name) for e in events.read()] == [(second, "x"), (first, "y")]


@pytest.mark.parametrize("name", [b"\xff", "\u20ac".encode(), b"x" * 255, b"x" * 15, b"x" * 16])
def test_names_are_whole(events: Inotify, tmp_path: Path, name: bytes) -> None:
    events.add(str(tmp_path), CHANGES)
    with open(os.fsencode(tmp_path) + b"/" + name, "wb"):
        pass
    assert [os.fsencode(e.name) for e in events.read()] == [name]


def test_a_removed_folder_ends_its_watch(events: Inotify, tmp_path: Path) -> None:
    folder = tmp_path / "sub"
    folder.mkdir()
    watch = events.add(str(folder), CHANGES)
    folder.rmdir()
    masks = [inotify.DELETE_SELF, IGNORED]
    assert events.read() == [Event(watch, mask, "") for mask in masks]
    with pytest.raises(OSError, match="Invalid argument"):
        events.remove(watch)


def test_nothing_is_read_of_a_watch_that_was_removed(events: Inotify, tmp_path: Path) -> None:
    watch = events.add(str(tmp_path), CHANGES)
    events.remove(watch)
    (tmp_path / "x").touch()
    assert events.read() == [Event(watch, IGNORED, "")]


def test_lost_events_are_an_event(events: Inotify, tmp_path: Path) -> None:
    with open("/proc/sys/fs/inotify/max_queued_events", encoding="ascii") as file:
        limit = int(file.read())
    if limit > 1 << 16:
        pytest.skip("this kernel's queue is very long")
    events.add(str(tmp_path), CHANGES)
    name = tmp_path / "x"
    for _ in range(limit // 2 + 1):
        name.touch()
        name.unlink()
    found: list[Event] = []
    while read := events.read():
        found += read
    assert len(found) == limit + 1
    assert found[-1] == Event(-1, OVERFLOW, "")


def test_only_a_folder_is_watched(events: Inotify, tmp_path: Path) -> None:
    for path, code in ((tmp_path / "file", errno.ENOTDIR), (tmp_path / "gone", errno.ENOENT)):
        if code == errno.ENOTDIR:
            path.touch()
        with pytest.raises(OSError, match=path.name) as caught:
            events.add(str(path), CHANGES)
        assert (caught.value.errno, caught.value.filename) == (code, str(path))


def test_the_queue_does_not_outlive_an_exec(events: Inotify) -> None:
    assert not os.get_inheritable(events.fileno())
