# SPDX-License-Identifier: Apache-2.0
"""Unit tests for nvct.host.snapshot.record and record_driver: which parts of a host are recorded."""

import os
from pathlib import Path

from nvct.errors import NvmlError
from nvct.host.discovery_options import DiscoveryOptions
from nvct.host.snapshot import record
from tests.support.host_tree import LIB, VERSION, FakeNvml, HostTree, elf_bytes, nvml_gpu
from tests.unit.host.snapshot.conftest import ICD, everything, host, recorded


def test_libraries_are_kept_as_headers_with_links_and_size(tmp_path: Path) -> None:
    tree = host(tmp_path)
    size = (tree.base / f"driver/{LIB}/libcuda.so.{VERSION}").stat().st_size

    snapshot = recorded(tree)

    name = f"driver/{LIB}/libcuda.so.{VERSION}"
    assert snapshot.elf[name] == [0o644, size, "x86_64", "libcuda.so.1", []]
    assert snapshot.links[f"driver/{LIB}/libcuda.so.1"] == f"libcuda.so.{VERSION}"
    assert snapshot.files["driver/usr/bin/nvidia-smi"] == [0o755, len("#!/bin/sh\n")]
    assert f"driver/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin" in snapshot.files


def test_pci_devices_of_nvidia_are_kept_and_no_others(tmp_path: Path) -> None:
    tree = host(tmp_path)
    for bus, vendor in (("0000:18:00.0", "0x10de"), ("0000:01:00.0", "0x1a03")):
        tree.write(f"sys/bus/pci/devices/{bus}/vendor", f"{vendor}\n")
    tree.link("sys/bus/pci/devices/0000:18:00.0/driver", "../../../../bus/pci/drivers/nouveau")

    snapshot = recorded(tree)

    assert {p.split("/")[4] for p in snapshot.texts if "/pci/devices/" in p} == {"0000:18:00.0"}
    assert snapshot.links["sys/bus/pci/devices/0000:18:00.0/driver"] == (
        "../../../../bus/pci/drivers/nouveau"
    )
    assert "sys/bus/pci/devices/0000:18:00.0/drm/card1" in snapshot.folders


def test_small_configuration_is_text_and_other_files_are_names(tmp_path: Path) -> None:
    tree = host(tmp_path)
    tree.write("driver/usr/share/vulkan/icd.d/nvidia_icd.json", ICD)
    tree.write("driver/usr/share/vulkan/icd.d/radeon_icd.json", ICD)
    tree.write("driver/usr/share/nvidia/nvoptix.bin", "weights")
    tree.write("driver/etc/secret.json", "{}")

    snapshot = recorded(tree)

    assert snapshot.texts["driver/usr/share/vulkan/icd.d/nvidia_icd.json"] == ICD
    assert snapshot.files["driver/usr/share/nvidia/nvoptix.bin"] == [0o644, len("weights")]
    assert not any(
        "radeon" in path or "secret" in path for path in snapshot.texts | snapshot.files
    )


def test_existing_dependencies_of_a_library_are_recorded(tmp_path: Path) -> None:
    from nvct_sim.elf_writer import shared_object

    tree = host(tmp_path)
    needy = shared_object(soname="libnvidia-x.so.1", needed=["libthere.so.2", "libgone.so.3"])
    tree.write(f"driver/{LIB}/libnvidia-x.so.{VERSION}", needy)
    tree.write(f"driver/{LIB}/libthere.so.2", elf_bytes("libthere.so.2"))
    tree.write(f"driver/{LIB}/libother.so.2", elf_bytes("libother.so.2"))

    snapshot = recorded(tree)

    assert snapshot.elf[f"driver/{LIB}/libnvidia-x.so.{VERSION}"][4] == [
        "libthere.so.2", "libgone.so.3",
    ]  # fmt: skip
    assert f"driver/{LIB}/libthere.so.2" in snapshot.elf
    assert f"driver/{LIB}/libother.so.2" not in snapshot.elf


def test_a_loop_of_links_ends(tmp_path: Path) -> None:
    tree = host(tmp_path).link(f"driver/{LIB}/libnvidia-loop.so.1", "libnvidia-loop.so.2")
    tree.link(f"driver/{LIB}/libnvidia-loop.so.2", "libnvidia-loop.so.1")

    assert f"driver/{LIB}/libnvidia-loop.so.2" in recorded(tree).links


def test_a_damaged_cache_is_recorded_as_an_error(tmp_path: Path) -> None:
    tree = host(tmp_path)
    tree.write("driver/etc/ld.so.cache", "rubbish")

    snapshot = recorded(tree)

    assert "ld.so.cache" in snapshot.about
    assert snapshot.files["driver/etc/ld.so.cache"] == [0o644, len("rubbish")]


def test_a_host_on_which_discovery_fails_is_recorded_with_its_error(tmp_path: Path) -> None:
    tree = HostTree(tmp_path / "host")
    tree.driver.mkdir(parents=True)

    snapshot = recorded(tree)

    assert "no NVIDIA driver" in snapshot.about["discovery"]
    assert snapshot.about["discovery"].endswith("[driver-not-found]")


def test_a_bug_in_discovery_is_recorded_too(tmp_path: Path) -> None:
    tree = host(tmp_path)
    calls: list[str] = []

    def stat_node(path: str) -> tuple[int, int, int, int, int] | None:
        calls.append(path)
        if len(calls) == 1:
            raise RuntimeError("sponge")
        return tree.stat_node(path)

    snapshot = record.record(tree.roots, DiscoveryOptions(nvml=None, stat_node=stat_node))

    assert snapshot.about["discovery"] == "RuntimeError: sponge"
    assert snapshot.nodes["dev/nvidia0"][:2] == [195, 0]


def test_an_unreadable_node_is_recorded_as_an_error(tmp_path: Path) -> None:
    tree = host(tmp_path)

    def stat_node(path: str) -> tuple[int, int, int, int, int] | None:
        if path.endswith("/nvidia-uvm"):
            raise PermissionError(13, "Permission denied", path)
        return tree.stat_node(path)

    snapshot = record.record(tree.roots, DiscoveryOptions(nvml=None, stat_node=stat_node))

    assert snapshot.about["unreadable"] == {"dev/nvidia-uvm": "Permission denied"}


def test_a_plain_file_in_dev_is_recorded_as_a_file(tmp_path: Path) -> None:
    tree = host(tmp_path)
    options = DiscoveryOptions(
        nvml=None
    )  # the tree's nodes are plain files without device numbers

    snapshot = record.record(tree.roots, options)

    assert snapshot.nodes == {}
    assert snapshot.files["dev/nvidia0"] == [0o666, 0]


def test_a_link_out_of_dev_is_not_kept(tmp_path: Path) -> None:
    tree = host(tmp_path).link("dev/nvidia-secret", "/home/somebody/secret")

    assert "dev/nvidia-secret" not in recorded(tree).links


def test_the_report_or_the_error_of_nvml_is_recorded(tmp_path: Path) -> None:
    tree = host(tmp_path)

    with_report = recorded(tree, FakeNvml(gpus=(nvml_gpu(0, instances=((1, 0),)),)))
    refused = recorded(tree, FakeNvml(error=NvmlError("nvmlInit failed", hint="reboot")))

    assert with_report.nvml["report"]["gpus"][0]["mig"][0]["profile"] == "1g.10gb"
    assert refused.nvml == {"error": ["nvmlInit failed", "reboot"]}
    assert recorded(tree).nvml == {}


def test_other_files_of_the_host_are_not_read(tmp_path: Path) -> None:
    tree = host(tmp_path)
    outside = tmp_path / "outside.json"
    outside.write_text("secret")
    tree.link("driver/usr/share/vulkan/icd.d/nvidia_icd.json", str(outside))
    os.symlink(outside, tree.base / "proc/driver/nvidia/params")

    snapshot = recorded(tree)

    assert "secret" not in everything(snapshot)
