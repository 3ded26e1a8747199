# SPDX-License-Identifier: Apache-2.0
"""Mounts of /dev/null that request devices."""

from __future__ import annotations

import posixpath

import pytest

from nvct.container.request.volume_mounts import devices, imex_channels
from nvct.errors import RequestError
from nvct.oci.bundle import clean

ROOT = "/var/run/nvidia-container-devices"


def mounts(*destinations: str, source: object = "/dev/null") -> list[dict[str, object]]:
    return [{"source": source, "destination": path, "type": "bind"} for path in destinations]


@pytest.mark.parametrize(
    ("destination", "words"),
    [
        (f"{ROOT}/0", ["0"]),
        (f"{ROOT}/all", ["all"]),
        (f"{ROOT}/GPU-1/", ["GPU-1"]),
        ("//var/run/./nvidia-container-devices//x/../0", ["0"]),
        (f"{ROOT}/MIG-GPU-1/2/3", ["MIG-GPU-1/2/3"]),
        (f"{ROOT}/cdi/nvidia.com/gpu/0", ["nvidia.com/gpu=0"]),
        (f"{ROOT}/cdi/nvidia.com/gpu=0", ["nvidia.com/gpu=0"]),
        (f"{ROOT}/imex/3", []),
        (ROOT, []),
        (f"{ROOT}/", []),
        (f"{ROOT}/0/..", []),
        (f"{ROOT}/../0", []),
        (f"{ROOT}-x/0", []),
        (f"{ROOT}x", []),
        ("/run/nvidia-container-devices/0", []),
        ("var/run/nvidia-container-devices/0", []),
        (f"/x{ROOT}/0", []),
    ],
)  # fmt: skip
def test_a_destination_names_a_device(destination: str, words: list[str]) -> None:
    assert devices(mounts(destination)) == words


def test_order_is_kept_duplicates_fold_and_incomplete_mounts_are_skipped() -> None:
    assert devices(mounts(f"{ROOT}/1", f"{ROOT}/0", f"{ROOT}//1", f"{ROOT}/2")) == ["1", "0", "2"]
    assert devices([{}, {"source": "/dev/null"}, {"destination": f"{ROOT}/0"}]) == []


@pytest.mark.parametrize(
    ("source", "words"),
    [
        *((source, []) for source in ("/dev/zero", "/dev/null/x", "dev/null", "", None, 5)),
        *((source, ["0"]) for source in ("/dev//null", "/dev/null/", "/x/../dev/./null")),
    ],
)
def test_only_dev_null_counts_however_it_is_written(source: object, words: list[str]) -> None:
    assert devices(mounts(f"{ROOT}/0", source=source)) == words


@pytest.mark.parametrize(
    "name", ["nvidia.com", "nvidia.com/gpu", "nvidia.com/gpu/0/1", "a/b/c", "x=0", "n v/gpu/0"]
)
def test_a_malformed_cdi_name_is_an_error(name: str) -> None:
    with pytest.raises(RequestError, match=r"^volume mount"):
        devices(mounts(f"{ROOT}/0", f"{ROOT}/cdi/{name}"))


def test_channels_are_not_devices() -> None:
    assert imex_channels(mounts(f"{ROOT}/imex/3", f"{ROOT}/0", f"{ROOT}/imex/4/5")) == ["3", "4/5"]


@pytest.mark.parametrize(
    "path",
    ["", ".", "/", "//", "/..", "/../a", "a/..", "../a", "a/../../b", "/a//b/./c/../d/", "../..", "./a"],
)  # fmt: skip
def test_paths_are_cleaned_as_text(path: str) -> None:
    # normpath keeps two leading slashes, as POSIX allows; Go doesn't.
    assert clean(path) == posixpath.normpath(path).replace("//", "/")
