# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from nvct.container.rootfs import libraries
from nvct.container.rootfs.changes import Changes
from nvct.container.rootfs.libraries import MountTargets, scan
from nvct.errors import HostError
from nvct.linux.root import Root
from tests.support.containers import Container
from tests.support.forked import in_a_mount_namespace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.container.rootfs.libraries import Libraries

NOTHING_MOUNTED = MountTargets([])


def found_in(
    container: Container, folder: str, mounts: MountTargets = NOTHING_MOUNTED
) -> Libraries:
    with Root.open(str(container.root)) as root:
        return scan(root, folder, mounts, pytest.fail)


def names_in(
    container: Container, folder: str, mounts: MountTargets = NOTHING_MOUNTED
) -> list[str]:
    return [name for name, _ in found_in(container, folder, mounts).get("x86_64", [])]


def test_a_library_is_found_by_its_soname_and_its_development_link(container: Container) -> None:
    container.library("/drv/libcuda.so.580.1", "libcuda.so.1")
    container.link("/drv/libcuda.so.1", "libcuda.so.580.1")
    container.link("/drv/libcuda.so", "libcuda.so.1")

    assert found_in(container, "/drv") == {
        "x86_64": [("libcuda.so", "/drv/libcuda.so"), ("libcuda.so.1", "/drv/libcuda.so.1")]
    }


@pytest.mark.parametrize(
    ("files", "entry"),
    [
        ({"libcuda.so.580.1": "libcuda.so.1"}, ("libcuda.so.1", "/drv/libcuda.so.580.1")),
        ({"libx.so": None}, ("libx.so", "/drv/libx.so")),
        ({"libcuda.so.580.9": "libcuda.so.1", "libcuda.so.580.10": "libcuda.so.1"},
         ("libcuda.so.1", "/drv/libcuda.so.580.10")),
        ({"libx.so": "../../etc/libx.so.1"}, ("libx.so.1", "/drv/libx.so")),
    ],
    ids=["no link of the soname", "no soname", "the later version", "a soname that is a path"],
)  # fmt: skip
def test_without_a_link_the_file_itself_is_named_by_its_soname(
    container: Container, files: dict[str, str | None], entry: tuple[str, str]
) -> None:
    for name, soname in files.items():
        container.library(f"/drv/{name}", soname)

    assert found_in(container, "/drv") == {"x86_64": [entry]}


def test_other_links_get_no_entry(container: Container) -> None:
    container.library("/drv/libGLX_nvidia.so.580.1", "libGLX_nvidia.so.0")
    container.link("/drv/libGLX_indirect.so.0", "libGLX_nvidia.so.580.1")

    assert names_in(container, "/drv") == ["libGLX_nvidia.so.0"]


def test_libraries_are_grouped_by_machine(container: Container) -> None:
    container.library("/drv/liba.so", "liba.so")
    container.library("/drv/libb.so", "libb.so", "i386")
    container.library("/drv/libc.so", "libc.so", "aarch64")

    assert {m: e[0][0] for m, e in found_in(container, "/drv").items()} == {
        "x86_64": "liba.so", "i386": "libb.so", "aarch64": "libc.so",
    }  # fmt: skip


def test_links_out_of_the_folder_are_followed_inside_the_container(container: Container) -> None:
    container.library("/opt/real.so", "libx.so.1")
    container.link("/drv/libx.so.1", "../../../opt/real.so")
    container.link("/drv/liby.so.1", "/opt/real.so")

    assert names_in(container, "/drv") == ["libx.so.1"]


def test_hostile_files_are_skipped(container: Container) -> None:
    outside = container.bundle / "libout.so"
    outside.write_bytes(container.library("/drv/libgood.so", "libgood.so").read_bytes())
    container.file("/drv/libscript.so", "GROUP ( libc.so.6 )")
    container.file("/drv/libempty.so", "")
    container.file("/drv/libelf.so", b"\x7fELF\2\1")
    os.mkfifo(container.root / "drv/libfifo.so")
    (container.root / "drv/libdir.so").mkdir()
    container.link("/drv/libloop.so", "libloop.so")
    container.link("/drv/libdangling.so", "gone")
    container.link("/drv/libout.so", str(outside))
    container.link("/drv/libmagic.so", "/proc/self/exe")
    container.link("/drv/libfifolink.so", "libfifo.so")

    assert names_in(container, "/drv") == ["libgood.so"]


def test_only_mounted_files_and_files_of_their_names_are_read(container: Container) -> None:
    for name in ("libz.so.1", "libcuda.so.580.1", "libssl.so.3"):
        container.library(f"/usr/lib/{name}", name)
    container.link("/usr/lib/libcuda.so.1", "libcuda.so.580.1")
    mounts = MountTargets(["/proc", "/usr/lib/libcuda.so.580.1", "/usr/libexec/libssl.so.3"])

    assert names_in(container, "/usr/lib", mounts) == ["libcuda.so.580.1"]


@pytest.mark.parametrize("mount", ["/opt", "/opt/drv"])
def test_a_mounted_folder_is_read_completely(container: Container, mount: str) -> None:
    container.library("/opt/drv/liba.so", "liba.so")
    container.library("/opt/drv/libb.so", "libb.so")

    assert names_in(container, "/opt/drv", MountTargets([mount, "/opt/drv/liba.so"])) == [
        "liba.so",
        "libb.so",
    ]


@in_a_mount_namespace
def test_real_mounts_are_seen(container: Container) -> None:
    container.library("/usr/lib/libcuda.so.1", "libcuda.so.1")
    container.library("/usr/lib/libz.so.1", "libz.so.1")

    from nvct.linux.constants import MS_BIND
    from nvct.linux.kernel import KERNEL

    library = str(container.root / "usr/lib/libcuda.so.1")
    KERNEL.mount(library, library, None, MS_BIND)
    with Root.open(str(container.root)) as root:
        mounts = MountTargets.read(root, "/proc")
        assert mounts.names_in("/usr/lib") == {"libcuda.so.1"}
        assert mounts.names_in("/usr") is None
        assert scan(root, "/usr/lib", mounts, pytest.fail)["x86_64"] == [
            ("libcuda.so.1", "/usr/lib/libcuda.so.1")
        ]


@pytest.mark.slow  # making the entries is
def test_of_a_hundred_thousand_entries_only_the_listing_is_read(container: Container) -> None:
    folder = container.library("/usr/lib/libcuda.so.1", "libcuda.so.1").parent
    fd = os.open(folder, os.O_RDONLY)
    for number in range(100_000):
        os.symlink("/", f"x{number}", dir_fd=fd)
    os.close(fd)
    warnings: list[str] = []

    with Root.open(str(container.root)) as root:
        by_machine = scan(root, "/usr/lib", NOTHING_MOUNTED, warnings.append)

    shutil.rmtree(folder)
    assert list(by_machine) == ["x86_64"]
    assert warnings == []


def test_too_many_libraries_are_cut_short_with_a_warning(container: Container) -> None:
    folder = container.file("/drv/libx.so").parent
    for number in range(libraries.READ_LIMIT):
        os.symlink("gone", folder / f"lib{number}.so")
    warnings: list[str] = []

    with Root.open(str(container.root)) as root:
        scan(root, "/drv", NOTHING_MOUNTED, warnings.append)

    assert warnings == ["/drv has 1025 libraries; only 1024 go into ld.so.cache"]


# What is left of the changes of a container's root where it has mounts.


def left(image: Path, mounts: list[str], paths: list[str]) -> tuple[list[str], list[str]]:
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
