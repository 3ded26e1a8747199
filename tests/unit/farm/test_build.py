# SPDX-License-Identifier: Apache-2.0
import errno
import os
import shutil
import signal
import stat
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nvct.errors import HostError
from nvct.farm import collect, folder
from nvct.farm.build import build
from nvct.linux.constants import CLONE_NEWUSER
from nvct.linux.kernel import KERNEL, Kernel
from tests.support.forked import run_forked
from tests.support.host_tree import LIB, VERSION
from tests.support.recording_kernel import RecordingKernel
from tests.unit.farm.lab import ICD, FarmLab, tree


def _refusing(number: int) -> Any:
    def refuse(_: Kernel, *args: object, **__: object) -> None:
        raise OSError(number, os.strerror(number), str(args[0]))

    return refuse


def refusing(*names: str, number: int = errno.EXDEV) -> Kernel:
    calls = {name: _refusing(number) for name in names}
    manifest: Kernel = type("RefusingKernel", (Kernel,), {"__slots__": (), **calls})()
    return manifest


def test_a_view_has_the_drivers_files_and_links_inside(lab: FarmLab) -> None:
    manifest = build(lab.farm, lab.find(), str(lab.host.driver))

    held = tree(manifest.path)
    assert manifest.method == "links"
    assert held["lib64/libcuda.so.1"] == f"-> libcuda.so.{VERSION}"
    assert held["lib64/libcuda.so"] == "-> libcuda.so.1"
    assert held["lib64/gbm/nvidia-drm_gbm.so"] == "-> ../libnvidia-allocator.so.1"
    assert held["lib64/vdpau/libvdpau_nvidia.so.1"] == f"-> libvdpau_nvidia.so.{VERSION}"
    assert held["bin/nvidia-smi"] == "#!/bin/sh\n"
    assert held[f"share/firmware/nvidia/{VERSION}/gsp_ga10x.bin"] == "firmware"
    assert "ICD" in held["share/vulkan/icd.d/nvidia_icd.json"]
    assert os.path.samefile(f"{manifest.path}/lib64/libcuda.so.1", lab.libcuda)


def test_its_name_is_the_version_and_a_hash_and_folders_are_0755(lab: FarmLab) -> None:
    before = os.umask(0o077)
    try:
        manifest = build(lab.farm, lab.find())
    finally:
        os.umask(before)

    version, _, digest = manifest.name.rpartition("-")
    assert (version, len(digest)) == (VERSION, 16)
    assert manifest.path == f"{lab.path}/{manifest.name}"
    folders = [str(lab.path), *(path for path, _, _ in os.walk(manifest.path))]
    assert {stat.S_IMODE(os.lstat(path).st_mode) for path in folders} == {0o755}
    assert stat.S_IMODE(os.lstat(f"{manifest.path}.json").st_mode) == 0o644


def test_a_second_build_is_the_same_view_and_changes_nothing(lab: FarmLab) -> None:
    first = build(lab.farm, lab.find())
    before = os.stat(first.path).st_mtime_ns
    kernel = RecordingKernel()

    second = build(lab.with_kernel(kernel), lab.find())

    assert second == first
    assert kernel.names() == []
    assert os.stat(first.path).st_mtime_ns == before


@pytest.mark.parametrize("change", ["content", "time", "new file"])
def test_a_driver_that_changes_gets_another_view_and_the_first_one_stays(
    lab: FarmLab, change: str
) -> None:
    first = build(lab.farm, lab.find())
    if change == "content":
        lab.libcuda.write_bytes(lab.libcuda.read_bytes() + b"more")
    elif change == "time":
        os.utime(lab.libcuda, ns=(1, 1))
    else:
        lab.host.library("libnvidia-encode", "libnvidia-encode.so.1")

    second = build(lab.farm, lab.find())

    assert second.name != first.name
    assert sorted(lab.farm.names()) == sorted([first.name, second.name])
    assert os.path.isdir(first.path)
    assert folder.is_intact(second)


def test_setuid_files_and_files_that_all_may_write_are_left_out(lab: FarmLab) -> None:
    inventory = lab.find()
    lab.driver_file("usr/bin/nvidia-smi").chmod(0o4755)
    lab.driver_file("usr/bin/nvidia-cuda-mps-control").chmod(0o777)

    manifest = build(lab.farm, inventory)

    assert not any(path.startswith("bin/") for path in tree(manifest.path))
    assert dict(manifest.left_out) == {
        f"{lab.host.driver}/usr/bin/nvidia-smi": "setuid or setgid",
        f"{lab.host.driver}/usr/bin/nvidia-cuda-mps-control": "everybody can write to it",
    }


def test_a_file_that_became_something_else_is_left_out(lab: FarmLab) -> None:
    inventory = lab.find()
    smi = lab.driver_file("usr/bin/nvidia-smi")
    smi.unlink()
    smi.symlink_to("/etc/passwd")

    assert dict(build(lab.farm, inventory).left_out) == {str(smi): "not a regular file"}


def test_a_driver_that_goes_meanwhile_is_an_error_and_leaves_nothing(lab: FarmLab) -> None:
    inventory = lab.find()
    lab.libcuda.unlink()

    with pytest.raises(HostError, match=r"libcuda.so.* was removed while a view was made"):
        build(lab.farm, inventory)

    assert lab.farm.names() == []


def test_a_driver_that_changes_meanwhile_is_an_error_and_leaves_nothing(lab: FarmLab) -> None:
    class Racing(Kernel):
        __slots__ = ()

        def symlink(self, target: str, path: str, *, dir_fd: int | None = None) -> None:
            super().symlink(target, path, dir_fd=dir_fd)
            os.utime(lab.libcuda, ns=(7, 7))

    with pytest.raises(HostError, match="changed while a view was made"):
        build(lab.with_kernel(Racing()), lab.find())

    assert sorted(os.listdir(lab.path)) == [".lock"]


def test_where_a_link_cannot_be_made_only_configuration_is_copied(lab: FarmLab) -> None:
    icd = str(lab.driver_file(ICD))

    class OtherFileSystem(Kernel):
        __slots__ = ()

        def link(self, source: str, target: str, **more: int | None) -> None:
            if source == icd:
                raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), source)
            super().link(source, target, **more)

    manifest = build(lab.with_kernel(OtherFileSystem()), lab.find())

    copy = f"{manifest.path}/share/vulkan/icd.d/nvidia_icd.json"
    assert manifest.method == "links"
    assert not os.path.samefile(copy, icd)
    assert folder.is_intact(manifest)
    with open(copy, encoding="utf-8") as file:
        assert file.read() == lab.driver_file(ICD).read_text()
    assert stat.S_IMODE(os.stat(copy).st_mode) == 0o644


def test_where_no_way_is_left_the_last_reason_is_told(lab: FarmLab) -> None:
    kernel = refusing("link", "clone_file", "mount", number=errno.EPERM)

    with pytest.raises(HostError) as caught:
        build(lab.with_kernel(kernel), lab.find(), str(lab.host.driver))

    assert caught.value.message.startswith(
        f"no view of driver {VERSION} can be made: this process cannot mount ("
    )
    assert sorted(os.listdir(lab.path)) == [".lock"]


def test_a_full_disk_is_an_error_and_leaves_nothing(lab: FarmLab) -> None:
    kernel = refusing("symlink", number=errno.ENOSPC)

    with pytest.raises(HostError, match=r"cannot be made: No space left on device"):
        build(lab.with_kernel(kernel), lab.find())

    assert sorted(os.listdir(lab.path)) == [".lock"]


def test_reflinks_are_tried_after_links_and_files_keep_their_modes(lab: FarmLab) -> None:
    def clone(_: Kernel, source_fd: int, target_fd: int) -> None:
        os.write(target_fd, os.pread(source_fd, 1 << 20, 0))

    # Where the file system of a test has no reflinks a copy stands for one.
    calls = {"link": _refusing(errno.EXDEV), "clone_file": clone}
    kernel: Kernel = type("CloningKernel", (Kernel,), {"__slots__": (), **calls})()

    manifest = build(lab.with_kernel(kernel), lab.find())

    smi = f"{manifest.path}/bin/nvidia-smi"
    assert manifest.method == "reflinks"
    assert stat.S_IMODE(os.stat(smi).st_mode) == 0o755
    assert not os.path.samefile(smi, lab.driver_file("usr/bin/nvidia-smi"))
    lab.driver_file("usr/bin/nvidia-smi").write_text("#!/bin/sh\nexit 1\n")
    assert folder.is_intact(manifest)


def test_a_damaged_view_is_made_anew_and_who_has_it_keeps_it(lab: FarmLab) -> None:
    first = build(lab.farm, lab.find())
    held = os.open(first.path, os.O_PATH | os.O_DIRECTORY)
    os.unlink(f"{first.path}/lib64/libcuda.so.1")

    second = build(lab.farm, lab.find())

    assert second.name == first.name
    assert folder.is_intact(second)
    assert "nvidia-smi" in os.listdir(f"/proc/self/fd/{held}/bin")
    os.close(held)


@pytest.mark.parametrize(
    "at",
    [("mkdir", "after", 2), ("link", "before", 1), ("link", "after", 3), ("symlink", "after", 2),
     ("rename", "before", 1), ("rename", "after", 1), ("rename", "before", 2),
     ("rename", "after", 2)],
    ids=lambda at: "-".join(map(str, at)),
)  # fmt: skip
def test_a_build_that_is_killed_at_any_step_is_done_by_the_next(
    lab: FarmLab, at: tuple[str, str, int]
) -> None:
    inventory = lab.find()
    lab.farm.prepare()
    kernel = RecordingKernel(kill_at=at)

    status = run_forked(lambda: build(lab.with_kernel(kernel), inventory))
    manifest = build(lab.farm, inventory)

    assert os.WTERMSIG(status) == signal.SIGKILL
    assert folder.is_intact(manifest)
    assert len(lab.farm.manifests()) == 1
    collect.collect(lab.farm, collect.Needs(loaded=VERSION))
    assert sorted(os.listdir(lab.path)) == sorted(
        [".lock", manifest.name, f"{manifest.name}.json"]
    )


@pytest.mark.parametrize("text", ["", "{", "[]", '{"nvct-farm": 2}', '{"nvct-farm": 1}'])
def test_a_damaged_manifest_counts_as_none(lab: FarmLab, text: str) -> None:
    manifest = build(lab.farm, lab.find())
    record = lab.path / f"{manifest.name}.json"
    record.write_text(text)

    assert lab.farm.manifests() == []
    assert build(lab.farm, lab.find()).entries == manifest.entries
    assert lab.farm.manifests() != []


@pytest.mark.parametrize("mode", [0o777, 0o775])
def test_a_farm_that_others_may_write_to_is_refused(lab: FarmLab, mode: int) -> None:
    lab.path.mkdir()
    lab.path.chmod(mode)

    with pytest.raises(HostError, match="other users can write to it"):
        build(lab.farm, lab.find())

    assert os.listdir(lab.path) == []


@pytest.fixture
def open_lab() -> Iterator[FarmLab]:
    base = Path(tempfile.mkdtemp(prefix="nvct-"))
    base.chmod(0o755)
    yield FarmLab(base)
    shutil.rmtree(base)


def as_nobody(function: Callable[[], object], *, namespace: bool = False) -> None:
    """Run a function as another user, in a user namespace of its own perhaps."""

    def child() -> None:
        os.setgroups([])
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)
        if namespace:
            try:
                KERNEL.unshare(CLONE_NEWUSER)
            except OSError:
                os._exit(0)
            # Who has become another user may not write to its own /proc/self without this.
            KERNEL.set_dumpable()
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text("0 65534 1\n")
        function()

    assert run_forked(child) == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be another user")
@pytest.mark.parametrize("namespace", ["host's", "own"])
def test_who_may_not_write_to_the_farm_uses_roots_view(open_lab: FarmLab, namespace: str) -> None:
    inventory = open_lab.find()
    manifest = build(open_lab.farm, inventory)

    def child() -> None:
        assert build(open_lab.farm, inventory) == manifest
        assert is_readable(manifest.path)

    as_nobody(child, namespace=namespace == "own")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be another user")
def test_who_may_not_write_and_finds_no_view_is_told_so(open_lab: FarmLab) -> None:
    inventory = open_lab.find()
    open_lab.farm.prepare()

    def child() -> None:
        with pytest.raises(HostError, match=r"no view can be made in .*: Permission denied"):
            build(open_lab.farm, inventory)

    as_nobody(child)


def is_readable(path: str) -> bool:
    return all(
        os.access(os.path.join(at, name), os.R_OK) for at, _, n in os.walk(path) for name in n
    )


def test_a_link_in_the_farms_place_is_refused(lab: FarmLab) -> None:
    (lab.host.base / "elsewhere").mkdir()
    lab.path.symlink_to(lab.host.base / "elsewhere")

    with pytest.raises(HostError, match="is not a folder"):
        build(lab.farm, lab.find())

    assert os.listdir(lab.host.base / "elsewhere") == []


def test_a_mode_without_a_driver_has_no_view(lab: FarmLab) -> None:
    with pytest.raises(HostError, match="no view can be made in mode gds"):
        build(lab.farm, replace(lab.find(), mode="gds"))


@pytest.fixture
def own(lab: FarmLab) -> FarmLab:
    """A driver that is installed as views are: lib64 and bin, with its SONAME links."""
    libraries = lab.driver_file(LIB)
    lab.driver_file("lib64").mkdir()
    for path in sorted(libraries.iterdir()):
        path.rename(lab.driver_file("lib64") / path.name)
    lab.driver_file("usr/bin").rename(lab.driver_file("bin"))
    for empty in (LIB, "usr/lib"):
        lab.driver_file(empty).rmdir()
    lab.driver_file("usr").rename(lab.host.base / "away")
    for name, target in {
        "libGLX_indirect.so.0": f"libGLX_nvidia.so.{VERSION}",
        "gbm/nvidia-drm_gbm.so": "../libnvidia-allocator.so.1",
    }.items():
        lab.host.link(f"driver/lib64/{name}", target)
    return lab


def test_a_drivers_own_folder_is_used_as_it_is(own: FarmLab) -> None:
    before = tree(own.host.driver)

    manifest = build(own.farm, own.find(), str(own.host.driver))

    assert (manifest.method, manifest.path) == ("own", str(own.host.driver))
    assert sorted(os.listdir(own.path)) == sorted([".lock", f"{manifest.name}.json"])
    assert tree(own.host.driver) == before
    assert folder.is_intact(manifest)
    assert "lib64/libcuda.so.1" in [link.path for link in manifest.links]


def setuid(lab: FarmLab) -> None:
    lab.driver_file("bin/nvidia-settings").chmod(0o4755)


def writable(lab: FarmLab) -> None:
    lab.driver_file("lib64").chmod(0o777)


def a_system(lab: FarmLab) -> None:
    lab.driver_file("etc").mkdir()


def no_soname_link(lab: FarmLab) -> None:
    lab.driver_file("lib64/libcuda.so.1").unlink()


@pytest.mark.parametrize("change", [setuid, writable, a_system, no_soname_link])
def test_an_own_folder_that_is_not_as_a_view_should_be_is_not_mounted(
    own: FarmLab, change: Any
) -> None:
    change(own)

    manifest = build(own.farm, own.find(), str(own.host.driver))

    assert manifest.method == "links"
    assert "bin/nvidia-settings" not in tree(manifest.path)
