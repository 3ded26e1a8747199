# SPDX-License-Identifier: Apache-2.0
"""Single files of the driver: links into the view, or mounts where links are not possible."""

import json
from pathlib import Path
from typing import Any

import pytest

from nvct.container.deliver.farm_table import FarmEntries
from tests.unit.container.deliver.test_layout_farm import VIEW, Image, Outcome, table

ICD = "/etc/vulkan/icd.d/nvidia_icd.json"
INSIDE = "share/vulkan/icd.d/nvidia_icd.json"
SOCKET = "/run/nvidia-persistenced/socket"


def mount(destination: str, source: str) -> list[str]:
    return [destination, json.dumps({"destination": destination, "source": source})]


def singles(*mounts: list[str]) -> Any:
    return table(mounts={"graphics": list(mounts or [mount(ICD, f"{VIEW}/{INSIDE}")])})


def create(image: Image, farm_table: Any = None) -> Outcome:
    return image.create(farm_table or singles(), capabilities=("graphics",))


def destinations(outcome: Outcome) -> list[str]:
    return [mount["destination"] for mount in outcome.mounts]


@pytest.fixture
def glibc(tmp_path: Path) -> Image:
    return Image(tmp_path).glibc()


def test_a_file_of_the_view_is_a_link_and_no_mount(glibc: Image) -> None:
    outcome = create(glibc)

    assert glibc.linked(ICD) == f"/usr/local/nvidia/{INSIDE}"
    assert ICD not in destinations(outcome)
    assert outcome.view


def test_a_file_outside_the_view_stays_a_mount(glibc: Image) -> None:
    outcome = create(glibc, singles(mount(SOCKET, SOCKET), mount("/etc/x", f"{VIEW}-other/x")))

    assert {SOCKET, "/etc/x"} <= set(destinations(outcome))
    assert not glibc.linked(SOCKET)
    assert not glibc.linked("/etc/x")


def test_a_file_of_the_image_is_mounted_over_and_stays(glibc: Image) -> None:
    glibc.file(ICD, b"the image's own")

    outcome = create(glibc)

    assert ICD in destinations(outcome)
    assert glibc.read(ICD) == "the image's own"


def test_an_empty_file_that_a_mount_left_is_replaced_by_the_link(glibc: Image) -> None:
    glibc.file(ICD, b"")

    assert ICD not in destinations(create(glibc))
    assert glibc.linked(ICD)


def test_no_link_is_made_below_a_mount_of_the_container(glibc: Image) -> None:
    outcome = create(glibc.mount("/etc/vulkan"))

    assert ICD in destinations(outcome)
    assert not glibc.linked(ICD)


def test_links_that_cannot_be_made_become_mounts(glibc: Image) -> None:
    glibc.file("/etc/ld.so.conf.d", b"no folder")

    outcome = create(glibc)

    assert ICD in destinations(outcome)
    assert [entry for entry in outcome.env if entry.startswith("LD_LIBRARY_PATH=")]


def test_a_damaged_mount_is_not_linked() -> None:
    assert FarmEntries(singles(["/x", "[]"]), ["graphics"]).singles() == [(["/x", "[]"], "")]
