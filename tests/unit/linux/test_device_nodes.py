# SPDX-License-Identifier: Apache-2.0
import os
import stat
from pathlib import Path

import pytest

from nvct.linux import device_nodes

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
