# SPDX-License-Identifier: Apache-2.0
"""Computes what containers use of a GPU or GPU instance, and since when they have it.

Contract: pure functions; a value that NVML reports for no process is None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from nvct.agent.exporter.settings import node_labels
from nvct.agent.web.exposition import Family, family
from nvct.host.gpu_record import Record
from nvct.host.nvml.sample_model import GpuSample, NvmlSamples

Labels: TypeAlias = Mapping[str, str]
Holder: TypeAlias = tuple[str, str, str]
"""Container, namespace and pod; "" for an unknown one."""

PREFIX = "nvct_container_gpu"
NAMES = ("container", "namespace", "pod")


@dataclass()
class Usage:
    """What one container uses of one device."""

    gpu: GpuSample
    gi: int  # id of the GPU instance, -1 for a whole GPU
    holder: Holder
    memory: int | None = None  # bytes
    sm: int | None = None  # per cent of the GPU's time
    processes: int = 0

    @property
    def has_pod(self) -> bool:
        """Return whether the container is known as one of a pod."""
        return bool(self.holder[2])


def usages(samples: NvmlSamples, container_of: Callable[[int], Labels]) -> tuple[Usage, ...]:
    """Return what each container uses of each device; a process in no container has holder ""."""
    found: dict[tuple[str, int, Holder], Usage] = {}
    for gpu in samples.gpus:
        for process in gpu.processes:
            labels = container_of(process.pid)
            holder = (labels.get(NAMES[0], ""), labels.get(NAMES[1], ""), labels.get(NAMES[2], ""))
            usage = found.setdefault(
                (gpu.uuid, process.gi, holder), Usage(gpu, process.gi, holder)
            )
            usage.memory = _sum(usage.memory, process.memory)
            usage.sm = _sum(usage.sm, process.sm)
            usage.processes += 1
    return tuple(found.values())


def _sum(one: int | None, other: int | None) -> int | None:
    return one if other is None else (one or 0) + other


def families(found: Sequence[Usage], hostname: str) -> Iterator[Family]:
    """Yield the metrics of containers."""
    rows = [(usage, _labels(usage, hostname)) for usage in found]
    yield family(
        f"{PREFIX}_memory_used_bytes",
        "Memory of a GPU or MIG instance that the processes of a container use.",
        [(usage.memory, labels) for usage, labels in rows if usage.memory is not None],
    )
    yield family(
        f"{PREFIX}_utilization_ratio",
        "Part of a GPU's time in which the processes of a container use it.",
        [(usage.sm / 100, labels) for usage, labels in rows if usage.sm is not None],
    )
    yield family(
        f"{PREFIX}_processes",
        "Processes of a container that use a GPU or MIG instance.",
        [(usage.processes, labels) for usage, labels in rows],
    )


def recorded(record: Record | None) -> Iterator[Family]:
    """Yield the metrics of what the NRI plugin has recorded, if it runs."""
    if record is None:
        return
    yield family(
        "nvct_container_gpu_start_time_seconds",
        "When a container got a GPU or MIG device, in seconds since 1970.",
        [
            (holding.since, {"device": device, **holding.labels})
            for holding in record.holdings
            for device in holding.devices
            if holding.since
        ],
    )
    yield family(
        "nvct_nri_containers_total",
        "Containers that got a GPU, were or would be refused, since the NRI plugin started.",
        [(number, {"outcome": outcome}) for outcome, number in sorted(record.decisions.items())],
    )


def _labels(usage: Usage, hostname: str) -> dict[str, str]:
    labels = {
        **node_labels(hostname),
        "gpu": str(usage.gpu.index),
        "UUID": usage.gpu.uuid,
        "GPU_I_ID": "" if usage.gi < 0 else str(usage.gi),
        **dict(zip(NAMES, usage.holder, strict=True)),
    }
    return {name: value for name, value in labels.items() if value}
