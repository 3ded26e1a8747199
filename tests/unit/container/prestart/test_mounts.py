# SPDX-License-Identifier: Apache-2.0
"""Mounts and device nodes into a root, on this kernel and as on older ones."""

import errno
import json
import os
from pathlib import Path
from typing import NoReturn

import pytest

from nvct.container.prestart import mounts
from nvct.container.prestart.deliver import Node
from nvct.errors import HostError, RequestError, UnsafePathError
from nvct.linux.kernel import Kernel
from nvct.linux.root import Root
from tests.support.forked import in_a_mount_namespace, in_mount_namespace

READ_ONLY = ["ro", "nosuid", "nodev", "rbind", "rprivate"]


def _not_there(*_: object, **__: object) -> NoReturn:
    raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))


class Before52(Kernel):
    """A kernel without the new mount calls."""

    open_tree = _not_there


class Before512(Kernel):
    """A kernel that cannot change a detached mount."""

    mount_setattr = _not_there


KERNELS = pytest.mark.parametrize("kernel", [Kernel(), Before512(), Before52()])


class MountedRoot:
    """A root that is a mount, and host files beside it."""

    def __init__(self, home: Path) -> None:
        self.host = home / "host"
        self.root = home / "root"
        self.host.mkdir()
        self.root.mkdir()
        (self.host / "lib.so").write_text("driver", encoding="utf-8")

    def attach(
        self, kernel: Kernel, destination: str, source: str = "lib.so", options: object = READ_ONLY
    ) -> None:
        mount = {"destination": destination, "source": str(self.host / source), "options": options}
        trees = mounts.take([[destination, json.dumps(mount)]], kernel)
        try:
            with Root.open(str(self.root)) as root:
                root.label = "the container"
                for tree in trees:
                    tree.attach(root, kernel)
        finally:
            mounts.close(trees)

    def read(self, path: str) -> str:
        return (self.root / path).read_text(encoding="utf-8")


@pytest.fixture
def mounted_root(tmp_path: Path) -> MountedRoot:
    return MountedRoot(tmp_path)


@KERNELS
def test_a_file_appears_read_only_and_private(kernel: Kernel, mounted_root: MountedRoot) -> None:
    def child() -> None:
        mounted_root.attach(kernel, "/usr/lib/lib.so")
        target = mounted_root.root / "usr/lib/lib.so"
        assert target.read_text(encoding="utf-8") == "driver"
        with pytest.raises(OSError, match="Read-only file system"):
            target.write_text("changed", encoding="utf-8")
        line = next(
            line
            for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
            if str(target) in line
        )
        assert {"ro", "nosuid", "nodev"} <= set(line.split()[5].split(","))
        assert line.split()[6] == "-", line

    in_mount_namespace(child)
    assert (mounted_root.host / "lib.so").read_text(encoding="utf-8") == "driver"


@KERNELS
@in_a_mount_namespace
def test_a_folder_appears_with_its_content(kernel: Kernel, mounted_root: MountedRoot) -> None:
    mounted_root.attach(kernel, "/opt/driver", ".")
    assert mounted_root.read("opt/driver/lib.so") == "driver"
    with pytest.raises(OSError, match="Read-only"):
        (mounted_root.root / "opt/driver/new").touch()


@KERNELS
def test_a_dangling_link_is_replaced_and_its_target_is_not_made(
    kernel: Kernel, mounted_root: MountedRoot
) -> None:
    outside = mounted_root.host / "made"
    (mounted_root.root / "lib.so").symlink_to(outside)

    def child() -> None:
        mounted_root.attach(kernel, "/lib.so")
        assert mounted_root.read("lib.so") == "driver"

    in_mount_namespace(child)
    assert not outside.exists()


@KERNELS
@in_a_mount_namespace
def test_a_link_to_a_file_of_the_host_stays_inside_the_root(
    kernel: Kernel, mounted_root: MountedRoot
) -> None:
    (mounted_root.host / "victim").write_text("mine", encoding="utf-8")
    (mounted_root.root / "lib.so").symlink_to(mounted_root.host / "victim")

    mounted_root.attach(kernel, "/lib.so")
    assert (mounted_root.host / "victim").read_text(encoding="utf-8") == "mine"


@KERNELS
@in_a_mount_namespace
def test_a_folder_at_the_path_of_a_file_is_refused(
    kernel: Kernel, mounted_root: MountedRoot
) -> None:
    (mounted_root.root / "lib.so").mkdir()

    with pytest.raises(UnsafePathError, match=r"/lib.so in the container is a directory"):
        mounted_root.attach(kernel, "/lib.so")


@in_a_mount_namespace
def test_a_file_at_the_path_of_a_folder_is_refused(mounted_root: MountedRoot) -> None:
    (mounted_root.root / "driver").write_text("", encoding="utf-8")

    with pytest.raises(UnsafePathError, match="/driver in the container is not a directory"):
        mounted_root.attach(Kernel(), "/driver", ".")


@in_a_mount_namespace
def test_a_missing_source_is_named(mounted_root: MountedRoot) -> None:
    with pytest.raises(HostError, match=r"cannot mount .*/host/gone: No such file"):
        mounted_root.attach(Kernel(), "/gone", "gone")


def test_a_mount_of_another_kind_is_refused(tmp_path: Path) -> None:
    text = json.dumps({"destination": "/t", "type": "tmpfs", "source": "tmpfs"})

    with pytest.raises(RequestError, match="/t is a mount of type tmpfs, which hooks cannot make"):
        mounts.take([["/t", text]], Kernel())


@in_a_mount_namespace
def test_folders_are_attached_before_files_in_them(mounted_root: MountedRoot) -> None:
    texts = [
        [
            path,
            json.dumps(
                {"destination": path, "source": str(mounted_root.host), "options": ["rbind"]}
            ),
        ]
        for path in ("/a/b/c", "/a", "/a/b")
    ]

    trees = mounts.take(texts, Kernel())
    assert [tree.destination for tree in trees] == ["/a", "/a/b", "/a/b/c"]
    mounts.close(trees)
    assert [tree.fd for tree in trees] == [-1, -1, -1]


def _node(path: str = "/dev/nvidia0", **more: object) -> Node:
    entry = {"path": path, "type": "c", "major": 195, "minor": 0, **more}
    return Node(json.dumps(entry), 1000, 1001)


@pytest.fixture
def root(mounted_root: MountedRoot) -> Path:
    try:
        os.mknod(mounted_root.root / "probe", 0o20600, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("needs CAP_MKNOD")
    return mounted_root.root


def _make(node: Node, root: Path) -> os.stat_result:
    with Root.open(str(root)) as opened:
        opened.label = "the container"
        node.make(opened, Kernel())
    return os.lstat(root / node.path.lstrip("/"))


def test_a_node_is_made_with_its_numbers_mode_and_owner(root: Path) -> None:
    old = os.umask(0o077)
    try:
        status = _make(_node("/dev/nvidia-caps/nvidia-cap1", fileMode=0o444), root)
    finally:
        os.umask(old)

    assert status.st_rdev == os.makedev(195, 0)
    assert status.st_mode == 0o20444
    assert (status.st_uid, status.st_gid) == (1000, 1001)
    assert os.listdir(root / "dev/nvidia-caps") == ["nvidia-cap1"]


def test_owners_of_a_spec_come_before_the_process(root: Path) -> None:
    status = _make(_node(uid=0, gid=44), root)

    assert (status.st_uid, status.st_gid, status.st_mode & 0o777) == (0, 44, 0o666)


def test_a_node_with_the_right_numbers_stays_as_it_is(root: Path) -> None:
    (root / "dev").mkdir()
    os.mknod(root / "dev/nvidia0", 0o20600, os.makedev(195, 0))
    before = os.lstat(root / "dev/nvidia0")

    assert _make(_node(), root) == before


@pytest.mark.parametrize("existing", ["link", "file", "other node"])
def test_another_file_at_the_path_of_a_node_is_replaced(existing: str, root: Path) -> None:
    (root / "dev").mkdir()
    path = root / "dev/nvidia0"
    if existing == "link":
        path.symlink_to(root.parent / "host/lib.so")
    elif existing == "file":
        path.write_text("x", encoding="utf-8")
    else:
        os.mknod(path, 0o20600, os.makedev(1, 1))

    assert _make(_node(), root).st_rdev == os.makedev(195, 0)

    assert (root.parent / "host/lib.so").read_text(encoding="utf-8") == "driver"


def test_a_folder_at_the_path_of_a_node_is_refused(root: Path) -> None:
    (root / "dev/nvidia0").mkdir(parents=True)

    with pytest.raises(UnsafePathError, match="/dev/nvidia0 in the container is a directory"):
        _make(_node(), root)


def test_only_character_devices_are_made() -> None:
    with pytest.raises(RequestError, match="/dev/sda is not a character device"):
        Node(json.dumps({"path": "/dev/sda", "type": "b", "major": 8, "minor": 0}), 0, 0)


def test_the_host_s_node_is_bound_only_if_it_is_the_same(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()

    with pytest.raises(HostError, match=r"/dev/nvidia0 is not device 195:0"):
        _node().take(str(tmp_path), Kernel())

    (tmp_path / "dev/nvidia0").symlink_to("/dev/null")
    with pytest.raises(HostError, match=r"/dev/nvidia0 is not device 195:0"):
        _node().take(str(tmp_path), Kernel())
