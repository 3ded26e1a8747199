# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
from pathlib import Path

import pytest

from nvct.errors import DocumentError
from nvct.linux import mountinfo

TEXT = r"""22 28 0:21 / /proc rw,nosuid,nodev,noexec,relatime shared:12 - proc proc rw
28 1 259:2 / / rw,relatime shared:1 master:3 - ext4 /dev/nvme0n1p2 rw,errors=remount-ro
901 28 0:5 /a\040b\134c\011 /mnt/with\040space ro - tmpfs no\040ne rw,size=64k
"""


def test_a_line_has_root_and_target_of_a_mount() -> None:
    proc, root, escaped = mountinfo.parse(TEXT)
    assert (proc.mount_id, proc.parent_id, proc.major, proc.minor) == (22, 28, 0, 21)
    assert (proc.fstype, proc.root, proc.target) == ("proc", "/", "/proc")
    assert "nosuid" in proc.options
    assert root.tags == ("shared:1", "master:3")
    assert root.super_options == ("rw", "errors=remount-ro")
    assert escaped.tags == ()
    assert (escaped.root, escaped.target, escaped.source) == (
        "/a b\\c\t",
        "/mnt/with space",
        "no ne",
    )


def test_targets_returns_the_mount_points_of_parse() -> None:
    text = Path("/proc/self/mountinfo").read_text(encoding="utf-8") + TEXT
    assert mountinfo.targets(text) == [m.target for m in mountinfo.parse(text)]
    with pytest.raises(DocumentError, match="mountinfo line"):
        mountinfo.targets("x y")


def test_every_mount_of_this_process_is_parsed() -> None:
    text = Path("/proc/self/mountinfo").read_text(encoding="utf-8")
    proc = [m for m in mountinfo.parse(text) if m.target == "/proc"][-1]
    device = os.stat("/proc").st_dev
    assert (proc.major, proc.minor) == (os.major(device), os.minor(device))


@pytest.mark.parametrize(
    "line",
    ["x", "1 2 0:1 / /", "a 2 0:1 / / rw - t s o", "1 2 01 / / rw - t s o", "1 2 0:1 / / rw - t"],
)
def test_malformed_mountinfo_is_refused(line: str) -> None:
    with pytest.raises(DocumentError, match="mountinfo line"):
        mountinfo.parse(line)


@pytest.mark.parametrize(
    ("escaped", "plain"),
    [
        (r"\040", " "),
        (r"a\0404", "a 4"),
        ("\\", "\\"),
        (r"\9", r"\9"),
        (r"\777", r"\777"),
        ("é", "é"),
    ],
)
def test_only_complete_octal_escapes_are_decoded(escaped: str, plain: str) -> None:
    assert mountinfo.unescape(escaped) == plain
