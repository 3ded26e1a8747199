# SPDX-License-Identifier: Apache-2.0
import os
import signal
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvct.errors import DocumentError, HostError, UnsafePathError
from nvct.linux import device_nodes, files
from tests.support.descriptors import none_left_open
from tests.support.forked import run_forked
from tests.support.recording_kernel import RecordingKernel

NOBODY = 65534


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    old = os.umask(0o027)
    yield
    os.umask(old)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def only_file(folder: Path) -> str:
    (name,) = os.listdir(folder)
    return name


def test_a_new_file_has_the_given_mode_or_that_of_the_umask(tmp_path: Path) -> None:
    files.write_atomic(str(tmp_path / "asked"), b"x", mode=0o644)
    files.write_atomic(str(tmp_path / "plain"), b"x")
    assert mode(tmp_path / "asked") == 0o644
    assert mode(tmp_path / "plain") == 0o640


def test_mode_and_owner_of_an_existing_file_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")
    if os.geteuid() == 0:
        os.chown(path, NOBODY, NOBODY)
    path.chmod(0o604)
    before = path.stat()
    files.write_atomic(str(path), b"new")
    after = path.stat()
    assert path.read_bytes() == b"new"
    assert (after.st_uid, after.st_gid, after.st_mode) == (
        before.st_uid, before.st_gid, before.st_mode,
    )  # fmt: skip
    assert after.st_ino != before.st_ino


@pytest.mark.parametrize("exists", [True, False])
def test_with_follow_a_link_stays_and_its_target_is_replaced_or_made(
    tmp_path: Path, *, exists: bool
) -> None:
    (tmp_path / "real").mkdir()
    if exists:
        (tmp_path / "real/a").write_bytes(b"old")
    (tmp_path / "second").symlink_to("real/a")
    (tmp_path / "first").symlink_to(tmp_path / "second")
    files.write_atomic(str(tmp_path / "first"), b"new", follow=True)
    assert (tmp_path / "first").is_symlink()
    assert (tmp_path / "second").is_symlink()
    assert (tmp_path / "real/a").read_bytes() == b"new"
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(UnsafePathError, match="symbolic links"):
        files.write_atomic(str(tmp_path / "loop"), b"x", follow=True)


def test_without_follow_the_link_is_replaced_and_its_target_stays(tmp_path: Path) -> None:
    (tmp_path / "precious").write_bytes(b"old")
    (tmp_path / "link").symlink_to("precious")
    files.write_atomic(str(tmp_path / "link"), b"new", mode=0o644)
    assert (tmp_path / "precious").read_bytes() == b"old"
    assert not (tmp_path / "link").is_symlink()
    assert (tmp_path / "link").read_bytes() == b"new"
    with pytest.raises(UnsafePathError, match="not a regular file"):
        files.write_atomic(str(tmp_path), b"new")


@pytest.mark.parametrize("name", ["sub", "fifo", "sub/", ""])
def test_a_path_that_is_not_a_file_is_refused_and_unchanged(tmp_path: Path, name: str) -> None:
    (tmp_path / "sub").mkdir()
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(UnsafePathError):
        files.write_atomic(f"{tmp_path}/{name}", b"x")
    assert sorted(os.listdir(tmp_path)) == ["fifo", "sub"]
    assert os.listdir(tmp_path / "sub") == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be another user")
@pytest.mark.parametrize("kind", ["link", "file"])
def test_another_users_entry_in_a_shared_directory_is_refused(tmp_path: Path, kind: str) -> None:
    shared = tmp_path / "tmp"
    shared.mkdir()
    shared.chmod(0o1777)
    (tmp_path / "precious").write_bytes(b"old")
    if kind == "link":
        (shared / "a").symlink_to(tmp_path / "precious")
    else:
        (shared / "a").write_bytes(b"theirs")
    os.chown(shared / "a", NOBODY, NOBODY, follow_symlinks=False)
    with pytest.raises(UnsafePathError, match="uid 65534"):
        files.write_atomic(str(shared / "a"), b"new", follow=True)
    assert (tmp_path / "precious").read_bytes() == b"old"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be another user")
def test_an_owner_that_cannot_be_kept_fails_and_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")
    tmp_path.chmod(0o777)
    path.chmod(0o666)

    def child() -> None:
        os.chdir(tmp_path)
        os.setuid(NOBODY)
        with pytest.raises(PermissionError) as caught:
            files.write_atomic("a", b"new")
        assert caught.value.filename == "a"

    assert run_forked(child) == 0
    assert path.read_bytes() == b"old"
    assert only_file(tmp_path) == "a"


class FullDisk(RecordingKernel):
    __slots__ = ("bytes_left",)

    def __init__(self) -> None:
        super().__init__()
        self.bytes_left = 2

    def write(self, fd: int, data: bytes) -> int:
        if self.bytes_left == 0:
            raise OSError(28, "No space left on device")
        self.bytes_left -= 1
        return super().write(fd, data[:3])


def test_short_writes_are_continued_and_a_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    path = str(tmp_path / "a")
    files.write_atomic(path, b"123456", kernel=FullDisk())
    assert (tmp_path / "a").read_bytes() == b"123456"
    with pytest.raises(OSError, match="No space") as caught:
        files.write_atomic(path, b"1234567", kernel=FullDisk())
    assert caught.value.filename == path
    assert (tmp_path / "a").read_bytes() == b"123456"
    assert only_file(tmp_path) == "a"


def test_the_disk_is_synced_before_and_after_the_rename(tmp_path: Path) -> None:
    twin = RecordingKernel()
    files.write_atomic(str(tmp_path / "a"), b"x", kernel=twin)
    assert [n for n in twin.names() if n in ("fsync", "rename")] == ["fsync", "rename", "fsync"]
    assert ("fsync", str(tmp_path)) in twin.calls
    twin.calls.clear()
    files.write_atomic(str(tmp_path / "a"), b"x", sync=False, kernel=twin)
    assert "fsync" not in twin.names()


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with none_left_open():
        files.write_atomic(str(tmp_path / "a"), b"x")
        files.read_bytes(str(tmp_path / "a"))
        with pytest.raises(UnsafePathError):
            files.write_atomic(str(tmp_path / "loop"), b"x", follow=True)
        with pytest.raises(UnsafePathError):
            files.write_atomic(str(tmp_path), b"x")


def test_a_kill_at_any_call_leaves_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    rehearsal = RecordingKernel()
    path.write_bytes(b"old")
    files.write_atomic(str(path), b"new", kernel=rehearsal)
    seen = []
    counts: dict[str, int] = {}
    for name in rehearsal.names():
        counts[name] = counts.get(name, 0) + 1
        for when in ("before", "after"):
            path.write_bytes(b"old")
            twin = RecordingKernel(kill_at=(name, when, counts[name]))

            def child(twin: RecordingKernel = twin) -> None:
                files.write_atomic(str(path), b"new", kernel=twin)

            assert os.WTERMSIG(run_forked(child)) == signal.SIGKILL
            seen.append(path.read_bytes())
            leftover = set(os.listdir(tmp_path)) - {"config.json"}
            assert all(n.startswith(files.TEMPORARY_PREFIX) for n in leftover)
            assert len(leftover) <= 1
            for other in leftover:
                (tmp_path / other).unlink()
    assert set(seen) == {b"old", b"new"}
    assert seen == sorted(seen, reverse=True)  # once new, it stays new


def test_reading_stops_at_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"12345")
    assert files.read_bytes(str(path), 5) == b"12345"
    with pytest.raises(DocumentError, match="larger than 4 bytes"):
        files.read_bytes(str(path), 4)


def test_files_of_procfs_with_size_0_are_read_completely() -> None:
    assert b"Uid:" in files.read_bytes("/proc/self/status")
    assert len(files.read_bytes("/proc/sys/kernel/random/boot_id").strip()) == 36
    assert files.read_bytes("/proc/sys/kernel/pid_max").strip().isdigit()
    with pytest.raises(DocumentError, match="larger"):
        files.read_bytes("/proc/self/status", 10)


def test_a_file_is_read_to_its_end_whatever_its_size_was(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert files.read_bytes(str(tmp_path / "empty")) == b""
    assert files.read_bytes(str(tmp_path / "empty"), 0) == b""
    (tmp_path / "a").write_bytes(b"x" * 200_000)
    for size in (0, 1, 100_000, 300_000):
        with (tmp_path / "a").open("rb") as file:
            assert files.read_all(file.fileno(), size, 1 << 20) == b"x" * 200_000


@pytest.mark.parametrize("name", ["fifo", "sub"])
def test_a_fifo_or_directory_is_refused(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "sub").mkdir()
    with pytest.raises(DocumentError, match=name):
        files.read_bytes(str(tmp_path / name))


def test_a_signature_changes_with_content_and_file(tmp_path: Path) -> None:
    path = tmp_path / "a"
    assert files.signature(str(path)) is None
    assert files.signature(str(path / "below")) is None
    path.write_bytes(b"x")
    first = files.signature(str(path))
    status = path.stat()
    assert first == (status.st_dev, status.st_ino, 1, status.st_mtime_ns, status.st_uid)
    files.write_atomic(str(path), b"x")
    assert files.signature(str(path)) != first


def test_waiting_for_a_lock_times_out(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    with files.Lock(path, 1.0):
        start = time.monotonic()
        with (
            pytest.raises(HostError, match=r"lock has been locked .* for 0.05 s"),
            files.Lock(path, 0.05),
        ):
            pass
        assert time.monotonic() - start >= 0.05
    with files.Lock(path, 0.0):
        pass


def test_a_lock_ends_with_its_process(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")

    def child() -> None:
        files.Lock(path, 1.0).__enter__()
        os.kill(os.getpid(), signal.SIGKILL)

    run_forked(child)
    with files.Lock(path, 0.0):
        assert mode(tmp_path / "lock") == 0o600


def test_a_lock_file_that_is_no_file_of_its_own_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "precious").touch()
    (tmp_path / "second").hardlink_to(tmp_path / "precious")
    for name in ("fifo", "second"):
        with pytest.raises(OSError, match=f"not a regular file with one name: .*/{name}"):
            files.try_lock(str(tmp_path / name))
    (tmp_path / "link").symlink_to("elsewhere")
    with pytest.raises(OSError, match="symbolic links"), files.Lock(str(tmp_path / "link"), 0.0):
        pass
    assert not (tmp_path / "elsewhere").exists()


def test_a_lock_on_a_replaced_file_does_not_count(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    with none_left_open(), files.Lock(path, 0.0):
        os.unlink(path)
        with files.Lock(path, 0.0):
            pass


TEXT = """Character devices:
  1 mem
  4 /dev/vc/0
  4 tty
195 nvidia
195 nvidiactl
508 nvidia-uvm
509 nvidia-uvm
  x broken
236

Block devices:
259 blkext
  8 sd
"""


def test_majors_are_those_of_character_devices() -> None:
    assert device_nodes.parse_proc_devices(TEXT) == {
        "mem": 1, "/dev/vc/0": 4, "tty": 4, "nvidia": 195, "nvidiactl": 195, "nvidia-uvm": 508,
    }  # fmt: skip


def test_a_character_device_is_described() -> None:
    status = os.stat("/dev/null")
    permissions = stat.S_IMODE(status.st_mode)
    assert device_nodes.node("/dev/null") == (1, 3, permissions, status.st_uid, status.st_gid)


def test_a_file_that_is_not_a_character_device_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("/dev/null")
    for name in ("file", "link", "missing", "file/below"):
        assert device_nodes.node(str(tmp_path / name)) is None


def test_a_path_without_permission_is_an_error() -> None:
    with pytest.raises(OSError, match="too long"):
        device_nodes.node("/" + "x" * 300)
