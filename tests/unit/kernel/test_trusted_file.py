# SPDX-License-Identifier: Apache-2.0
"""Code of files that only root can change: everything else on the way is refused."""

import os
from pathlib import Path

import pytest

from nvct.errors import UnsafePathError
from nvct.kernel.trusted_file import find_program, open_trusted

LIBRARY = "/usr/lib/libnvidia-ml.so.1"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a root with a library by a link, in folders that only this user can change."""
    folder = tmp_path / "root/usr/lib/nvidia"
    folder.mkdir(parents=True)
    (folder / "libnvidia-ml.so.580").write_text("code")
    Path(f"{tmp_path}/root{LIBRARY}").symlink_to("/usr/lib/nvidia/libnvidia-ml.so.580")
    for path in (tmp_path / "root").rglob("*"):
        if not path.is_symlink():
            path.chmod(0o755)
    return tmp_path / "root"


def read(root: Path, path: str = LIBRARY) -> str:
    with os.fdopen(open_trusted(str(root), path)) as file:
        return file.read()


def test_a_file_of_this_user_is_opened_by_links_below_the_root(root: Path) -> None:
    assert read(root) == "code"
    with pytest.raises(FileNotFoundError):
        read(root, "/usr/lib/none.so")


@pytest.mark.parametrize(
    "path", ["", "usr", "usr/lib", "usr/lib/nvidia", "usr/lib/nvidia/libnvidia-ml.so.580"]
)
@pytest.mark.parametrize("mode", [0o775, 0o757])
def test_what_others_can_change_is_refused(root: Path, path: str, mode: int) -> None:
    (root / path).chmod(mode)

    with pytest.raises(UnsafePathError, match="others than root can change /"):
        read(root)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("path", ["usr/lib", "usr/lib/nvidia/libnvidia-ml.so.580"])
def test_what_belongs_to_another_user_is_refused(root: Path, path: str) -> None:
    os.chown(root / path, 1000, 1000)

    with pytest.raises(UnsafePathError, match="others than root can change"):
        read(root)


def test_a_folder_with_the_sticky_bit_has_what_its_owner_put_there(root: Path) -> None:
    (root / "usr/lib").chmod(0o1777)

    assert read(root) == "code"


def test_what_is_no_regular_file_is_refused(root: Path) -> None:
    os.mkfifo(root / "usr/lib/fifo", 0o644)

    for path in ("/usr/lib/fifo", "/usr/lib"):
        with pytest.raises(UnsafePathError, match="is not a regular file"):
            read(root, path)


def test_a_program_is_the_first_that_only_root_can_change(root: Path) -> None:
    for folder in ("bin", "opt/bin", "sbin"):
        (root / folder).mkdir(parents=True)
        (root / folder / "smi").write_text("")
    (root / "opt").chmod(0o777)
    (root / "sbin/smi").chmod(0o755)
    folders = ("/none", "/bin", "/opt/bin", "/sbin")

    assert find_program(str(root), folders, "smi") == "/sbin/smi"
    assert find_program(str(root), ("/opt/bin",), "none") is None
    assert find_program(str(root / "none"), folders, "smi") is None
    with pytest.raises(UnsafePathError):
        find_program(str(root), ("/opt/bin",), "smi")
