# SPDX-License-Identifier: Apache-2.0
"""Roots with hostile content: one attack in each test."""

import os
import signal
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvct.errors import HostError, UnsafePathError
from nvct.linux import constants as c
from nvct.linux.kernel import KERNEL
from nvct.linux.root import Root
from nvct.linux.walk import DEPTH_LIMIT, LINK_LIMIT
from tests.support.descriptors import none_left_open
from tests.support.forked import in_a_mount_namespace, run_forked
from tests.support.recording_kernel import RecordingKernel


@pytest.fixture
def inside(tmp_path: Path) -> Path:
    """The container's root; the file `secret` next to it belongs to the host."""
    (tmp_path / "secret").write_bytes(b"the host's")
    folder_inside = tmp_path / "root"
    for folder in ("etc", "usr/lib", "tmp"):
        (folder_inside / folder).mkdir(parents=True)
    (folder_inside / "lib").symlink_to("usr/lib")
    (folder_inside / "etc/passwd").write_bytes(b"inside")
    (folder_inside / "usr/lib/libc.so.6").write_bytes(b"ELF")
    return folder_inside


@pytest.fixture
def root(inside: Path) -> Iterator[Root]:
    with none_left_open(), Root.open(str(inside)) as opened:
        yield opened


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    old = os.umask(0o077)
    yield
    os.umask(old)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_a_file_is_read_through_links_inside(root: Root, inside: Path) -> None:
    (inside / "a").symlink_to("/lib/../lib/libc.so.6")
    assert root.read_file("/lib/libc.so.6") == b"ELF"
    assert root.read_file("a") == b"ELF"
    assert root.resolve("/a") == "/usr/lib/libc.so.6"
    assert root.resolve("/lib/") == "/usr/lib"
    assert root.resolve("//./etc/..//") == "/"
    assert root.is_file("/a")
    assert not root.is_file("/lib")
    assert root.readlink("/lib") == "usr/lib"
    assert root.readlink("/etc") is None
    assert root.readlink("/") is None


@pytest.mark.parametrize(
    "path",
    [
        "/none",
        "/etc/passwd/below",
        "/etc/passwd/../passwd",
        "/etc/passwd/",
    ],
)
def test_an_absent_path_is_none(root: Root, path: str) -> None:
    assert root.read_file(path) is None
    assert root.stat(path) is None
    assert root.lstat(path) is None
    assert root.resolve(path) is None
    assert root.readlink(path) is None
    assert root.listdir(path) is None
    assert root.path_fd(path) is None
    assert root.file_fd(path) is None
    assert not root.is_file(path)
    assert not root.chmod(path, 0o755)
    root.unlink(path)
    with pytest.raises((FileNotFoundError, NotADirectoryError)) as caught:
        root.dir_fd(path)
    assert caught.value.filename == path


@pytest.mark.parametrize(
    "text",
    [
        "../secret", "/../secret", "../../../../../../secret", "/etc/../../secret",
        "lib/../../../secret", "{host}/secret", "up/secret", "self/secret",
    ],
)  # fmt: skip
def test_no_link_leads_out(root: Root, inside: Path, text: str) -> None:
    (inside / "up").symlink_to("../..")
    (inside / "self").symlink_to(inside.parent)
    (inside / "link").symlink_to(text.format(host=inside.parent))
    for path in ("/link", text.format(host=inside.parent)):
        assert root.read_file(path) is None
        root.write_file(path, b"mine")
        root.unlink(path)
        root.symlink("x", path)
    assert (inside.parent / "secret").read_bytes() == b"the host's"
    assert sorted(os.listdir(inside.parent)) == ["root", "secret"]


@in_a_mount_namespace
def test_magic_links_are_read_as_text(inside: Path) -> None:
    (inside / "proc").mkdir()
    KERNEL.mount("proc", str(inside / "proc"), "proc")
    os.chdir(inside.parent)
    root = Root.open(str(inside))
    assert (inside / "proc/self/cwd/secret").exists()
    assert root.resolve("/proc/self/root") == "/"
    assert root.read_file("/proc/self/cwd/secret") is None
    assert root.read_file("/proc/self/root/" + str(inside.parent / "secret")) is None
    assert root.read_file(f"/proc/self/fd/{root.fd}/../secret") is None
    assert root.listdir("/proc/self/cwd") is None
    assert root.read_file("/proc/self/status") == b""
    assert root.file_fd("/proc/self/status") is None


def test_links_have_a_limit(root: Root, inside: Path) -> None:
    (inside / "loop").symlink_to("loop")
    (inside / "l0").symlink_to("etc/passwd")
    for n in range(LINK_LIMIT + 1):
        (inside / f"l{n + 1}").symlink_to(f"l{n}")
    assert root.read_file(f"/l{LINK_LIMIT - 1}") == b"inside"
    for path in (f"/l{LINK_LIMIT}", "/loop", "/loop/below"):
        with pytest.raises(UnsafePathError, match="too many symbolic links"):
            root.read_file(path)


def test_steps_and_depth_have_a_limit(root: Root, inside: Path) -> None:
    (inside / "long").symlink_to("etc/../" * 200)
    (inside / "longer").symlink_to("long/../" * 39)
    assert root.resolve("/long") == "/"
    with pytest.raises(UnsafePathError, match="too many symbolic links"):
        root.resolve("/longer")
    with pytest.raises(UnsafePathError, match=f"more than {DEPTH_LIMIT} directories"):
        root.dir_fd("/deep" * (DEPTH_LIMIT + 1), create=True)


@pytest.mark.parametrize("kind", ["fifo", "socket", "directory", "device"])
def test_only_regular_files_are_opened(root: Root, inside: Path, kind: str) -> None:
    path = inside / "odd"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "socket":
        os.mknod(path, stat.S_IFSOCK | 0o600)
    elif os.geteuid() == 0:
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 5))
    else:
        pytest.skip("needs CAP_MKNOD")
    with pytest.raises(UnsafePathError, match=f"/odd in {inside} is not a regular file"):
        root.read_file("/odd")
    if kind != "directory":
        with pytest.raises(UnsafePathError, match="neither a file nor a directory"):
            root.chmod("/odd", 0o777)
    assert mode(path) & 0o077 == 0


def test_a_file_too_large_is_refused_and_costs_nothing(root: Root, inside: Path) -> None:
    assert root.read_file("/etc/passwd", 6) == b"inside"
    with pytest.raises(UnsafePathError, match="larger than 5 bytes"):
        root.read_file("/etc/passwd", 5)
    with (inside / "huge").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(UnsafePathError, match="larger"):
        root.read_file("/huge")


def test_names_are_listed_sorted_and_no_more_than_the_limit(root: Root, inside: Path) -> None:
    for name in ("b", "a", ".c"):
        (inside / "tmp" / name).touch()
    assert root.listdir("/tmp", 3) == [".c", "a", "b"]
    assert root.listdir("/etc/passwd") is None
    with pytest.raises(UnsafePathError, match="more than 2 entries"):
        root.listdir("/tmp", 2)


def test_names_that_are_not_utf8_name_the_same_file(root: Root, inside: Path) -> None:
    with open(os.fsencode(inside) + b"/tmp/\xff\n", "wb") as file:
        file.write(b"x")
    (name,) = root.listdir("/tmp") or []
    assert root.read_file(f"/tmp/{name}") == b"x"


def test_directories_get_their_mode_with_any_umask(root: Root, inside: Path) -> None:
    (inside / "tmp").chmod(0o2775)
    os.close(root.dir_fd("/var/lib/x", create=True))
    os.close(root.dir_fd("/var/lib/x/y", create=True, mode=0o555))
    os.close(root.dir_fd("/tmp/new", create=True))
    assert [mode(inside / p) for p in ("var", "var/lib", "var/lib/x")] == [0o755] * 3
    assert mode(inside / "var/lib/x/y") == 0o555
    assert mode(inside / "tmp/new") == 0o2755  # the group bit is inherited


def test_directories_behind_dangling_links_are_made_inside(root: Root, inside: Path) -> None:
    (inside / "lib64").symlink_to("/../../usr/lib64")
    root.write_file("/lib64/a/b", b"x")
    assert (inside / "usr/lib64/a/b").read_bytes() == b"x"
    assert not (inside.parent / "usr").exists()


def test_a_file_at_the_path_of_a_directory_is_an_error(root: Root) -> None:
    with pytest.raises(NotADirectoryError) as caught:
        root.write_file("/etc/passwd/below", b"x")
    assert caught.value.filename == "/etc/passwd/below"


def test_the_root_itself_is_a_directory_to_open(root: Root, inside: Path) -> None:
    for path in ("/", "", "..", "/etc/.."):
        fd = root.dir_fd(path)
        assert os.fstat(fd).st_ino == inside.stat().st_ino
        assert not os.get_inheritable(fd)
        os.close(fd)
    also = root.path_fd("/")
    assert also is not None
    os.close(also)
    assert root.stat("/") is not None


def test_a_new_file_gets_the_mode_and_an_existing_one_keeps_its_own(
    root: Root, inside: Path
) -> None:
    root.write_file("/etc/new", b"x")
    assert mode(inside / "etc/new") == 0o644
    for old, kept in ((0o604, 0o604), (0o6755, 0o755)):  # set-id bits are not kept
        (inside / "etc/passwd").chmod(old)
        root.write_file("/etc/passwd", b"y", mode=0o640)
        assert mode(inside / "etc/passwd") == kept
    assert (inside / "etc/passwd").read_bytes() == b"y"
    assert sorted(os.listdir(inside / "etc")) == ["new", "passwd"]


def test_a_file_replaces_a_link_and_not_its_target(root: Root, inside: Path) -> None:
    (inside / "etc/cache").symlink_to("passwd")
    os.link(inside.parent / "secret", inside / "etc/hard")
    for name in ("cache", "hard"):
        root.write_file(f"/etc/{name}", b"new")
        assert (inside / "etc" / name).read_bytes() == b"new"
        assert not (inside / "etc" / name).is_symlink()
    assert (inside / "etc/passwd").read_bytes() == b"inside"
    assert (inside.parent / "secret").read_bytes() == b"the host's"


@pytest.mark.parametrize("path", ["/etc", "/", "..", "/lib/..", "/etc/", "/lib/."])
def test_a_directory_is_never_replaced(root: Root, inside: Path, path: str) -> None:
    with pytest.raises(UnsafePathError, match="is a directory"):
        root.write_file(path, b"x")
    with pytest.raises(UnsafePathError, match="is a directory"):
        root.symlink("x", path)
    with pytest.raises(UnsafePathError, match="is a directory"):
        root.unlink(path)
    assert sorted(os.listdir(inside)) == ["etc", "lib", "tmp", "usr"]


class Racer(RecordingKernel):
    __slots__ = ("folder",)

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def rename(self, source: str, target: str, **folders: int | None) -> None:
        self.folder.mkdir()
        super().rename(source, target, **folders)


def test_a_directory_that_appears_at_the_last_moment_is_not_replaced(
    root: Root, inside: Path
) -> None:
    with pytest.raises(UnsafePathError, match="is a directory"):
        root.write_file("/tmp/a", b"x", kernel=Racer(inside / "tmp/a"))
    with pytest.raises(UnsafePathError, match="is a directory"):
        root.symlink("x", "/tmp/b", kernel=Racer(inside / "tmp/b"))
    assert sorted(os.listdir(inside / "tmp")) == ["a", "b"]


def test_a_link_is_made_once(root: Root, inside: Path) -> None:
    twin = RecordingKernel()
    root.symlink("libcuda.so.1", "/lib/libcuda.so", kernel=twin)
    assert (inside / "usr/lib/libcuda.so").readlink().name == "libcuda.so.1"
    assert twin.names() == ["symlink", "rename"]
    twin.calls.clear()
    root.symlink("libcuda.so.1", "/lib/libcuda.so", kernel=twin)
    assert twin.calls == []
    root.symlink("/elsewhere", "/lib/libcuda.so", kernel=twin)
    assert os.readlink(inside / "usr/lib/libcuda.so") == "/elsewhere"


def test_links_of_one_folder_take_one_call_each(root: Root, inside: Path) -> None:
    links = [("x.1", "/lib/x"), ("y.1", "/lib/y"), ("z", "/new/deep/z"), ("../a", "top")]
    twin = RecordingKernel()
    root.symlinks(links, kernel=twin)
    assert [n for n in twin.names() if n != "mkdir"].count("symlink") == len(links)
    assert "rename" not in twin.names()
    assert os.readlink(inside / "usr/lib/y") == "y.1"
    assert os.readlink(inside / "new/deep/z") == "z"
    assert os.readlink(inside / "top") == "../a"
    assert mode(inside / "new/deep") == 0o755
    root.symlinks([("x.1", "/lib/x"), ("other", "/lib/y"), ("b", "/etc/passwd")])
    assert [os.readlink(inside / f) for f in ("lib/x", "lib/y", "etc/passwd")] == [
        "x.1", "other", "b",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("target", "path"),
    [("", "/etc/a"), ("a\0b", "/etc/a"), ("x", "/etc/.."), ("x", "/etc/"), ("x", "/usr"),
     ("x", "/etc/a\0")],
)  # fmt: skip
def test_an_invalid_link_is_refused_alone_and_among_many(
    root: Root, target: str, path: str
) -> None:
    with pytest.raises(UnsafePathError):
        root.symlinks([("ok", "/etc/ok"), (target, path)])
    with pytest.raises(UnsafePathError, match="." if target == "x" else "cannot be a link"):
        root.symlink(target, path)


def test_a_link_replaces_and_unlink_removes_a_link_and_not_its_target(
    root: Root, inside: Path
) -> None:
    (inside / "etc/link").symlink_to("passwd")
    root.unlink("/etc/link")
    root.unlink("/etc/link")
    assert os.listdir(inside / "etc") == ["passwd"]
    (inside / "etc/dangling").symlink_to("/../../secret")
    root.symlink("x", "/etc/dangling")
    root.symlink("y", "/etc/passwd")
    assert os.readlink(inside / "etc/dangling") == "x"
    assert os.readlink(inside / "etc/passwd") == "y"


def test_chmod_follows_links_inside_only(root: Root, inside: Path) -> None:
    (inside.parent / "secret").chmod(0o600)
    (inside / "link").symlink_to("/../secret")
    (inside / "good").symlink_to("etc/passwd")
    assert not root.chmod("/link", 0o777)
    assert root.chmod("/good", 0o640)
    assert root.chmod("/etc", 0o1777)
    assert mode(inside.parent / "secret") == 0o600
    assert mode(inside / "etc/passwd") == 0o640
    assert mode(inside / "etc") == 0o1777


def test_a_descriptor_for_mounting_touches_nothing(root: Root, inside: Path) -> None:
    os.mkfifo(inside / "fifo")
    (inside / "link").symlink_to("fifo")
    fd = root.path_fd("/link")
    assert fd is not None
    assert stat.S_ISFIFO(os.fstat(fd).st_mode)
    os.close(fd)
    fd = root.path_fd("/link", follow=False)
    assert fd is not None
    assert stat.S_ISLNK(os.fstat(fd).st_mode)
    os.close(fd)


@pytest.mark.parametrize(
    ("path", "message"),
    [("/" + "x" * 256, "too long"), ("/" + "x" * 256 + "/y", "too long"),
     ("/etc/passwd\0.txt", "NUL")],
    ids=["long", "long folder", "nul"],
)  # fmt: skip
def test_a_name_too_long_or_with_a_nul_is_the_containers_fault(
    root: Root, path: str, message: str
) -> None:
    for call in (root.stat, root.read_file, lambda path: root.write_file(path, b"x")):
        with pytest.raises(UnsafePathError, match=message):
            call(path)


def test_a_missing_root_is_a_one_line_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name in ("missing", "file"):
        with pytest.raises(HostError, match=f"root folder {tmp_path}/{name} cannot be opened"):
            Root.open(str(tmp_path / name))


@in_a_mount_namespace
def test_a_full_file_system_leaves_the_old_file_and_nothing_else(inside: Path) -> None:
    KERNEL.mount("none", str(inside / "tmp"), "tmpfs", 0, "size=64k")
    (inside / "tmp/a").write_bytes(b"old")
    with Root.open(str(inside)) as root:
        with pytest.raises(OSError, match="No space") as caught:
            root.write_file("/tmp/a", b"x" * 100_000)
        assert caught.value.filename == "/tmp/a"
        assert root.read_file("/tmp/a") == b"old"
        assert root.listdir("/tmp") == ["a"]


@in_a_mount_namespace
def test_a_fake_proc_is_detected(root: Root, inside: Path) -> None:
    fd = root.path_fd("/etc/passwd")
    assert fd is not None
    os.close(fd)
    KERNEL.mount("none", "/proc", "tmpfs")
    with pytest.raises(HostError, match="/proc is not mounted"):
        root.read_file("/etc/passwd")
    os.makedirs("/proc/self/fd")
    for number in range(4096):  # whatever number this process's next file gets
        os.symlink(inside.parent / "secret", f"/proc/self/fd/{number}")
    with pytest.raises(UnsafePathError, match="another file"):
        root.read_file("/etc/passwd")
    KERNEL.umount2("/proc", c.MNT_DETACH)


def test_a_kill_at_any_call_leaves_the_old_file_or_the_new_one_inside(
    root: Root, inside: Path
) -> None:
    path = inside / "etc/passwd"
    rehearsal = RecordingKernel()
    root.write_file("/etc/passwd", b"inside", kernel=rehearsal)
    seen = set()
    for name in rehearsal.names():
        for when in ("before", "after"):
            path.write_bytes(b"inside")
            twin = RecordingKernel(kill_at=(name, when, 1))

            def child(twin: RecordingKernel = twin) -> None:
                root.write_file("/etc/passwd", b"new", kernel=twin)

            assert os.WTERMSIG(run_forked(child)) == signal.SIGKILL
            seen.add(path.read_bytes())
    assert seen == {b"inside", b"new"}
