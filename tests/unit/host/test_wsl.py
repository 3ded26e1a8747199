# SPDX-License-Identifier: Apache-2.0
"""Mode wsl: the folder of Windows's driver, found by rule.

The names of folders and files are those of reports about real machines:
https://github.com/NVIDIA/nvidia-container-toolkit/issues/1739 and pull/1890.
"""

import os
from pathlib import Path

import pytest

from nvct.errors import HostError, NvmlError
from nvct.host import modes
from nvct.host.discovery_options import DiscoveryOptions
from nvct.host.gpu.nodes import named_nodes
from nvct.host.model import Inventory
from tests.support.host_tree import FakeNvml, HostTree, elf_bytes, nvml_gpu

LIBRARIES = "usr/lib/wsl/lib"
STORE = "usr/lib/wsl/drivers/nv_dispsi.inf_amd64_7cc7738d8e428783"
OTHER = "usr/lib/wsl/drivers/nvfrwi.inf_amd64_63d60f682af8cba2"
FILES = {
    "libcuda.so.1.1": "libcuda.so.1",
    "libcuda_loader.so": "libcuda.so.1",
    "libnvidia-ptxjitcompiler.so.1": "libnvidia-ptxjitcompiler.so.1",
    "libnvidia-ml.so.1": "libnvidia-ml.so.1",
    "libnvidia-ml_loader.so": "libnvidia-ml.so.1",
    "libnvdxgdmal.so.1": "libnvdxgdmal.so.1",
    "libnvoptix.so.1": "libnvoptix.so.1",
}


def store(host: HostTree, folder: str, version: str = "1") -> None:
    for name, soname in FILES.items():
        host.write(f"driver/{folder}/{name}", elf_bytes(soname) + version.encode())
    for name in ("nvcubins.bin", "nvidia-smi", "nvngx.dll", "nvml.txt"):
        host.write(f"driver/{folder}/{name}", version, mode=0o755)


@pytest.fixture
def host(tmp_path: Path) -> HostTree:
    host = HostTree(tmp_path)
    host.write("proc/devices", "Character devices:\n 10 misc\n")
    host.write("dev/dxg", mode=0o666)
    for name in ("libdxcore.so", "libd3d12.so"):
        host.write(f"driver/{LIBRARIES}/{name}", elf_bytes(name))
    host.write(f"driver/{LIBRARIES}/libcuda.so.1.1", elf_bytes("libcuda.so.1") + b"1")
    store(host, STORE)
    return host


def test_the_only_gpu_gives_the_device_its_uuid(host: HostTree) -> None:
    first, second = nvml_gpu(0), nvml_gpu(1)

    assert look(host, FakeNvml((first,))).devices[0].uuid == first.uuid
    assert look(host, FakeNvml((first, second))).devices[0].uuid == ""
    assert look(host).devices[0].uuid == ""


def look(host: HostTree, nvml: FakeNvml | None = None) -> Inventory:
    options = DiscoveryOptions(stat_node=named_nodes(host.roots), machine="x86_64", nvml=nvml)
    return modes.discover("wsl", host.roots, options)


def test_capabilities_are_those_of_the_library_behind_a_loader(host: HostTree) -> None:
    by_name = {os.path.basename(f.container_path): f.capability for f in look(host).files}

    assert by_name["libcuda_loader.so"] == "compute"
    assert by_name["libnvidia-ml_loader.so"] == by_name["nvidia-smi"] == "utility"
    assert by_name["libnvoptix.so.1"] == "graphics"
    assert by_name["libdxcore.so"] == ""


def test_the_folder_with_the_libcuda_that_wsl_uses_is_used(host: HostTree) -> None:
    store(host, OTHER, version="2")
    os.utime(f"{host.driver}/{STORE}/libcuda.so.1.1", (1, 1))

    inventory = look(host)

    assert {os.path.dirname(f.container_path) for f in inventory.files} == {
        f"/{LIBRARIES}",
        f"/{STORE}",
    }
    assert inventory.notes == (
        f"2 folders of NVIDIA drivers: /{STORE} is taken, /{LIBRARIES} has its libcuda",
    )
    reasons = {entry.path: entry.reason for entry in inventory.left_out}
    assert reasons[f"{host.driver}/{OTHER}"] == f"another driver's folder: /{STORE} is used"


def test_without_other_evidence_the_newest_folder_is_used(host: HostTree) -> None:
    store(host, OTHER, version="2")
    (host.driver / LIBRARIES / "libcuda.so.1.1").unlink()
    os.utime(f"{host.driver}/{STORE}/libcuda.so.1.1", (1, 1))

    inventory = look(host)

    assert f"/{OTHER}" in {os.path.dirname(f.container_path) for f in inventory.files}
    assert inventory.notes == (
        f"2 folders of NVIDIA drivers: /{OTHER} is taken, its libcuda is the newest",
    )


def test_library_of_another_machine_is_left_out_with_a_reason(host: HostTree) -> None:
    path = host.write(f"driver/{STORE}/libnvidia-arm.so.1", elf_bytes("x", "aarch64"))

    reasons = {entry.path: entry.reason for entry in look(host).left_out}

    assert reasons[str(path)] == "it is for aarch64"


def test_missing_expected_files_are_warnings(host: HostTree) -> None:
    (host.driver / STORE / "nvidia-smi").unlink()
    (host.driver / LIBRARIES / "libdxcore.so").unlink()

    assert look(host).warnings == (
        f"{host.driver}/{LIBRARIES}/libdxcore.so is missing: no GPU can be used; run wsl --update",
        f"{host.driver}/{STORE} has no nvidia-smi: there is no nvidia-smi",
    )


def test_wsl_without_a_gpu_says_what_to_do_in_windows(host: HostTree) -> None:
    (host.base / "dev/dxg").unlink()

    with pytest.raises(HostError, match=r"WSL shows no GPU: no .*/dev/dxg") as caught:
        look(host)
    assert "wsl --update" in caught.value.hint


def test_wsl_without_nvidias_driver_says_so(host: HostTree) -> None:
    (host.driver / STORE / "libcuda.so.1.1").unlink()

    with pytest.raises(HostError, match=r"no folder in .*/wsl/drivers has libcuda.so.1.1"):
        look(host)


def test_versions_come_from_nvml_and_are_unknown_if_it_fails(host: HostTree) -> None:
    assert look(host, FakeNvml()).cuda_version == "13.0"

    inventory = look(host, FakeNvml(error=NvmlError("nvmlInit of x failed: driver not loaded")))

    assert inventory.cuda_version == ""
    assert inventory.notes == (
        "nvmlInit of x failed: driver not loaded: the versions of driver and CUDA are not known",
    )
