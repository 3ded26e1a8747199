# SPDX-License-Identifier: Apache-2.0
"""The inventory as a whole."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from nvct.cdi.make.generate import Options
from nvct.compile import plans
from nvct.errors import NvmlError, UsageError
from nvct.host.discover import discover
from nvct.host.discovery_options import DiscoveryOptions
from nvct.host.model import Inventory
from nvct.linux import elf
from tests.support.host_tree import LIB, VERSION, FakeNvml, HostTree, elf_bytes, nvml_gpu


@pytest.fixture
def host(tmp_path: Path) -> HostTree:
    return HostTree(tmp_path).module().user_space()


def look(
    host: HostTree, nvml: FakeNvml | None = None, search_paths: tuple[str, ...] = ()
) -> Inventory:
    options = host.options(nvml, search_paths=search_paths)
    return discover(host.roots, options)


def test_node_without_mig_is_described_without_nvml(host: HostTree) -> None:
    host.gpu(0).gpu(1, minor=5)
    nvml = FakeNvml(error=NvmlError("must not be asked"))

    inventory = look(host, nvml)

    assert nvml.calls == 0
    assert inventory.driver_version == VERSION
    assert inventory.cuda_version == "13.0"
    assert [(gpu.index, gpu.minor, gpu.uuid) for gpu in inventory.gpus] == [
        (0, 0, host.uuid(0)),
        (1, 5, host.uuid(1)),
    ]
    assert inventory.warnings == ()


def test_mig_uuids_come_from_nvml_and_minors_from_procfs(host: HostTree) -> None:
    host.gpu(0).gpu(1).instance(1, 7, 0, (66, 67)).instance(1, 9, 0, (84, 85))
    nvml = FakeNvml(gpus=(nvml_gpu(0), nvml_gpu(1, instances=((7, 0), (9, 0)))))

    without_mig, with_mig = look(host, nvml).gpus

    assert nvml.calls == 1
    assert (without_mig.mig_enabled, without_mig.mig) == (False, ())
    assert with_mig.mig_enabled
    assert [(mig.index, mig.gi, mig.cap_minors, mig.profile) for mig in with_mig.mig] == [
        (0, 7, (66, 67), "1g.10gb"),
        (1, 9, (84, 85), "1g.10gb"),
    ]
    assert [node.path for node in with_mig.mig[1].nodes] == [
        "/dev/nvidia-caps/nvidia-cap84",
        "/dev/nvidia-caps/nvidia-cap85",
    ]


def test_gpus_come_from_nvml_if_procfs_lists_none(host: HostTree) -> None:
    host.write("dev/nvidia0", mode=0o666)

    inventory = look(host, FakeNvml(gpus=(nvml_gpu(0),)))

    assert [gpu.uuid for gpu in inventory.gpus] == [host.uuid(0)]
    assert inventory.gpus[0].node is not None
    assert inventory.notes == ("procfs lists no GPU: NVML's list is used",)


def test_files_of_all_kinds_are_sorted_by_container_path(host: HostTree) -> None:
    files = look(host.gpu(0)).files

    paths = [file.container_path for file in files]
    assert paths == sorted(paths)
    assert {file.kind for file in files} == {"library", "binary", "firmware"}


def test_search_paths_replace_the_usual_directories(host: HostTree) -> None:
    path = host.write(f"elsewhere/libcuda.so.{VERSION}", elf_bytes("libcuda.so.1")).parent

    inventory = look(host.gpu(0), search_paths=(str(path),))

    libraries = [file for file in inventory.files if file.kind == "library"]
    assert [file.host_path for file in libraries] == [f"{path}/libcuda.so.{VERSION}"]
    assert [file.container_path for file in libraries] == [f"{path}/libcuda.so.{VERSION}"]
    in_root = look(host, search_paths=(f"{host.driver}/{LIB}",))
    assert f"/{LIB}/libcuda.so.{VERSION}" in [file.container_path for file in in_root.files]
    with pytest.raises(UsageError, match="search path 'lib' is not absolute"):
        look(host, search_paths=("lib",))


def test_the_cuda_version_of_an_unknown_driver_branch_is_unknown(tmp_path: Path) -> None:
    host = HostTree(tmp_path, version="999.88.77").module().user_space().gpu(0)
    nvml = FakeNvml()

    inventory = look(host, nvml)

    assert nvml.calls == 0  # for the CUDA version alone
    assert inventory.cuda_version == ""
    assert inventory.notes == ("the CUDA version of driver 999.88.77 is not known",)
    host.instance(0, 7, 0, (66, 67))
    nvml = FakeNvml(error=NvmlError("nvmlInit failed: driver/library mismatch"))
    (warning,) = look(host, nvml).warnings
    assert warning == (
        "nvmlInit failed: driver/library mismatch: MIG devices are left out, it is not known "
        "which CUDA version the driver supports"
    )


@pytest.mark.parametrize("flagged", [True, False], ids=["flag", "no-flag"])
def test_gpu_is_known_to_be_coherent_if_the_flag_asks(host: HostTree, *, flagged: bool) -> None:
    host.gpu(0).instance(0, 7, 0, (66, 67))
    flags = frozenset({"enable-coherent-annotations"} if flagged else ())
    gpu = replace(nvml_gpu(0, instances=((7, 0),)), coherent=True)
    nvml = FakeNvml(gpus=(gpu,))
    options = host.options(nvml, flags=flags)

    assert discover(host.roots, options).gpus[0].coherent is (True if flagged else None)


def test_the_flag_for_coherent_gpus_calls_nvml(host: HostTree) -> None:
    flags = frozenset({"enable-coherent-annotations"})
    nvml = FakeNvml(error=NvmlError("nvmlInit failed: gpu is lost"))
    options = DiscoveryOptions(
        nvml=nvml, stat_node=host.gpu(0).stat_node, machine="x86_64", flags=flags
    )

    (warning,) = discover(host.roots, options).warnings

    assert warning == (
        "nvmlInit failed: gpu is lost: it is not known which GPUs share one address space with "
        "the CPU"
    )


def test_each_library_is_parsed_once_for_a_plan(
    host: HostTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = "driver/usr/lib/i386-linux-gnu"
    host.write(f"{folder}/libcuda.so.{VERSION}", elf_bytes("libcuda.so.1", "i386"))
    parsed: list[int] = []
    read = elf.Elf

    def counting(fd: int) -> elf.Elf:
        parsed.append(os.fstat(fd).st_ino)
        return read(fd)

    monkeypatch.setattr(elf, "Elf", counting)
    options = host.options(compat32=True)

    plans.in_parts(discover(host.gpu(0).roots, options), Options(node_numbers=True))

    assert len(parsed) > 5
    assert len(set(parsed)) == len(parsed)
