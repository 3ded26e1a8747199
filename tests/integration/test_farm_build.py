# SPDX-License-Identifier: Apache-2.0
"""Views on real file systems and mounts, each test in a mount namespace of its own.

What a container does with a view is in these tests a bind of it, as a runtime makes it.
"""

import errno
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from nvct.farm import after_upgrade, collect, folder
from nvct.farm.build import build
from nvct.farm.collect import Needs
from nvct.farm.folder import Farm
from nvct.farm.model import Manifest
from nvct.linux import mountinfo
from nvct.linux.constants import (
    MNT_DETACH,
    MS_BIND,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_PRIVATE,
    MS_RDONLY,
    MS_REC,
    MS_REMOUNT,
    MS_SHARED,
)
from nvct.linux.kernel import KERNEL
from tests.integration import farm_inside
from tests.integration.conftest import SimulatedNode
from tests.support.forked import in_a_mount_namespace, in_mount_namespace, run_forked
from tests.support.host_tree import VERSION
from tests.support.recording_kernel import RecordingKernel
from tests.unit.farm.lab import NEWER, FarmLab, tree

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
READ_ONLY = MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV


def mount_into(view: str, target: Path) -> None:
    """Mount a view as a runtime does: rbind, read-only at the top, private."""
    target.mkdir()
    KERNEL.mount(view, str(target), None, MS_BIND | MS_REC)
    KERNEL.mount(None, str(target), None, READ_ONLY)
    KERNEL.mount(None, str(target), None, MS_PRIVATE | MS_REC)


def refused_writes(place: str, manifest: Manifest) -> list[str]:
    """Return what cannot be written, made or removed below a folder; the rest is written."""
    refused = []
    for entry in manifest.entries:
        for flags in (os.O_WRONLY, os.O_RDWR | os.O_TRUNC, os.O_WRONLY | os.O_APPEND):
            try:
                os.close(os.open(f"{place}/{entry.path}", flags))
            except OSError as error:
                if error.errno == errno.EROFS:
                    refused.append(entry.path)
    return refused


def assert_unwritable(place: str, manifest: Manifest) -> None:
    before = tree(place)
    assert len(refused_writes(place, manifest)) == 3 * len(manifest.entries)
    first = manifest.entries[0].path
    attempts: tuple[Callable[[], None], ...] = (
        lambda: os.close(os.open(f"{place}/new", os.O_CREAT | os.O_WRONLY)),
        lambda: os.unlink(f"{place}/{first}"),
        lambda: os.unlink(f"{place}/{manifest.links[0].path}"),
        lambda: os.rename(f"{place}/{first}", f"{place}/other"),
        lambda: os.chmod(f"{place}/{first}", 0o700),
        lambda: os.utime(f"{place}/{first}"),
        lambda: os.symlink("x", f"{place}/lib64/x"),
    )
    for attempt in attempts:
        with pytest.raises(OSError, match=r"Read-only|busy"):
            attempt()
    assert tree(place) == before


@in_a_mount_namespace
def test_binds_are_read_only_each_by_itself(tmp_path: Path) -> None:
    lab = FarmLab(tmp_path)
    view = build(lab.farm, lab.find(), allowed=("binds",))
    target = tmp_path / "container"
    # As the worst runtime: only the top of the mount is made read-only.
    mount_into(view.path, target)

    assert view.method == "binds"
    assert folder.is_intact(view)
    assert_unwritable(str(target), view)
    assert_unwritable(view.path, view)
    mounts = {m.target: m for m in mountinfo.parse(folder.own_mounts(lab.farm))}
    for entry in view.entries:
        if entry.file.kind == "config":  # a copy on the tmpfs itself
            continue
        options = mounts[f"{target}/{entry.path}"].options
        assert {"ro", "nosuid", "nodev"} <= set(options), entry.path
    assert os.path.samefile(f"{target}/lib64/libcuda.so.1", lab.libcuda)


@pytest.mark.parametrize("way", ["links", "binds"])
@in_a_mount_namespace
def test_a_view_of_any_kind_is_unwritable_through_a_containers_mount(
    tmp_path: Path, way: str
) -> None:
    lab = FarmLab(tmp_path)
    view = build(lab.farm, lab.find(), allowed=("links",) if way == "links" else ("binds",))
    mount_into(view.path, tmp_path / "container")

    assert_unwritable(str(tmp_path / "container"), view)


@in_a_mount_namespace
def test_binds_under_a_shared_mount_are_private_and_whole(tmp_path: Path) -> None:
    lab = FarmLab(tmp_path)
    lab.path.mkdir(mode=0o755)
    KERNEL.mount(str(tmp_path), str(tmp_path), None, MS_BIND)
    KERNEL.mount(None, str(tmp_path), None, MS_SHARED)
    view = build(lab.farm, lab.find(), allowed=("binds",))
    mount_into(view.path, tmp_path / "container")

    own = [
        m for m in mountinfo.parse(folder.own_mounts(lab.farm)) if m.target.startswith(view.path)
    ]
    copied = [e for e in view.entries if e.file.kind == "config"]
    assert len(own) == 1 + len(view.entries) - len(copied)
    assert {m.tags for m in own} == {()}
    # An umount on the host does not reach the container.
    KERNEL.umount2(view.path, MNT_DETACH)
    assert tree(tmp_path / "container")["bin/nvidia-smi"] == "#!/bin/sh\n"
    assert [name for name in os.listdir(lab.path) if name.startswith(".build")] == []


@in_a_mount_namespace
def test_binds_are_made_anew_where_they_are_not_mounted(tmp_path: Path) -> None:
    lab = FarmLab(tmp_path)
    first = build(lab.farm, lab.find(), allowed=("binds",))
    KERNEL.umount2(first.path, MNT_DETACH)  # as after a boot, or in another namespace
    (status,) = collect.statuses(lab.farm, Needs(loaded=VERSION))
    assert (status.state, status.keep) == ("absent", "it is the loaded driver's")

    second = build(lab.farm, lab.find(), allowed=("binds",))

    assert second.name == first.name
    assert folder.is_intact(second)


def test_two_mount_namespaces_each_have_a_view_of_binds_and_leave_the_others(
    tmp_path: Path,
) -> None:
    def inside() -> None:
        lab = FarmLab(tmp_path)
        inventory = lab.find()
        first = build(lab.farm, inventory, allowed=("binds",))

        def other() -> None:
            KERNEL.umount2(first.path, MNT_DETACH)  # made before the first one was
            assert build(lab.farm, inventory, allowed=("binds",)).name == first.name

        in_mount_namespace(other)
        kernel = RecordingKernel()
        again = build(Farm(path=lab.farm.path, kernel=kernel), inventory, allowed=("binds",))

        assert again.name == first.name
        assert kernel.names() == []

    in_mount_namespace(inside)


@pytest.mark.parametrize("number", [1, 2, 3, 40])
@in_a_mount_namespace
def test_a_build_of_binds_that_is_killed_is_done_by_the_next(tmp_path: Path, number: int) -> None:
    lab = FarmLab(tmp_path)
    inventory = lab.find()
    lab.farm.prepare()
    killed = RecordingKernel(kill_at=("mount", "after", number))
    farm = Farm(path=lab.farm.path, kernel=killed)
    status = run_forked(lambda: build(farm, inventory, allowed=("binds",)))
    assert os.WTERMSIG(status) == signal.SIGKILL

    made = build(lab.farm, inventory, allowed=("binds",))
    collect.collect(lab.farm, Needs(loaded=VERSION))

    assert folder.is_intact(made)
    assert sorted(os.listdir(lab.path)) == sorted([".lock", made.name, f"{made.name}.json"])
    assert_unwritable(made.path, made)


@in_a_mount_namespace
def test_an_overlay_is_not_linked_but_bound(tmp_path: Path) -> None:
    lab = FarmLab(tmp_path)
    for name in ("upper", "work"):
        (tmp_path / name).mkdir()
    layers = f"lowerdir={lab.host.driver},upperdir={tmp_path}/upper,workdir={tmp_path}/work"
    KERNEL.mount("overlay", str(lab.host.driver), "overlay", 0, layers)

    view = build(lab.farm, lab.find(), str(lab.host.driver))

    assert view.method == "binds"
    assert os.listdir(tmp_path / "upper") == []  # nothing was copied up
    assert_unwritable(view.path, view)


@in_a_mount_namespace
def test_another_mount_of_one_file_system_refuses_links_and_gets_binds(tmp_path: Path) -> None:
    lab = FarmLab(tmp_path)
    driver = str(lab.host.driver)
    KERNEL.mount(driver, driver, None, MS_BIND)
    assert os.stat(driver).st_dev == os.stat(tmp_path).st_dev

    view = build(lab.farm, lab.find(), driver)

    assert view.method == "binds"


@in_a_mount_namespace
def test_no_links_are_made_on_a_noexec_mount(tmp_path: Path) -> None:
    lab = FarmLab(tmp_path)
    base = str(tmp_path)
    KERNEL.mount(base, base, None, MS_BIND)
    KERNEL.mount(None, base, None, MS_REMOUNT | MS_BIND | MS_NOEXEC)

    view = build(lab.farm, lab.find(), str(lab.host.driver))

    assert view.method == "binds"
    (status,) = collect.statuses(lab.farm, Needs(loaded=VERSION))
    assert (status.state, status.users) == ("good", 0)


@pytest.mark.parametrize("way", ["by rename", "in place"])
@in_a_mount_namespace
def test_what_a_view_of_binds_has_of_a_driver_that_is_gone_is_copied(
    tmp_path: Path, way: str
) -> None:
    """The kernel binds no single file that has lost its name; single mounts need files."""

    lab = FarmLab(tmp_path)
    driver = str(lab.host.driver)
    KERNEL.mount(driver, driver, None, MS_BIND)  # no links from here
    first = build(lab.farm, lab.find(), driver)
    assert first.method == "binds"
    libcuda = lab.libcuda.read_bytes()
    lab.install(NEWER, in_place=way == "in place")

    found = after_upgrade.discover_or_view(lab.farm, lab.host.roots, lab.wanted, lab.find)
    second = build(lab.farm, found)

    assert second.name != first.name
    assert (second.version, second.method) == (VERSION, "copies")
    held = tree(second.path)
    assert held[f"lib64/libcuda.so.{VERSION}"] == libcuda.decode("latin-1")
    assert ("bin/nvidia-smi" in held) is (way == "by rename")
    for file in found.files:
        assert os.stat(file.host_path).st_nlink == 1
    # From now on it is the view in use.
    again = after_upgrade.discover_or_view(lab.farm, lab.host.roots, lab.wanted, lab.find)
    assert build(lab.farm, again) == second


@in_a_mount_namespace
def test_gc_keeps_what_a_container_has_mounted_until_it_ends(tmp_path: Path) -> None:
    lab = FarmLab(tmp_path)
    views = [build(lab.farm, lab.find(), allowed=(way,)) for way in ("links",)]
    lab.install(NEWER)
    lab.load(NEWER)
    new = build(lab.farm, lab.find(), allowed=("binds",))
    target = tmp_path / "container"
    script = (
        f"mkdir {target}; mount --rbind {views[0].path} {target}; "
        f"mount -o remount,bind,ro {target}; echo ready; exec sleep 60"
    )
    with subprocess.Popen(
        ["unshare", "--mount", "--propagation", "private", "sh", "-ec", script],
        stdout=subprocess.PIPE, text=True,
    ) as container:  # fmt: skip
        assert container.stdout is not None
        assert container.stdout.readline() == "ready\n"

        found = {s.manifest.name: s for s in collect.statuses(lab.farm, Needs(loaded=NEWER))}
        assert found[views[0].name].users == 1
        # It also has a copy of the farm's own mount, which is no use of it.
        assert found[new.name].users == 0
        assert collect.collect(lab.farm, Needs(loaded=NEWER)) == []
        container.kill()
    (gone,) = collect.collect(lab.farm, Needs(loaded=NEWER))

    assert gone.manifest == views[0]
    assert not os.path.exists(views[0].path)
    assert folder.is_intact(new)


@in_a_mount_namespace
def test_gc_takes_away_views_of_binds_with_their_mounts(tmp_path: Path) -> None:
    lab = FarmLab(tmp_path)
    old = build(lab.farm, lab.find(), allowed=("binds",))
    drivers_own = tree(lab.host.driver)

    gone = collect.collect(lab.farm, Needs(loaded=NEWER))

    assert [status.manifest for status in gone] == [old]
    assert os.listdir(lab.path) == [".lock"]
    assert tree(lab.host.driver) == drivers_own
    assert old.name not in folder.own_mounts(lab.farm)


@in_a_mount_namespace
def test_gc_takes_away_what_a_build_that_was_killed_has_mounted(tmp_path: Path) -> None:
    lab = FarmLab(tmp_path)
    lab.farm.prepare()
    left = lab.path / ".build-dead"
    (left / "bin").mkdir(parents=True)
    KERNEL.mount("nvct-farm:x", str(left), "tmpfs")
    (left / "nvidia-smi").touch()
    KERNEL.mount(str(lab.libcuda), f"{left}/nvidia-smi", None, MS_BIND)

    collect.collect(lab.farm, Needs(loaded=VERSION))

    assert os.listdir(lab.path) == [".lock"]
    assert lab.libcuda.exists()


@in_a_mount_namespace
def test_an_upgrade_while_a_container_runs_leaves_it_its_driver(tmp_path: Path) -> None:
    lab = FarmLab(tmp_path)
    view = build(lab.farm, lab.find())
    target = tmp_path / "container"
    mount_into(view.path, target)
    before = tree(target)

    lab.install(NEWER)

    assert tree(target) == before


def test_two_builds_at_once_end_with_one_view(tmp_path: Path) -> None:
    lab = FarmLab(tmp_path)
    inventory = lab.find()
    children = []
    for _ in range(4):
        pid = os.fork()
        if pid == 0:
            try:
                build(lab.farm, inventory)
                os._exit(0)
            finally:
                os._exit(1)
        children.append(pid)

    assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * 4

    (view,) = lab.farm.manifests()
    assert folder.is_intact(view)
    assert sorted(os.listdir(lab.path)) == sorted([".lock", view.name, f"{view.name}.json"])


def test_the_time_that_a_plan_takes_with_a_view_that_is_there_is_small(tmp_path: Path) -> None:
    lab = FarmLab(tmp_path)
    inventory = lab.find()
    build(lab.farm, inventory)

    took = []
    for _ in range(5):
        start = time.process_time()
        build(lab.farm, inventory)
        took.append(time.process_time() - start)

    assert min(took) < 0.05


def test_containers_are_created_between_a_driver_upgrade_and_the_boot(
    simulated: SimulatedNode,
) -> None:
    simulated.run(farm_inside.an_upgrade_is_survived)
