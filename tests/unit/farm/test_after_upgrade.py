# SPDX-License-Identifier: Apache-2.0
"""A driver package is replaced while the old kernel module stays loaded."""

import json
import os

import pytest

from nvct.errors import DriverNotFoundError
from nvct.farm import after_upgrade, folder
from nvct.farm.build import build
from nvct.farm.model import dumps, loads
from nvct.host.model import Inventory
from tests.support.host_tree import LIB, VERSION, elf_bytes
from tests.unit.farm.lab import NEWER, FarmLab


def look(lab: FarmLab) -> Inventory:
    return after_upgrade.discover_or_view(lab.farm, lab.host.roots, lab.wanted, lab.find)


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the driver of the lab is for x86_64")
def test_a_manifest_that_says_no_machines_is_of_this_one(lab: FarmLab) -> None:
    folder_32 = "driver/usr/lib/i386-linux-gnu"
    lab.host.write(f"{folder_32}/libcuda.so.{VERSION}", elf_bytes("libcuda.so.1", "i386"))
    manifest = build(lab.farm, lab.find())
    document = json.loads(dumps(manifest))
    for entry in document["entries"]:
        del entry["file"]["machine"]

    read = loads(json.dumps(document).encode(), "/manifest")

    assert read == manifest
    assert {file.machine for file in read.held_files} == {"x86_64", "i386", ""}


def test_while_nothing_was_replaced_discovery_answers(lab: FarmLab) -> None:
    build(lab.farm, lab.find())

    assert look(lab) == lab.find()


@pytest.mark.parametrize("way", ["by rename", "in place"])
def test_after_an_upgrade_the_loaded_drivers_view_answers(lab: FarmLab, way: str) -> None:
    before = lab.find()
    view = build(lab.farm, before)

    lab.install(NEWER, in_place=way == "in place")
    with pytest.raises(DriverNotFoundError, match=NEWER):
        lab.find()
    inventory = look(lab)

    assert inventory.driver_version == VERSION
    assert (inventory.gpus, inventory.control_nodes) == (before.gpus, before.control_nodes)
    assert inventory.cuda_version == before.cuda_version
    libraries = {f.container_path: f for f in inventory.files if f.kind == "library"}
    assert libraries.keys() == {f.container_path for f in before.files if f.kind == "library"}
    assert all(f.host_path.startswith(f"{lab.path}/{VERSION}-") for f in libraries.values())
    if way == "by rename":
        assert all(f.host_path.startswith(f"{view.path}/lib64/") for f in libraries.values())
    assert "until the next boot" in " ".join(inventory.warnings)


def test_a_file_that_was_overwritten_in_place_is_left_out_and_told(lab: FarmLab) -> None:
    build(lab.farm, lab.find())

    lab.install(NEWER, in_place=True)
    inventory = look(lab)

    programs = [f.container_path for f in inventory.files if f.kind == "binary"]
    assert programs == []
    assert [w for w in inventory.warnings if "bin/nvidia-smi was changed in place" in w]


def test_what_is_intact_is_a_view_again_and_that_is_the_one_in_use_from_then_on(
    lab: FarmLab,
) -> None:
    first = build(lab.farm, lab.find())
    lab.install(NEWER, in_place=True)

    second = build(lab.farm, look(lab))
    third = build(lab.farm, look(lab))

    assert second.version == VERSION
    assert second.name != first.name
    assert third == second
    assert folder.is_intact(second)
    assert os.path.samefile(
        f"{second.path}/lib64/libcuda.so.1", f"{first.path}/lib64/libcuda.so.1"
    )
    # It still knows the driver's own paths, not those of the view that it was made from.
    assert {e.file.host_path for e in second.entries} < {e.file.host_path for e in first.entries}
    (warning,) = look(lab).warnings
    assert f"containers get the view {second.path} until the next boot" in warning


def test_after_the_next_boot_the_new_driver_answers(lab: FarmLab) -> None:
    old = build(lab.farm, lab.find())
    lab.install(NEWER)
    build(lab.farm, look(lab))

    lab.load(NEWER)
    inventory = look(lab)
    new = build(lab.farm, inventory)

    assert inventory == lab.find()
    assert (inventory.driver_version, new.version) == (NEWER, NEWER)
    assert new.path != old.path


def test_what_is_only_looked_at_changes_nothing(lab: FarmLab) -> None:
    build(lab.farm, lab.find())
    lab.install(NEWER, in_place=True)
    before = sorted(os.listdir(lab.path))

    inventory = after_upgrade.loaded_view(lab.farm, lab.host.roots, lab.wanted)

    assert inventory is not None
    assert inventory.driver_version == VERSION
    assert sorted(os.listdir(lab.path)) == before


def test_halfway_through_an_upgrade_the_view_answers_too(lab: FarmLab) -> None:
    view = build(lab.farm, lab.find())
    lab.driver_file(f"{LIB}/libnvidia-ml.so.{VERSION}").unlink()
    new = lab.driver_file(f"{LIB}/libnvidia-ml.so.{NEWER}")
    new.write_bytes(elf_bytes("libnvidia-ml.so.1"))

    assert lab.find().driver_version == VERSION  # libcuda of the old version is still there
    inventory = look(lab)

    assert f"{view.path}/lib64/libnvidia-ml.so.{VERSION}" in [f.host_path for f in inventory.files]


def test_a_library_that_an_admin_removed_is_gone(lab: FarmLab) -> None:
    build(lab.farm, lab.find())
    lab.driver_file(f"{LIB}/libnvidia-allocator.so.{VERSION}").unlink()

    inventory = look(lab)

    assert not any("libnvidia-allocator" in f.host_path for f in inventory.files)


@pytest.mark.parametrize("spoil", ["library", "link", "other version", "writable", "no farm"])
def test_without_a_view_that_can_be_used_discoverys_error_stands(lab: FarmLab, spoil: str) -> None:
    view = build(lab.farm, lab.find())
    lab.install(NEWER)
    if spoil == "library":
        with open(f"{view.path}/lib64/libnvidia-ml.so.{VERSION}", "ab") as file:
            file.write(b"x")
    elif spoil == "link":
        os.unlink(f"{view.path}/lib64/libcuda.so.1")
    elif spoil == "writable":
        lab.path.chmod(0o777)
    elif spoil == "no farm":
        lab.path.rename(lab.path.with_name("other"))
    else:
        lab.load("570.86.15")

    with pytest.raises(DriverNotFoundError):
        look(lab)


def test_sockets_are_those_of_daemons_that_run_now(lab: FarmLab) -> None:
    build(lab.farm, lab.find())
    lab.install(NEWER)
    place = lab.host.base / "run/nvidia-persistenced/socket"
    place.parent.mkdir(parents=True)
    os.mknod(place, 0o140666)

    assert [f.host_path for f in look(lab).files if f.kind == "socket"] == [str(place)]


def test_without_a_loaded_module_discovery_answers(lab: FarmLab) -> None:
    build(lab.farm, lab.find())
    (lab.host.base / "proc/driver/nvidia/version").unlink()
    lab.install(NEWER)

    assert look(lab).driver_version == NEWER
