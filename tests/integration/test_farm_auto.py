# SPDX-License-Identifier: Apache-2.0
"""Layout auto beside views of bind mounts that somebody has made, or a boot has taken away."""

import os
from pathlib import Path

import pytest

from nvct.errors import HostError
from nvct.farm import after_upgrade, collect, folder
from nvct.farm.build import build
from nvct.farm.model import LEAN
from nvct.linux import mountinfo
from nvct.linux.constants import MNT_DETACH
from nvct.linux.kernel import KERNEL
from tests.support.forked import in_a_mount_namespace
from tests.support.host_tree import VERSION
from tests.unit.farm.lab import NEWER, FarmLab

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def mounts(lab: FarmLab) -> list[str]:
    targets = mountinfo.targets(folder.own_mounts(lab.farm))
    return sorted(target for target in targets if target.startswith(f"{lab.path}/"))


@in_a_mount_namespace
def test_mounts_that_somebody_has_made_stay_and_are_not_used(tmp_path: Path) -> None:
    lab = FarmLab(tmp_path)
    made = build(lab.farm, lab.find(), allowed=("binds",))
    before = mounts(lab)

    with pytest.raises(HostError) as caught:
        build(lab.farm, lab.find(), allowed=LEAN)

    assert caught.value.message == f"{made.path} has a mount for every file"
    assert mounts(lab) == before != []
    assert folder.is_intact(made)


@in_a_mount_namespace
def test_the_loaded_drivers_mounts_are_all_that_is_left_of_it_after_an_upgrade(
    tmp_path: Path,
) -> None:
    lab = FarmLab(tmp_path)
    build(lab.farm, lab.find(), allowed=("binds",))
    lab.install(NEWER)

    found = after_upgrade.discover_or_view(lab.farm, lab.host.roots, lab.wanted, lab.find)
    made = build(lab.farm, found, allowed=LEAN)

    assert made.version == VERSION
    assert os.path.isfile(f"{made.path}/lib64/libcuda.so.{VERSION}")


@in_a_mount_namespace
def test_mounts_that_a_boot_has_taken_away_are_no_damage_and_give_way_to_links(
    tmp_path: Path,
) -> None:
    lab = FarmLab(tmp_path)
    made = build(lab.farm, lab.find(), allowed=("binds",))
    while os.path.ismount(made.path):
        KERNEL.umount2(made.path, MNT_DETACH)

    assert collect.verify(lab.farm) == [(made, [])]
    again = build(lab.farm, lab.find(), allowed=LEAN)

    assert (again.name, again.method) == (made.name, "links")
    assert mounts(lab) == []
    assert folder.is_intact(again)
