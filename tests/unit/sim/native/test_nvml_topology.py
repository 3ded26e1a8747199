# SPDX-License-Identifier: Apache-2.0
"""Topology and values of GPU models, by nvidia-ml-py on nodes of the profiles."""

import ctypes
import functools
import os
from collections.abc import Callable, Iterator
from typing import Any, cast

import pynvml
import pytest

from nvct_sim import node_changes, profile, tree
from tests.support.nvml_node import CACHE, code_of

INTERNAL, SINGLE, MULTIPLE, HOST_BRIDGE, NODE, SYSTEM = 0, 10, 20, 30, 40, 50
NOT_SUPPORTED, INVALID_ARGUMENT = 3, 2


@pytest.fixture(scope="session")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tree.Node]:
    """Return the node of a profile; all tests share it."""
    base = tmp_path_factory.mktemp("nodes")

    @functools.cache
    def make(name: str) -> tree.Node:
        return tree.create(name, name, base, nodes="plain", native_cache=CACHE)

    return make


@pytest.fixture
def start(
    nodes: Callable[[str], tree.Node], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], Any]]:
    """Return nvidia-ml-py, initialised on the node of a profile."""
    module = cast("Any", pynvml)

    def run(name: str) -> Any:
        node = nodes(name)
        monkeypatch.setenv("NVCT_SIM_DEV", str(node.dev))
        module._nvmlGetFunctionPointer_cache.clear()
        module.nvmlLib = ctypes.CDLL(str(node.library_dir / "libnvidia-ml.so.1"))
        module.nvmlInit()
        return module

    yield run
    while module.nvmlLib is not None and module.nvmlLib.nvmlShutdown() == 0:
        pass
    module._nvmlGetFunctionPointer_cache.clear()
    module.nvmlLib = None


def handles(nvml: Any) -> list[Any]:
    return [nvml.nvmlDeviceGetHandleByIndex(n) for n in range(nvml.nvmlDeviceGetCount())]


def levels(nvml: Any) -> list[list[int]]:
    gpus = handles(nvml)
    return [[nvml.nvmlDeviceGetTopologyCommonAncestor(a, b) for b in gpus] for a in gpus]


def links(nvml: Any, gpu: Any) -> list[str]:
    """Return the peers of all possible links, as the incumbent's allocator does."""
    found = []
    for link in range(18):
        try:
            if not nvml.nvmlDeviceGetNvLinkState(gpu, link):
                continue
            found.append(nvml.nvmlDeviceGetNvLinkRemotePciInfo(gpu, link).busId)
        except (nvml.NVMLError_NotSupported, nvml.NVMLError_InvalidArgument):
            continue
    return found


def test_pairs_of_gpus_share_what_their_paths_share(start: Callable[[str], Any]) -> None:
    found = levels(start("gtx1080ti-9"))

    assert found[0][:5] == [INTERNAL, SINGLE, MULTIPLE, MULTIPLE, SYSTEM]
    assert found[8][4:] == [HOST_BRIDGE] * 4 + [INTERNAL]
    assert found == [list(column) for column in zip(*found, strict=True)]


def test_gpus_of_another_host_bridge_are_on_the_same_numa_node(
    start: Callable[[str], Any],
) -> None:
    assert levels(start("h100"))[0] == [INTERNAL, *[NODE] * 3, *[SYSTEM] * 4]


def test_nvlinks_lead_from_gpu_to_gpu_and_back(start: Callable[[str], Any]) -> None:
    nvml = start("v100-8")
    gpus = handles(nvml)
    buses = [nvml.nvmlDeviceGetPciInfo(gpu).busId for gpu in gpus]

    counts = [[links(nvml, gpu).count(bus) for bus in buses] for gpu in gpus]

    assert counts[0] == [0, 1, 1, 2, 2, 0, 0, 0]
    assert counts == [list(column) for column in zip(*counts, strict=True)]
    assert {sum(row) for row in counts} == {6}
    assert nvml.nvmlDeviceGetNvLinkVersion(gpus[0], 0) == 2
    assert nvml.nvmlDeviceGetNvLinkRemoteDeviceType(gpus[0], 0) == nvml.NVML_NVLINK_DEVICE_TYPE_GPU
    assert code_of(nvml.nvmlDeviceGetNvLinkState, gpus[0], 6) == INVALID_ARGUMENT


def test_nvlinks_lead_to_the_switches(start: Callable[[str], Any]) -> None:
    nvml = start("a100-80")
    gpu = handles(nvml)[0]

    found = links(nvml, gpu)

    assert len(found) == 12
    assert set(found) == {f"00000000:{0xC0 + n:02X}:00.0" for n in range(6)}
    assert nvml.nvmlDeviceGetNvLinkVersion(gpu, 0) == 4
    assert nvml.nvmlDeviceGetNvLinkRemotePciInfo(gpu, 0).pciDeviceId == 0x1AF110DE
    assert nvml.nvmlDeviceGetNvLinkRemoteDeviceType(gpu, 11) == (
        nvml.NVML_NVLINK_DEVICE_TYPE_SWITCH
    )
    for capability in range(6):
        assert nvml.nvmlDeviceGetNvLinkCapability(gpu, 0, capability) == 1
    assert code_of(nvml.nvmlDeviceGetNvLinkCapability, gpu, 0, 6) == INVALID_ARGUMENT


def test_a_link_to_a_lost_gpu_is_down(
    start: Callable[[str], Any], nodes: Callable[[str], tree.Node]
) -> None:
    nvml = start("v100-8")
    gpus = handles(nvml)
    node_changes.lose_gpu(nodes("v100-8"), 1)
    try:
        states = [nvml.nvmlDeviceGetNvLinkState(gpus[0], link) for link in range(6)]
        assert states == [0, 1, 1, 1, 1, 1]
        assert code_of(nvml.nvmlDeviceGetNvLinkRemotePciInfo, gpus[0], 0) == NOT_SUPPORTED
    finally:
        node_changes.restore_gpu(nodes("v100-8"), 1)


@pytest.mark.parametrize(
    ("name", "pair", "read", "by_link"),
    [
        ("a100-80", (0, 7), 0, 0),  # connected by switches
        ("v100-8", (0, 3), 0, 0),  # connected by a link
        ("v100-8", (0, 7), 1, 5),  # not connected, on different NUMA nodes
        ("t4-4", (0, 1), 0, 5),  # connected by PCIe
        ("gtx1080ti-9", (0, 8), 1, 5),
    ],
)
def test_peer_to_peer_goes_by_link_or_by_one_host_bridge(
    start: Callable[[str], Any], name: str, pair: tuple[int, int], read: int, by_link: int
) -> None:
    nvml = start(name)
    gpus = handles(nvml)
    one, other = (gpus[index] for index in pair)

    found = [nvml.nvmlDeviceGetP2PStatus(one, other, kind) for kind in range(5)]

    assert found == [read, read, by_link, by_link, 5]
    assert code_of(nvml.nvmlDeviceGetP2PStatus, gpus[0], gpus[1], 5) == INVALID_ARGUMENT


def test_memory_and_cpu_affinity_are_those_of_sysfs(
    start: Callable[[str], Any], nodes: Callable[[str], tree.Node]
) -> None:
    nvml = start("a100-80")
    node = nodes("a100-80")

    numa = []
    for gpu in handles(nvml):
        info = nvml.nvmlDeviceGetPciInfo(gpu)
        folder = node.sys / f"bus/pci/devices/{info.busId[4:].lower()}"
        (near,) = nvml.nvmlDeviceGetMemoryAffinity(gpu, 1, nvml.NVML_AFFINITY_SCOPE_NODE)
        numa.append(near.bit_length() - 1)
        assert near == 1 << int((folder / "numa_node").read_text())
        mask = (folder / "local_cpus").read_text().replace(",", "")
        words = nvml.nvmlDeviceGetCpuAffinity(gpu, -(-(os.cpu_count() or 1) // 64))
        assert sum(word << 64 * n for n, word in enumerate(words)) == int(mask, 16)
        assert info.pciDeviceId >> 16 == int((folder / "device").read_text(), 16)

    assert numa == [3, 3, 1, 1, 7, 7, 5, 5]


def test_a_board_without_ecc_and_serial_number_returns_not_supported(
    start: Callable[[str], Any],
) -> None:
    nvml = start("gtx1080ti-9")
    gpus = handles(nvml)
    gpu, pages = gpus[8], ctypes.c_uint(0)

    assert len(gpus) == 9
    for code in (
        code_of(nvml.nvmlDeviceGetEccMode, gpu),
        code_of(nvml.nvmlDeviceGetDefaultEccMode, gpu),
        code_of(nvml.nvmlDeviceGetTotalEccErrors, gpu, 0, 0),
        code_of(nvml.nvmlDeviceGetRemappedRows, gpu),
        code_of(nvml.nvmlDeviceGetRetiredPagesPendingStatus, gpu),
        nvml.nvmlLib.nvmlDeviceGetRetiredPages(gpu, 0, ctypes.byref(pages), None),
        code_of(nvml.nvmlDeviceGetMigMode, gpu),
        code_of(nvml.nvmlDeviceGetSerial, gpu),
        code_of(nvml.nvmlDeviceGetGspFirmwareVersion, gpu),
    ):
        assert code == NOT_SUPPORTED
    extended = nvml.nvmlPciInfoExt_v1_t(version=nvml.nvmlPciInfoExt_v1)
    assert nvml.nvmlLib.nvmlDeviceGetPciInfoExt(gpu, ctypes.byref(extended)) == 0
    assert (extended.baseClass, extended.subClass) == (3, 0)
    assert nvml.nvmlDeviceGetBAR1MemoryInfo(gpu).bar1Total == 256 << 20


# Count, product, compute capability, architecture, brand and GiB in NVIDIA's data sheets and nvml.h.
KNOWN = {
    "a100-80": (8, "NVIDIA A100-SXM4-80GB", (8, 0), "AMPERE", "NVIDIA", 80),
    "a100-16": (16, "NVIDIA A100-SXM4-40GB", (8, 0), "AMPERE", "NVIDIA", 40),
    "v100-8": (8, "Tesla V100-SXM2-32GB", (7, 0), "VOLTA", "TESLA", 32),
    "gtx1080ti-9": (9, "NVIDIA GeForce GTX 1080 Ti", (6, 1), "PASCAL", "GEFORCE", 11),
    "t4-4": (4, "Tesla T4", (7, 5), "TURING", "NVIDIA", 15),
}


@pytest.mark.parametrize("name", KNOWN)
def test_models_have_the_values_of_their_data_sheets(
    start: Callable[[str], Any], name: str
) -> None:
    nvml, (count, product, capability, architecture, brand, gibibytes) = start(name), KNOWN[name]
    gpu = handles(nvml)[count - 1]

    assert nvml.nvmlDeviceGetCount() == count == len(profile.load(name).gpus)
    assert nvml.nvmlDeviceGetName(gpu) == product
    assert nvml.nvmlDeviceGetCudaComputeCapability(gpu) == capability
    assert nvml.nvmlDeviceGetArchitecture(gpu) == getattr(nvml, f"NVML_DEVICE_ARCH_{architecture}")
    assert nvml.nvmlDeviceGetBrand(gpu) == getattr(nvml, f"NVML_BRAND_{brand}")
    assert nvml.nvmlDeviceGetMemoryInfo(gpu).total >> 30 == gibibytes
    assert nvml.nvmlDeviceGetUUID(gpu).startswith("GPU-")
