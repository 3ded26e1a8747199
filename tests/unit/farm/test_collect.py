# SPDX-License-Identifier: Apache-2.0
"""Listing, verifying and removing views, on a procfs of plain files."""

import os
from pathlib import Path

import pytest

from nvct.errors import HostError
from nvct.farm import collect, folder
from nvct.farm.build import build
from nvct.farm.collect import PLAN_AGE_S, Needs
from nvct.farm.folder import Farm
from nvct.farm.model import Manifest
from nvct.linux.kernel import KERNEL, Kernel
from tests.support.host_tree import VERSION
from tests.unit.farm.lab import NEWER, FarmLab, tree

LINE = "36 35 254:0 {root} {target} ro,nosuid,nodev,relatime - ext4 {source} rw\n"


class Processes:
    """A procfs of which only mountinfo is looked at."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.add(1)
        (path / "self").symlink_to("1")

    def add(self, pid: int, text: str = "", namespace: str = "mnt:[1]") -> None:
        folder = self.path / str(pid)
        (folder / "ns").mkdir(parents=True)
        (folder / "mountinfo").write_text(LINE.format(root="/", target="/", source="x") + text)
        (folder / "ns/mnt").symlink_to(namespace)


@pytest.fixture
def processes(tmp_path: Path) -> Processes:
    return Processes(tmp_path / "processes")


def farm(lab: FarmLab, processes: Processes, kernel: Kernel = KERNEL) -> Farm:
    return Farm(path=str(lab.path), processes=str(processes.path), kernel=kernel)


def two_views(lab: FarmLab) -> tuple[Manifest, Manifest]:
    """Return the view of a driver that is gone, and that of the loaded one."""
    old = build(lab.farm, lab.find())
    lab.install(NEWER)
    lab.load(NEWER)
    return old, build(lab.farm, lab.find())


def names(statuses: list[collect.Status]) -> list[str]:
    return [status.manifest.name for status in statuses]


def test_a_view_that_nobody_needs_goes_and_the_loaded_drivers_stays(
    lab: FarmLab, processes: Processes
) -> None:
    old, new = two_views(lab)

    gone = collect.collect(farm(lab, processes), Needs(loaded=NEWER))

    assert names(gone) == [old.name]
    assert sorted(os.listdir(lab.path)) == sorted([".lock", new.name, f"{new.name}.json"])
    assert folder.is_intact(new)


def test_a_dry_run_removes_nothing_and_without_a_loaded_module_nothing_goes(
    lab: FarmLab, processes: Processes
) -> None:
    assert collect.collect(farm(lab, processes), Needs(loaded=VERSION)) == []  # no view at all
    old, _ = two_views(lab)
    before = tree(lab.path)

    dry = collect.collect(farm(lab, processes), Needs(loaded=NEWER), dry_run=True)

    assert names(dry) == [old.name]
    assert collect.collect(farm(lab, processes), Needs(loaded="")) == []
    assert tree(lab.path) == before


@pytest.mark.parametrize(
    ("root", "target", "source"),
    [
        ("/var/lib/nvct/farm/{name}", "/usr/local/nvidia", "/dev/vda"),
        ("/lib/nvct/farm/{name}", "/usr/local/nvidia", "/dev/vdb"),
        ("/farm/{name}/share/vulkan/icd.d/nvidia_icd.json", "/etc/vulkan/x", "/dev/vda"),
        ("/farm/{name}/lib64//deleted", "/x", "/dev/vda"),
        ("/", "/usr/local/nvidia", "nvct-farm:{name}"),
    ],
    ids=["whole", "other file system", "one file", "deleted", "binds"],
)
def test_a_view_that_a_process_has_mounted_stays(
    lab: FarmLab, processes: Processes, root: str, target: str, source: str
) -> None:
    old, new = two_views(lab)
    line = LINE.format(root=root.format(name=old.name), target=target, source=source)
    processes.add(77, line.replace("{name}", old.name), "mnt:[2]")
    processes.add(78, "", "mnt:[2]")  # another process of that container

    statuses = {
        s.manifest.name: s for s in collect.statuses(farm(lab, processes), Needs(loaded=NEWER))
    }

    assert (statuses[old.name].users, statuses[old.name].keep) == (
        2,
        "2 processes have it mounted",
    )
    assert (statuses[new.name].users, statuses[new.name].keep) == (0, "it is the loaded driver's")
    assert collect.collect(farm(lab, processes), Needs(loaded=NEWER)) == []


def test_the_farms_own_mount_is_no_use_in_whatever_namespace(
    lab: FarmLab, processes: Processes
) -> None:
    old, _ = two_views(lab)
    own = LINE.format(root="/", target=old.path, source=f"nvct-farm:{old.name}")
    own += LINE.format(root="/usr/bin/x", target=f"{old.path}/bin/x", source="/dev/vda")
    processes.add(5, own, "mnt:[5]")

    assert names(collect.collect(farm(lab, processes), Needs(loaded=NEWER))) == [old.name]


def test_a_view_that_a_plan_names_stays(lab: FarmLab, processes: Processes) -> None:
    old, _ = two_views(lab)
    plan = lab.host.write("own.plan", f'{{"farm": {{"view": "{old.path}"}}}}')
    os.utime(plan, (1, 1))

    need = collect.read_needs(NEWER, [str(plan), "/nonexistent/own.plan"])

    assert collect.collect(farm(lab, processes), need) == []


def test_right_after_a_new_plan_nothing_goes(lab: FarmLab, processes: Processes) -> None:
    old, _ = two_views(lab)
    plan = lab.host.write("own.plan", "{}")
    at = plan.stat().st_mtime

    young = collect.read_needs(NEWER, [str(plan)], now=at + PLAN_AGE_S - 1)
    old_enough = collect.read_needs(NEWER, [str(plan)], now=at + PLAN_AGE_S + 1)

    assert collect.collect(farm(lab, processes), young) == []
    assert names(collect.collect(farm(lab, processes), old_enough)) == [old.name]


def test_a_damaged_view_of_the_loaded_driver_goes(lab: FarmLab, processes: Processes) -> None:
    view = build(lab.farm, lab.find())
    os.unlink(f"{view.path}/lib64/libcuda.so.1")

    (status,) = collect.collect(farm(lab, processes), Needs(loaded=VERSION))

    assert (status.state, status.manifest) == ("damaged", view)
    assert status.problems == (f"{view.path}/lib64/libcuda.so.1: the link is missing",)
    assert lab.farm.names() == []


def test_where_mounts_cannot_be_read_nothing_goes_but_a_process_may_have_ended(
    lab: FarmLab, processes: Processes
) -> None:
    old, _ = two_views(lab)
    (processes.path / "9").mkdir()
    unreadable = processes.path / "9/mountinfo"
    unreadable.mkdir()  # for root, to whom no file is closed

    with pytest.raises(HostError, match="9/mountinfo cannot be read"):
        collect.collect(farm(lab, processes), Needs(loaded=NEWER))

    assert os.path.isdir(old.path)
    unreadable.rmdir()
    assert names(collect.collect(farm(lab, processes), Needs(loaded=NEWER))) == [old.name]


def test_a_container_that_is_faster_than_the_collection_keeps_its_view(
    lab: FarmLab, processes: Processes
) -> None:
    old, _ = two_views(lab)

    class Racing(Kernel):
        __slots__ = ()

        def rename(self, source: str, target: str, **more: int | None) -> None:
            super().rename(source, target, **more)
            if source == old.path:  # it was mounted under its old name, and shows the new one
                line = LINE.format(root=target, target="/usr/local/nvidia", source="/dev/vda")
                processes.add(99, line, "mnt:[9]")

    assert collect.collect(farm(lab, processes, Racing()), Needs(loaded=NEWER)) == []
    assert folder.is_intact(old)
    assert old.name in lab.farm.names()


def test_a_drivers_own_folder_is_never_removed(lab: FarmLab, processes: Processes) -> None:
    view = build(lab.farm, lab.find())
    lab.farm.store(type(view)(**{
        **{name: getattr(view, name) for name in view.__slots__},
        "method": "own", "path": str(lab.host.driver),
    }))  # fmt: skip

    gone = collect.collect(farm(lab, processes), Needs(loaded=NEWER))

    assert names(gone) == [view.name]
    assert lab.libcuda.exists()
    assert os.path.isdir(view.path)


def test_a_view_as_it_was_made_verifies_and_its_digests_are_kept(lab: FarmLab) -> None:
    view = build(lab.farm, lab.find())
    assert {entry.digest for entry in view.entries} == {""}

    ((_, problems),) = collect.verify(lab.farm)

    kept = lab.farm.manifest(view.name)
    assert problems == []
    assert kept is not None
    assert all(len(entry.digest) == 32 for entry in kept.entries)
    assert build(lab.farm, lab.find()) == kept


def test_content_that_changes_behind_size_and_time_is_found(lab: FarmLab) -> None:
    view = build(lab.farm, lab.find())
    collect.verify(lab.farm)
    before = lab.libcuda.stat()
    data = lab.libcuda.read_bytes()
    lab.libcuda.write_bytes(data[:-1] + b"x")
    os.utime(lab.libcuda, ns=(before.st_atime_ns, before.st_mtime_ns))

    ((_, problems),) = collect.verify(lab.farm, [view.name])

    path = f"{view.path}/lib64/libcuda.so.{VERSION}"
    assert problems == [f"{path}: its content changed, its size and time did not"]


def test_a_file_that_changed_is_found_without_reading_it(lab: FarmLab) -> None:
    view = build(lab.farm, lab.find())
    lab.libcuda.write_bytes(b"other")

    ((_, problems),) = collect.verify(lab.farm)

    assert problems == [f"{view.path}/lib64/libcuda.so.{VERSION}: changed in place"]
    kept = lab.farm.manifest(view.name)
    assert kept is not None
    assert {entry.digest for entry in kept.entries} == {""}


def test_a_view_that_is_not_there_or_without_a_manifest_is_an_error(lab: FarmLab) -> None:
    with pytest.raises(HostError, match="has no view '580-x'"):
        collect.verify(lab.farm, ["580-x"])
    view = build(lab.farm, lab.find())
    (lab.path / f"{view.name}.json").write_text("{")

    with pytest.raises(HostError, match="is not a manifest of a view"):
        collect.verify(lab.farm)
