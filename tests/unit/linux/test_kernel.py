# SPDX-License-Identifier: Apache-2.0
"""The same tests for Kernel and RecordingKernel."""

import errno
import os
import stat
import sys
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from nvct.errors import DocumentError, HostError
from nvct.linux import constants as c
from nvct.linux import mountinfo, syscall
from nvct.linux.kernel import Kernel
from tests.support.forked import in_a_mount_namespace, run_forked
from tests.support.recording_kernel import CALLS, RecordingKernel


@pytest.fixture(params=[Kernel, RecordingKernel])
def kernel(request: pytest.FixtureRequest) -> Kernel:
    new_kernel: Kernel = request.param()
    return new_kernel


def test_a_file_is_written_through_every_call(kernel: Kernel, tmp_path: Path) -> None:
    folder = os.open(tmp_path, os.O_PATH)
    kernel.mkdir("sub", 0o700, dir_fd=folder)
    fd = kernel.open("sub/a", os.O_RDWR | os.O_CREAT, 0o600, dir_fd=folder)
    assert not os.get_inheritable(fd)
    assert kernel.write(fd, b"hello") == 5
    kernel.fchmod(fd, 0o640)
    kernel.fchown(fd, -1, -1)
    kernel.fsync(fd)
    kernel.close(fd)
    kernel.rename("sub/a", "b", source_dir_fd=folder, target_dir_fd=folder)
    kernel.link("b", "hard", source_dir_fd=folder, target_dir_fd=folder)
    kernel.symlink("b", "soft", dir_fd=folder)
    kernel.lchown("soft", -1, -1, dir_fd=folder)
    kernel.chmod("soft", 0o600, dir_fd=folder)
    assert os.stat("hard", dir_fd=folder).st_mode == stat.S_IFREG | 0o600
    again = kernel.open(str(tmp_path / "soft"), os.O_RDONLY)
    assert kernel.read(again, 99) == b"hello"
    kernel.close(again)
    kernel.unlink("soft", dir_fd=folder)
    kernel.rmdir("sub", dir_fd=folder)
    kernel.mknod("fifo", stat.S_IFIFO | 0o600, dir_fd=folder)
    assert sorted(os.listdir(tmp_path)) == ["b", "fifo", "hard"]
    os.close(folder)


def test_a_hard_link_of_a_symbolic_link_is_that_link(kernel: Kernel, tmp_path: Path) -> None:
    (tmp_path / "soft").symlink_to("/nowhere")
    kernel.link(str(tmp_path / "soft"), str(tmp_path / "hard"))
    assert (tmp_path / "hard").readlink() == (tmp_path / "soft").readlink()


def test_errors_name_the_path(kernel: Kernel, tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    calls: list[tuple[Any, ...]] = [
        (kernel.open, missing, os.O_RDONLY),
        (kernel.open_tree, -100, missing, 0),
        (kernel.mount, "none", missing, "tmpfs"),
        (kernel.umount2, missing),
        (kernel.unlink, missing),
        (partial(kernel.mount_setattr, attr_set=c.MOUNT_ATTR_RDONLY), -100, missing, 0),
    ]
    for call, *args in calls:
        with pytest.raises(OSError, match="missing") as caught:
            call(*args)
        assert caught.value.filename == missing
    with pytest.raises(OSError, match="/no/a") as caught:
        kernel.move_mount(-100, "/no/a", -100, "/no/b", 0)
    assert {caught.value.filename, caught.value.filename2} == {"/no/a", "/no/b"}


def test_a_path_is_never_cut_at_a_nul(kernel: Kernel) -> None:
    with pytest.raises(ValueError, match="null byte"):
        kernel.open_tree(-100, "/etc\0/x", 0)
    with pytest.raises(ValueError, match="null byte"):
        kernel.mount("none", "/tmp\0", "tmpfs")


def test_names_that_are_not_utf8_reach_the_kernel(kernel: Kernel, tmp_path: Path) -> None:
    name = os.fsencode(tmp_path) + b"/\xff"
    with open(name, "wb"):
        pass
    os.close(kernel.open_tree(-100, os.fsdecode(name), 0))


@in_a_mount_namespace
def test_a_namespace_is_entered_again(kernel: Kernel, tmp_path: Path) -> None:
    before = os.open("/proc/self/ns/mnt", os.O_RDONLY)
    kernel.unshare(c.CLONE_NEWNS)
    kernel.mount("none", str(tmp_path), "tmpfs")
    (tmp_path / "proof").touch()
    kernel.setns(before, c.CLONE_NEWNS)
    assert not (tmp_path / "proof").exists()


def test_a_clone_shares_data_or_is_not_supported(kernel: Kernel, tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(b"data" * 1024)
    source = os.open(tmp_path / "source", os.O_RDONLY)
    target = os.open(tmp_path / "target", os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        kernel.clone_file(source, target)
    except OSError as error:
        assert error.errno in (errno.EOPNOTSUPP, errno.ENOTTY)  # noqa: PT017  either is right
    else:
        assert (tmp_path / "target").read_bytes() == b"data" * 1024
    finally:
        os.close(source)
        os.close(target)


def test_a_process_that_changed_its_user_gets_its_own_proc_back(kernel: Kernel) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to be another user")

    def child() -> None:
        os.setresuid(65534, 65534, 65534)
        assert os.stat("/proc/self/status").st_uid == 0
        kernel.set_dumpable()
        assert os.stat("/proc/self/status").st_uid == 65534

    assert run_forked(child) == 0


def test_the_recording_kernel_has_every_call_of_the_kernel() -> None:
    public = {name for name in dir(Kernel) if not name.startswith("_")}
    assert set(CALLS) == public
    assert all(vars(RecordingKernel)[name] is not vars(Kernel)[name] for name in public)


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
