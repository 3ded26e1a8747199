# SPDX-License-Identifier: Apache-2.0
"""Where a farm may be: nowhere that somebody else could put another in its place."""

import os
from pathlib import Path

import pytest

from nvct.errors import HostError
from nvct.farm.after_upgrade import discover_or_view
from nvct.farm.build import build
from nvct.farm.folder import Farm
from tests.unit.farm.lab import FarmLab

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


@pytest.fixture
def above(tmp_path: Path) -> Path:
    path = tmp_path / "above"
    (path / "between").mkdir(parents=True)
    return path


def refused(above: Path, lab: FarmLab) -> str:
    """Return why a farm below a folder is refused; nothing is made there."""
    farm = Farm(path=f"{above}/between/farm")
    before = sorted(above.rglob("*"))
    with pytest.raises(HostError) as caught:
        build(farm, lab.find())
    assert sorted(above.rglob("*")) == before
    with pytest.raises(HostError):
        farm.check()
    return caught.value.message


def test_a_farm_below_a_folder_that_everybody_may_change_is_refused(
    lab: FarmLab, above: Path
) -> None:
    above.chmod(0o777)

    assert refused(above, lab) == (
        f"the farm {above}/between/farm is below {above}, which other users can change: "
        f"uid {os.geteuid()}, mode 777"
    )


@as_root
def test_a_farm_below_a_folder_that_a_group_may_change_is_refused(
    lab: FarmLab, above: Path
) -> None:
    os.chown(above, 0, NOBODY)
    above.chmod(0o775)

    assert f"is below {above}, which" in refused(above, lab)


@as_root
def test_a_farm_below_somebody_elses_folder_is_refused(lab: FarmLab, above: Path) -> None:
    os.chown(above, NOBODY, NOBODY)

    assert f"uid {NOBODY}, mode 755" in refused(above, lab)


@as_root
def test_a_farm_behind_somebody_elses_link_is_refused(lab: FarmLab, above: Path) -> None:
    (above / "mine").mkdir()
    above.chmod(0o1777)
    (above / "theirs").symlink_to("mine")
    os.lchown(above / "theirs", NOBODY, NOBODY)
    (above / "link").symlink_to("theirs")

    farm = Farm(path=f"{above}/link/farm")
    with pytest.raises(HostError, match=f"is below {above}/theirs, which other users"):
        build(farm, lab.find())
    assert not (above / "mine/farm").exists()


def test_links_without_an_end_are_refused(lab: FarmLab, above: Path) -> None:
    (above / "a").symlink_to("b")
    (above / "b").symlink_to("a")

    with pytest.raises(HostError, match=r"the farm .* cannot be reached"):
        build(Farm(path=f"{above}/a/farm"), lab.find())


def test_a_farm_in_a_sticky_folder_and_behind_an_own_link_is_used(
    lab: FarmLab, above: Path
) -> None:
    above.chmod(0o1777)
    (above / "link").symlink_to("./../above/between")

    manifest = build(Farm(path=f"{above}/link/farm"), lab.find())

    assert os.path.isdir(f"{above}/between/farm/{manifest.name}/lib64")


def test_a_view_below_a_folder_that_everybody_may_change_does_not_stand_for_the_disk(
    lab: FarmLab, above: Path
) -> None:
    farm = Farm(path=f"{above}/between/farm")
    build(farm, lab.find())
    lab.install("999.1")
    held = discover_or_view(farm, lab.host.roots, lab.wanted, lab.find)
    above.chmod(0o777)

    assert held.driver_version == lab.host.version
    with pytest.raises(HostError):
        discover_or_view(farm, lab.host.roots, lab.wanted, lab.find)
