# SPDX-License-Identifier: Apache-2.0
"""Files of the driver with places of their own: links into the view, mounts where those cannot be."""

from __future__ import annotations

import json

import pytest

from nvct.container.deliver.farm_table import FarmEntries, extended
from tests.unit.container.deliver.test_layout_farm import VIEW, Image, Outcome, table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

ICD = "/etc/vulkan/icd.d/nvidia_icd.json"
INSIDE = "share/vulkan/icd.d/nvidia_icd.json"
SOCKET = "/run/nvidia-persistenced/socket"


def mount(destination: str, source: str) -> list[str]:
    return [destination, json.dumps({"destination": destination, "source": source})]


def singles(*mounts: list[str]) -> Any:
    return table(mounts={"graphics": list(mounts or [mount(ICD, f"{VIEW}/{INSIDE}")])})


def create(image: Image, made: Any = None) -> Outcome:
    return image.create(made or singles(), capabilities=("graphics",))


def places(said: Outcome) -> list[str]:
    return [one["destination"] for one in said.mounts]


@pytest.fixture
def glibc(tmp_path: Path) -> Image:
    return Image(tmp_path).glibc()


def test_a_file_of_the_view_is_a_link_and_no_mount(glibc: Image) -> None:
    said = create(glibc)

    assert glibc.linked(ICD) == f"/usr/local/nvidia/{INSIDE}"
    assert ICD not in places(said)
    assert said.view


def test_what_is_not_in_the_view_stays_a_mount(glibc: Image) -> None:
    said = create(glibc, singles(mount(SOCKET, SOCKET), mount("/etc/x", f"{VIEW}-other/x")))

    assert {SOCKET, "/etc/x"} <= set(places(said))
    assert not glibc.linked(SOCKET)
    assert not glibc.linked("/etc/x")


def test_a_file_of_the_image_is_mounted_over_and_stays(glibc: Image) -> None:
    glibc.file(ICD, b"the image's own")

    said = create(glibc)

    assert ICD in places(said)
    assert glibc.read(ICD) == "the image's own"


def test_an_empty_file_that_a_mount_left_behind_gives_way_to_the_link(glibc: Image) -> None:
    glibc.file(ICD, b"")

    assert ICD not in places(create(glibc))
    assert glibc.linked(ICD)


def test_below_a_mount_of_the_containers_own_nothing_is_linked(glibc: Image) -> None:
    said = create(glibc.mount("/etc/vulkan"))

    assert ICD in places(said)
    assert not glibc.linked(ICD)


def test_where_the_root_cannot_be_changed_it_stays_a_mount(glibc: Image) -> None:
    glibc.mount("/etc")  # the cache is below it

    said = create(glibc)

    assert ICD in places(said)
    assert not glibc.linked(ICD)


def test_links_that_could_not_be_made_are_mounts_again(glibc: Image) -> None:
    glibc.file("/etc/ld.so.conf.d", b"no folder")

    said = create(glibc)

    assert ICD in places(said)
    assert [entry for entry in said.env if entry.startswith("LD_LIBRARY_PATH=")]


def test_a_second_start_finds_its_links(glibc: Image) -> None:
    create(glibc)

    assert ICD not in places(create(glibc))


def test_a_damaged_mount_is_no_link() -> None:
    assert FarmEntries(singles(["/x", "[]"]), ["graphics"]).singles() == [(["/x", "[]"], "")]


def test_folders_are_put_behind_a_variables_own() -> None:
    assert extended(["P=/a", "P=/b:/c"], "P", "", "/c", "/d") == "P=/b:/c:/d"
    assert extended([], "P", "/d") == "P=/d"
