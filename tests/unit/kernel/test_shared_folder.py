# SPDX-License-Identifier: Apache-2.0
"""A folder that others may change: what is read, written, locked and served there is its own.

What can lie at a name is planted for each of its users in
tests/unit/agent/test_hostile_folder.py.
"""

import contextlib
import os
import socket
import stat
import threading
import time
from pathlib import Path

import pytest

from nvct.errors import NvctError, UnsafePathError
from nvct.kernel.shared_folder import SharedFolder

NOBODY = 65534
RACE_S = 0.5


def test_a_file_is_written_and_read(tmp_path: Path) -> None:
    with SharedFolder.open(str(tmp_path / "above/folder"), create=0o700) as folder:
        folder.write("name", b"old")
        folder.write("name", b"new", mode=0o640, sync=True)
        assert folder.read("name", 3) == b"new"
        assert folder.names() == ["name"]
    assert stat.S_IMODE((tmp_path / "above/folder/name").stat().st_mode) == 0o640
    assert stat.S_IMODE((tmp_path / "above/folder").stat().st_mode) == 0o700


def test_more_than_the_limit_is_refused(tmp_path: Path) -> None:
    with SharedFolder.open(str(tmp_path)) as folder:
        folder.write("name", b"1234")
        with pytest.raises(UnsafePathError, match="name is larger than 3 bytes"):
            folder.read("name", 3)


def test_what_killed_writers_have_left_goes_and_what_is_being_written_stays(
    tmp_path: Path,
) -> None:
    with SharedFolder.open(str(tmp_path)) as folder:
        old, new = folder.write_temporary(b"half"), folder.write_temporary(b"half")
        (tmp_path / ".nvct-folder").mkdir()
        folder.write("name", b"kept")
        for name in (old, ".nvct-folder", "name"):
            os.utime(tmp_path / name, (1, 1))
        folder.remove_abandoned()
        assert folder.names() == sorted([new, ".nvct-folder", "name"])


def test_a_link_or_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path)
    for name in ("file", "link", "link/"):
        with pytest.raises(UnsafePathError, match="is not a folder"):
            SharedFolder.open(f"{tmp_path}/{name}", create=0o700)
    with pytest.raises(FileNotFoundError):
        SharedFolder.open(str(tmp_path / "missing"))


def test_an_error_names_the_whole_path(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    with SharedFolder.open(str(tmp_path)) as folder:
        with pytest.raises(IsADirectoryError, match=str(tmp_path / "sub")):
            folder.write("sub", b"")
        with pytest.raises(IsADirectoryError, match=str(tmp_path / "sub")):
            folder.unlink("sub")
        with pytest.raises(FileNotFoundError, match=str(tmp_path / "none")):
            folder.read("none")
        folder.unlink("none")
        assert folder.names() == ["sub"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a file away")
def test_a_file_that_others_could_have_written_is_refused(tmp_path: Path) -> None:
    with SharedFolder.open(str(tmp_path)) as folder:
        folder.write("theirs", b"x")
        os.chown(tmp_path / "theirs", NOBODY, 0)
        folder.write("everybody's", b"x", mode=0o622)
        for name in folder.names():
            with pytest.raises(UnsafePathError, match="can be written to by others"):
                folder.read(name)


def test_a_folder_that_is_swapped_is_still_the_one_that_was_opened(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "elsewhere").mkdir()
    with SharedFolder.open(str(tmp_path / "folder")) as folder:
        (tmp_path / "folder").rename(tmp_path / "moved")
        (tmp_path / "folder").symlink_to("elsewhere")
        folder.write("name", b"x")
        os.close(folder.try_lock("lock"))
        with folder.lock("lock", 1):
            folder.listen("socket").close()
        folder.unlink("name")
    assert os.listdir(tmp_path / "elsewhere") == []
    assert sorted(os.listdir(tmp_path / "moved")) == ["lock", "socket"]


def test_names_that_change_all_the_time_lead_nowhere_else(tmp_path: Path) -> None:
    precious, shared = tmp_path / "precious", tmp_path / "folder"
    precious.write_bytes(b"precious")
    shared.mkdir()
    ends = threading.Event()

    def swap() -> None:
        while not ends.is_set():
            for name in (*os.listdir(shared), "name", "lock"):
                with contextlib.suppress(OSError):
                    os.symlink(precious, shared / "new")
                    os.rename(shared / "new", shared / name)
                with contextlib.suppress(OSError):
                    os.mkfifo(shared / "new", 0o600)
                    os.rename(shared / "new", shared / name)

    swapper = threading.Thread(target=swap)
    swapper.start()
    try:
        end = time.monotonic() + RACE_S
        with SharedFolder.open(str(shared)) as folder:
            while time.monotonic() < end:
                with contextlib.suppress(NvctError, OSError):
                    folder.write("name", b"x")
                with contextlib.suppress(NvctError, OSError):
                    assert folder.read("name") != b"precious"
                with contextlib.suppress(NvctError, OSError):
                    if (fd := folder.try_lock("lock")) >= 0:
                        os.close(fd)
                with contextlib.suppress(NvctError, OSError):
                    folder.listen("name").close()
    finally:
        ends.set()
        swapper.join()
    assert precious.read_bytes() == b"precious"
    assert stat.S_IMODE(precious.stat().st_mode) == 0o644


def test_a_lock_is_one_process_at_a_time(tmp_path: Path) -> None:
    with SharedFolder.open(str(tmp_path)) as folder:
        with pytest.raises(FileNotFoundError):
            folder.try_lock("lock", create=False)
        fd = folder.try_lock("lock")
        assert folder.try_lock("lock") == -1
        os.close(fd)
        with folder.lock("lock", 0):
            assert folder.try_lock("lock", create=False) == -1


def test_a_socket_is_for_this_user_and_is_reached_by_its_file(tmp_path: Path) -> None:
    (tmp_path / "socket").symlink_to("other")
    with SharedFolder.open(str(tmp_path)) as folder, folder.listen("socket"):
        assert stat.S_IMODE((tmp_path / "socket").stat().st_mode) == 0o600
        assert folder.names() == ["socket"]
        with socket.socket(socket.AF_UNIX) as client, folder.socket_path("socket") as path:
            (tmp_path / "socket").unlink()
            client.connect(path)
        (tmp_path / "socket").symlink_to("other")
        with (
            pytest.raises(UnsafePathError, match="socket is not a socket"),
            folder.socket_path("socket"),
        ):
            pass


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("x")
    (tmp_path / "sub").mkdir()
    before = os.listdir("/proc/self/fd")
    with SharedFolder.open(str(tmp_path)) as folder:
        folder.write("name", b"x")
        folder.read("name")
        for name in ("link", "sub", "none"):
            with pytest.raises((UnsafePathError, OSError)):
                folder.read(name)
            with pytest.raises((UnsafePathError, OSError)), folder.socket_path(name):
                pass
        with pytest.raises(OSError, match="sub"):
            folder.listen("sub")
    assert os.listdir("/proc/self/fd") == before
    assert sorted(os.listdir(tmp_path)) == ["link", "name", "sub"]
