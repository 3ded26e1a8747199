# SPDX-License-Identifier: Apache-2.0
"""Copies of a tree: whole, named by their content, and never changed while in use."""

import os
from pathlib import Path

import pytest

from nvct.errors import HostError, UsageError
from nvct.installer import tree


def test_a_copy_has_content_links_and_permissions(source: Path, tmp_path: Path) -> None:
    (source / "bin/nvct").chmod(0o4775)
    os.link(source / "bin/nvct", source / "bin/second")
    path = tree.copy(str(source), str(tmp_path / "trees"))
    assert tree.digest(path) == os.path.basename(path) == tree.digest(str(source))
    assert os.readlink(f"{path}/lib/nvct/again") == "model.py"
    assert os.stat(f"{path}/bin/nvct").st_mode & 0o7777 == 0o755, (
        "nobody else may write, no setuid"
    )
    assert os.stat(f"{path}/lib/nvct/model.py").st_mode & 0o7777 == 0o644
    assert os.path.samefile(f"{path}/bin/nvct", f"{path}/bin/second")


def test_the_same_content_is_copied_once(source: Path, tmp_path: Path) -> None:
    trees = str(tmp_path / "trees")
    path = tree.copy(str(source), trees)
    first = os.stat(path).st_ino
    assert tree.copy(str(source), trees) == path
    assert os.stat(path).st_ino == first
    (source / "lib/nvct/model.py").write_text("X = 2\n", encoding="utf-8")
    assert tree.copy(str(source), trees) != path


@pytest.mark.parametrize("damage", ["content", "mode", "missing"])
def test_a_damaged_copy_is_replaced(damage: str, source: Path, tmp_path: Path) -> None:
    trees = str(tmp_path / "trees")
    path = tree.copy(str(source), trees)
    if damage == "content":
        (tmp_path / path / "lib/nvct/model.py").write_text("", encoding="utf-8")
    elif damage == "mode":
        os.chmod(f"{path}/bin/nvct", 0o644)
    else:
        os.unlink(f"{path}/bin/nvct")
    assert tree.copy(str(source), trees) == path
    assert tree.digest(path) == os.path.basename(path)


@pytest.mark.parametrize("target", ["/etc/passwd", "../../../outside", ".."])
def test_a_link_that_leads_out_is_refused(target: str, source: Path, tmp_path: Path) -> None:
    (source / "outside").symlink_to(target)
    with pytest.raises(UsageError, match="leads out of the tree"):
        tree.copy(str(source), str(tmp_path / "trees"))
    assert not (tmp_path / "trees").exists()


def test_a_fifo_is_refused(source: Path, tmp_path: Path) -> None:
    os.mkfifo(source / "bin/pipe")
    with pytest.raises(UsageError, match="not a file, folder or link"):
        tree.copy(str(source), str(tmp_path / "trees"))


def test_a_file_that_cannot_be_written_is_named(source: Path, tmp_path: Path) -> None:
    (tmp_path / "trees").write_text("a file", encoding="utf-8")
    with pytest.raises(HostError, match="trees"):
        tree.copy(str(source), str(tmp_path / "trees"))


def test_pruning_keeps_what_is_used(source: Path, tmp_path: Path) -> None:
    trees = str(tmp_path / "trees")
    path = tree.copy(str(source), trees)
    (tmp_path / "trees/.nvct-half-made/bin").mkdir(parents=True)
    tree.prune(trees, {path})
    assert os.listdir(trees) == [os.path.basename(path)]
