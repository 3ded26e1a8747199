# SPDX-License-Identifier: Apache-2.0
"""What is left of the changes of a container's root where it has mounts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nvct.container.rootfs import libraries
from nvct.container.rootfs.changes import Changes
from nvct.container.rootfs.libraries import MountTargets
from nvct.errors import HostError
from nvct.linux.root import Root


def left(image: Path, mounts: list[str], paths: list[str]) -> tuple[list[str], list[str]]:
    """Return the paths of the links that are left, and the warnings."""
    warnings: list[str] = []
    with Root.open(str(image)) as root:
        changes = Changes(root)
        changes.links = [("/view/file", path) for path in paths]
        libraries.leave_mounts(changes, MountTargets(mounts), warnings.append)
        return [path for _, path in changes.links], warnings


def test_what_is_at_or_below_a_mount_is_dropped_with_a_warning(tmp_path: Path) -> None:
    (tmp_path / "etc/vulkan").mkdir(parents=True)
    (tmp_path / "usr/bin").mkdir(parents=True)
    paths = ["/etc/vulkan/a", "/etc/vulkan/b", "/usr/bin/a", "/usr/bin/b"]
    assert left(tmp_path, [], paths) == (paths, [])
    kept, warnings = left(tmp_path, ["/etc", "/usr/bin/a"], paths)
    assert kept == ["/usr/bin/b"]
    assert [warning.split()[0] for warning in warnings] == ["/etc/vulkan", "/usr/bin/a"]


def test_a_folder_that_is_a_link_into_a_mount_is_one(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "etc").symlink_to("/data")
    assert left(tmp_path, ["/data"], ["/etc/a"])[0] == []
    assert left(tmp_path, ["/dat"], ["/etc/a"])[0] == ["/etc/a"]


def test_mounts_that_cannot_be_read_are_an_error(tmp_path: Path) -> None:
    proc = tmp_path / "proc"
    with Root.open(str(tmp_path)) as root:
        with pytest.raises(HostError, match="the mounts of the container cannot be read"):
            MountTargets.of(root, str(proc))
        (proc / "self/fd").mkdir(parents=True)
        os.symlink("/r", proc / f"self/fd/{root.fd}")
        with pytest.raises(HostError, match="the mounts of the container cannot be read"):
            MountTargets.of(root, str(proc))
        (proc / "self/mountinfo").write_text("30 20 8:1 / /r/data rw - ext4 /dev/x rw\n")
        assert MountTargets.of(root, str(proc)).is_covered("/data")
