# SPDX-License-Identifier: Apache-2.0
"""Drop-ins: an engine that reads every file of a folder never sees a part of one."""

import errno
import os
from pathlib import Path

import pytest

from nvct.engine import writing
from nvct.linux.kernel import Kernel


class _WatchingKernel(Kernel):
    """Looks into a folder before each call that changes something; may die at a rename."""

    def __init__(self, folder: Path, *, dies: bool = False) -> None:
        self.folder = folder
        self.dies = dies
        self.seen: list[tuple[str, ...]] = []

    def write(self, fd: int, data: bytes) -> int:
        self._look()
        return super().write(fd, data)

    def rename(self, source: str, target: str, **folders: int | None) -> None:
        self._look()
        if self.dies:
            raise OSError(28, "No space left on device")
        super().rename(source, target, **folders)
        self._look()

    def _look(self) -> None:
        self.seen.append(tuple(sorted(os.listdir(self.folder))))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    test_folder = tmp_path / "crio/crio.conf.d"
    test_folder.mkdir(parents=True)
    return test_folder


def test_a_folder_of_drop_ins_never_holds_a_temporary_file(folder: Path) -> None:
    kernel = _WatchingKernel(folder)
    writing.write_engine_file(f"{folder}/99-nvidia.toml", b"new", 0o644, kernel)
    assert set(kernel.seen) == {(), ("99-nvidia.toml",)}
    assert os.listdir(folder.parent) == ["crio.conf.d"]
    assert (folder / "99-nvidia.toml").read_bytes() == b"new"


def test_a_failure_leaves_the_old_file_and_nothing_else(folder: Path) -> None:
    (folder / "99-nvidia.toml").write_bytes(b"old")
    with pytest.raises(OSError, match="No space"):
        writing.write_engine_file(
            f"{folder}/99-nvidia.toml", b"new", None, _WatchingKernel(folder, dies=True)
        )
    assert (folder / "99-nvidia.toml").read_bytes() == b"old"
    assert os.listdir(folder.parent) == ["crio.conf.d"]


@pytest.mark.parametrize("name", ["crio", "crio.conf.d"], ids=["other-folder", "everybodys"])
def test_other_files_are_written_in_their_own_folder(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.mkdir()
    path.chmod(0o777)
    kernel = _WatchingKernel(path)
    writing.write_engine_file(f"{path}/x", b"new", 0o600, kernel)
    assert any(names[0].startswith(".nvct-") for names in kernel.seen if names)
    assert (path / "x").read_bytes() == b"new"


class _OtherMount(_WatchingKernel):
    """A folder that is a mount of its own: nothing can be moved into it."""

    def rename(self, source: str, target: str, **folders: int | None) -> None:
        if folders["source_dir_fd"] != folders["target_dir_fd"]:
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        self.complete = (self.folder / source).read_bytes()
        super().rename(source, target, **folders)


@pytest.mark.parametrize("old", [None, b"old"])
@pytest.mark.parametrize("name", ["crio.conf.d", "dropins"])
def test_on_a_mount_of_its_own_a_file_has_no_name_until_it_is_complete(
    tmp_path: Path, name: str, old: bytes | None
) -> None:
    folder = tmp_path / name
    folder.mkdir()
    target = folder / "99-nvidia.toml"
    if old is not None:
        target.write_bytes(old)
        target.chmod(0o640)
    kernel = _OtherMount(folder)

    writing.write_engine_file(str(target), b"new", None if old else 0o600, kernel)

    assert kernel.complete == b"new"
    assert target.read_bytes() == b"new"
    assert target.stat().st_mode & 0o777 == (0o640 if old else 0o600)
    assert os.listdir(folder) == ["99-nvidia.toml"]
    assert [name for name in os.listdir(tmp_path) if name.startswith(".")] == []


def test_leftovers_of_a_killed_run_are_removed(folder: Path) -> None:
    for path in (folder, folder.parent):
        (path / ".nvct-0123456789abcdef").write_bytes(b"cut o")
    (folder.parent / ".nvct-folder").mkdir()

    writing.write_engine_file(f"{folder}/99-nvidia.toml", b"new", 0o644, Kernel())

    assert os.listdir(folder) == ["99-nvidia.toml"]
    assert sorted(os.listdir(folder.parent)) == [".nvct-folder", "crio.conf.d"]


@pytest.mark.parametrize("path", ["crio", "crio/crio.conf.d"])
def test_a_leftover_with_the_files_owner_is_removed(
    folder: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, root = folder / "99-nvidia.toml", folder.parents[1]
    target.write_bytes(b"old")
    (root / path / ".nvct-0123456789abcdef").write_bytes(b"half")
    other = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: other)  # root, writing a user's file

    writing.sweep(str(target), Kernel())

    assert sorted(os.listdir(root / "crio")) == ["crio.conf.d"]
    assert os.listdir(folder) == ["99-nvidia.toml"]
