# SPDX-License-Identifier: Apache-2.0
"""Counters, processes and performance metrics of a GPU that is rehearsed to fail or to work."""

import time
from typing import Any

import pytest

from tests.support.nvml_node import NvmlNode, code_of, gpu_record

ALL_LINKS = 0xFFFFFFFF
TIMEOUT_S = 60


def handle(nvml: Any, index: int = 0) -> Any:
    nvml.nvmlInit()
    return nvml.nvmlDeviceGetHandleByIndex(index)


def test_fields_of_a_gpu_with_faults(node: NvmlNode, nvml: Any) -> None:
    node.set_gpus(
        gpu_record(
            0, arch=7, links="1,1", nvlink=6, recovery=2, memtemp=95, pcie_replays=7,
            nvlink_tx=1000, nvlink_rx=500, nvlink_crc_flit=3, nvlink_crc_data=4,
            nvlink_replays=5, nvlink_recoveries=6, violation_power=10**12,
        ),
        gpu_record(1),
    )  # fmt: skip
    fields = {
        nvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION: nvml.NVML_GPU_RECOVERY_ACTION_NODE_REBOOT,
        nvml.NVML_FI_DEV_MEMORY_TEMP: 95,
        nvml.NVML_FI_DEV_PCIE_REPLAY_COUNTER: 7,
        (nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, ALL_LINKS): 1000,
        (nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, 1): 250,
        nvml.NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL: 3,
        nvml.NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL: 4,
        nvml.NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL: 5,
        nvml.NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL: 6,
        nvml.NVML_FI_DEV_PERF_POLICY_POWER: 10**12,
    }

    values = nvml.nvmlDeviceGetFieldValues(handle(nvml), list(fields))

    assert [value.nvmlReturn for value in values] == [0] * len(fields)
    assert [value.value.ullVal for value in values] == list(fields.values())
    no_links = nvml.nvmlDeviceGetFieldValues(
        handle(nvml, 1), [nvml.NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL]
    )
    assert no_links[0].nvmlReturn == nvml.NVML_ERROR_NOT_SUPPORTED


def test_power_and_the_energy_since_a_time(node: NvmlNode, nvml: Any) -> None:
    hour_ago = int((time.time() - 3600) * 1e6)
    node.set_gpus(gpu_record(0, power_usage=500_000, energy=10**9, energy_at=hour_ago))
    gpu = handle(nvml)

    assert nvml.nvmlDeviceGetPowerUsage(gpu) == 500_000
    used = nvml.nvmlDeviceGetTotalEnergyConsumption(gpu) - 10**9
    assert 500_000 * 3600 <= used <= 500_000 * (3600 + TIMEOUT_S)


def test_processes_have_memory_and_a_part_of_the_time(node: NvmlNode, nvml: Any) -> None:
    node.add(
        "process\tgpu=0\tpid=11\tmemory=1000000\tsm=70\tmem=20",
        "process\tgpu=0\tpid=12\tmemory=2000000\tgraphics=1",
        "process\tgpu=1\tpid=13\tmemory=5",
    )
    gpu = handle(nvml)

    (compute,) = nvml.nvmlDeviceGetComputeRunningProcesses(gpu)
    (graphics,) = nvml.nvmlDeviceGetGraphicsRunningProcesses(gpu)
    samples = nvml.nvmlDeviceGetProcessUtilization(gpu, 0)

    assert (compute.pid, compute.usedGpuMemory, graphics.pid) == (11, 1000000, 12)
    assert [(s.pid, s.smUtil, s.memUtil) for s in samples] == [(11, 70, 20), (12, 0, 0)]
    used = [nvml.nvmlDeviceGetMemoryInfo(handle(nvml, index)).used for index in (0, 1)]
    assert used[0] - used[1] == 3000000 - 5


def test_a_mig_device_has_its_own_processes(node: NvmlNode, nvml: Any) -> None:
    node.add_mig_devices(0, 2)
    node.add(
        "process\tgpu=0\tpid=11\tmemory=1\tgi=7\tci=0",
        "process\tgpu=0\tpid=12\tmemory=1\tgi=8\tci=0",
    )
    gpu = handle(nvml)

    second = nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, 1)

    pids = [(p.pid, p.gpuInstanceId) for p in nvml.nvmlDeviceGetComputeRunningProcesses(gpu)]
    assert pids == [(11, 7), (12, 8)]
    assert [p.pid for p in nvml.nvmlDeviceGetComputeRunningProcesses(second)] == [12]
    not_supported = code_of(nvml.nvmlDeviceGetProcessUtilization, gpu, 0)
    assert not_supported == nvml.NVML_ERROR_NOT_SUPPORTED


def metrics_of(nvml: Any, gpu: Any, *ids: int) -> list[tuple[int, float]]:
    get = nvml.c_nvmlGpmMetricsGet_t()
    get.version, get.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, len(ids)
    get.sample1, get.sample2 = nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()
    for sample in (get.sample1, get.sample2):
        nvml.nvmlGpmSampleGet(gpu, sample)
    for i, metric in enumerate(ids):
        get.metrics[i].metricId = metric
    nvml.nvmlGpmMetricsGet(get)
    for sample in (get.sample1, get.sample2):
        nvml.nvmlGpmSampleFree(sample)
    return [(get.metrics[i].nvmlReturn, get.metrics[i].value) for i in range(len(ids))]


def test_performance_metrics_of_two_samples(node: NvmlNode, nvml: Any) -> None:
    node.set_gpus(
        gpu_record(0, gr_active=91, tensor_active=40, pcie_tx=2048), gpu_record(1, arch=7)
    )
    gpu = handle(nvml)

    assert metrics_of(nvml, gpu, 1, 5, 20, 400) == [(0, 91.0), (0, 40.0), (0, 2.0), (3, 0.0)]
    sample = nvml.nvmlGpmSampleAlloc()
    older = handle(nvml, 1)
    assert nvml.nvmlGpmQueryDeviceSupport(older).isSupportedDevice == 0
    assert code_of(nvml.nvmlGpmSampleGet, older, sample) == nvml.NVML_ERROR_NOT_SUPPORTED
    nvml.nvmlGpmSampleFree(sample)


@pytest.mark.parametrize("line", ["process\tgpu=99\tpid=1\tmemory=1", "process\tnonsense"])
def test_a_process_of_no_gpu_is_nobodys(line: str, node: NvmlNode, nvml: Any) -> None:
    node.add(line)

    assert nvml.nvmlDeviceGetComputeRunningProcesses(handle(nvml)) == []
