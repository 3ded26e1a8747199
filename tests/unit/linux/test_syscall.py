# SPDX-License-Identifier: Apache-2.0
import errno
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

from nvct.errors import DocumentError, HostError
from nvct.linux import mountinfo, syscall

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
        (r"\777", r"\777"),
    ],
)
def test_only_complete_octal_escapes_are_decoded(escaped: str, plain: str) -> None:
    assert mountinfo.unescape(escaped) == plain


GETPID = {"x86_64": 39, "aarch64": 172}
LSEEK = {"x86_64": 8, "aarch64": 62}
HERE = os.uname().machine


def test_a_call_returns_what_the_kernel_says() -> None:
    assert syscall.syscall(GETPID[HERE]) == os.getpid()


def test_a_failure_carries_errno_and_its_text() -> None:
    with pytest.raises(FileNotFoundError) as caught:
        syscall.syscall(syscall.number("umount2"), b"/no/such/place", 8)
    assert caught.value.errno == errno.ENOENT
    assert caught.value.strerror == os.strerror(errno.ENOENT)


def test_arguments_and_results_hold_64_bits(tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        assert syscall.syscall(LSEEK[HERE], file.fileno(), 5 << 32, os.SEEK_SET) == 5 << 32


def test_none_is_a_null_pointer() -> None:
    with pytest.raises(OSError, match="Bad address") as caught:
        syscall.syscall(syscall.number("umount2"), None, 8)
    assert caught.value.errno == errno.EFAULT


def test_numbers_are_those_of_both_machines() -> None:
    assert syscall.number("setns", "x86_64") == 308
    assert syscall.number("setns", "aarch64") == 268
    assert syscall.number("open_tree", "x86_64") == syscall.number("open_tree", "aarch64") == 428


@pytest.mark.parametrize(("name", "machine"), [("mount", "s390x"), ("reboot", "x86_64")])
def test_a_call_without_a_number_is_an_error(name: str, machine: str) -> None:
    with pytest.raises(HostError, match=machine):
        syscall.number(name, machine)


def test_the_static_interpreters_builtin_returns_errors_as_the_kernel_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    builtin = ModuleType("_nvct")
    builtin.__dict__["syscall"] = lambda nr, *args: len(args) if nr == 1 else -errno.EPERM
    monkeypatch.setitem(sys.modules, "_nvct", builtin)
    call = syscall._builtin()
    assert call(1, 2, b"3", None) == 3
    with pytest.raises(PermissionError):
        call(2)
