# SPDX-License-Identifier: Apache-2.0
"""The table plan["farm"]: what a container of each capability gets of a view."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from nvct.container.plan import fingerprints
from nvct.farm import table as farm_table
from nvct.farm.build import build
from nvct.farm.model import Manifest
from tests.support.host_tree import VERSION, elf_bytes
from tests.unit.farm.lab import FarmLab

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.container.plan.model import Farm as Table


@pytest.fixture
def lab(tmp_path: Path) -> FarmLab:
    return FarmLab(tmp_path)


@pytest.fixture
def full(lab: FarmLab) -> FarmLab:
    """A driver that has something of every kind, with a daemon that runs."""
    lab.host.library("libnvidia-glcore")
    lab.host.library("libnvcuvid", "libnvcuvid.so.1")
    lab.host.write("driver/usr/share/nvidia/nvoptix.bin", "weights")
    lab.host.write("driver/etc/OpenCL/vendors/nvidia.icd", "libnvidia-opencl.so.1\n")
    folder = "driver/usr/lib/i386-linux-gnu"
    for stem in ("libcuda", "libGLX_nvidia"):
        lab.host.write(f"{folder}/{stem}.so.{VERSION}", elf_bytes(f"{stem}.so.1", "i386"))
        lab.host.link(f"{folder}/{stem}.so.1", f"{stem}.so.{VERSION}")
    socket = lab.host.base / "run/nvidia-persistenced/socket"
    socket.parent.mkdir(parents=True)
    os.mknod(socket, 0o140666)
    return lab


def made(lab: FarmLab) -> tuple[Manifest, Table]:
    inventory = lab.find()
    manifest = build(lab.farm, inventory)
    return manifest, farm_table.of_view(manifest, inventory)


def names(pairs: list[list[str]]) -> list[str]:
    return [name for name, _ in pairs]


def test_the_cache_has_what_each_capability_needs(full: FarmLab) -> None:
    _, table = made(full)

    compute = names(table["cache"]["compute"])
    assert "libcuda.so.1" in compute
    assert "libcuda.so" in compute
    assert f"libnvidia-gpucomp.so.{VERSION}" in compute
    assert f"libcuda.so.{VERSION}" not in compute  # as ldconfig: a file is listed by its links
    assert names(table["cache"]["utility"]) == ["libnvidia-ml.so.1"]
    assert "libGLX_indirect.so.0" in names(table["cache"]["graphics"])
    # Video is decoded by CUDA's libraries.
    assert {"libnvcuvid.so.1", "libcuda.so.1"} <= set(names(table["cache"]["video"]))
    assert "libvdpau_nvidia.so.1" in names(table["cache"]["video"])


def test_every_entry_of_the_cache_is_a_library_in_the_view(full: FarmLab) -> None:
    manifest, table = made(full)

    for pairs in (*table["cache"].values(), *table["cache32"].values()):
        for name, path in pairs:
            assert os.path.basename(path) == name
            assert os.path.isfile(f"{manifest.path}/{path}"), path


def test_32_bit_libraries_are_apart(full: FarmLab) -> None:
    _, table = made(full)

    assert table["cache32"]["compute"] == [["libcuda.so", "lib/libcuda.so"],
                                           ["libcuda.so.1", "lib/libcuda.so.1"]]  # fmt: skip
    assert "libGLX_nvidia.so.1" in names(table["cache32"]["graphics"])
    assert "libcuda.so.1" not in names(table["cache32"]["graphics"])
    paths = [path for pairs in table["cache"].values() for _, path in pairs]
    assert all(path.startswith("lib64/") for path in paths)


def test_links_are_made_for_programs_and_what_is_loaded_by_path(full: FarmLab) -> None:
    _, table = made(full)

    assert table["links"]["utility"] == [
        ["/usr/bin/nvidia-smi", "bin/nvidia-smi"],
        ["LIBDIR/libnvidia-ml.so.1", "lib64/libnvidia-ml.so.1"],
        [f"LIBDIR/libnvidia-ml.so.{VERSION}", f"lib64/libnvidia-ml.so.{VERSION}"],
    ]
    for name in ("libcuda.so", "libcuda.so.1", f"libcuda.so.{VERSION}"):
        assert [f"LIBDIR/{name}", f"lib64/{name}"] in table["links"]["compute"]
    gbm = ["LIBDIR/gbm/nvidia-drm_gbm.so", "lib64/gbm/nvidia-drm_gbm.so"]
    assert gbm in table["links"]["graphics"]
    assert gbm not in table["links"]["compute"]  # which has the library that it leads to
    vdpau = ["LIBDIR/vdpau/libvdpau_nvidia.so.1", "lib64/vdpau/libvdpau_nvidia.so.1"]
    assert vdpau in table["links"]["video"]


def test_every_name_of_a_library_has_a_link(full: FarmLab) -> None:
    manifest, table = made(full)

    for folder, key, mark in (("lib64", "links", "LIBDIR"), ("lib", "links32", "LIBDIR32")):
        paths = {path for pairs in table[key].values() for _, path in pairs}  # type: ignore[literal-required]  # of the table
        held = {entry.path for entry in manifest.entries if entry.file.kind == "library"}
        held |= {link.path for link in manifest.links if ".so" in link.path}
        assert {p for p in held if p.startswith(f"{folder}/")} <= paths
        for where, path in [pair for pairs in table[key].values() for pair in pairs]:  # type: ignore[literal-required]  # of the table
            if ".so" in path:
                assert where == f"{mark}/{path.removeprefix(folder + '/')}"


def test_what_is_looked_for_at_a_fixed_place_is_mounted_from_the_view(full: FarmLab) -> None:
    manifest, table = made(full)

    graphics = {destination: json.loads(text) for destination, text in table["mounts"]["graphics"]}
    assert graphics["/etc/vulkan/icd.d/nvidia_icd.json"]["source"] == (
        f"{manifest.path}/share/vulkan/icd.d/nvidia_icd.json"
    )
    assert f"/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin" in graphics
    for mount in graphics.values():
        assert {"ro", "nosuid", "nodev", "rprivate"} <= set(mount["options"])
        assert os.path.exists(mount["source"])


def test_compute_needs_the_opencl_driver_and_utility_a_socket_of_the_host(full: FarmLab) -> None:
    _, table = made(full)

    assert names(table["mounts"]["compute"]) == ["/etc/OpenCL/vendors/nvidia.icd"]
    ((destination, text),) = table["mounts"]["utility"]
    assert destination == "/run/nvidia-persistenced/socket"
    assert json.loads(text)["source"] == f"{full.host.base}/run/nvidia-persistenced/socket"
    assert "" not in table["mounts"]


def test_a_file_that_the_view_left_out_is_in_no_entry(full: FarmLab) -> None:
    inventory = full.find()
    full.driver_file("usr/bin/nvidia-smi").chmod(0o4755)

    table = farm_table.of_view(build(full.farm, inventory), inventory)

    assert "nvidia-smi" not in json.dumps(table)


def test_the_facts_are_two_and_break_with_the_view(full: FarmLab) -> None:
    manifest, table = made(full)
    assert len(table["facts"]) == 2
    assert fingerprints.broken(table["facts"]) is None

    os.rename(manifest.path, f"{manifest.path}-gone")

    assert fingerprints.broken(table["facts"]) is not None


def test_a_table_without_a_view_has_the_same_keys(full: FarmLab) -> None:
    _, table = made(full)

    assert farm_table.without_view("why not").keys() == table.keys()
    assert farm_table.without_view("why not")["why"] == "why not"
