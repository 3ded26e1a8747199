# SPDX-License-Identifier: Apache-2.0
"""Pods that have devices: every form of an id, pods that have ended, no kubelet."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from nvct.agent.kubelet.pod_resources import Holding
from nvct.agent.kubernetes.cluster import FORBIDDEN, POD, ClusterError, Kind, Object
from nvct.agent.mig_manager import pods
from nvct.host.nvml.model import NvmlGpu, NvmlMig, NvmlReport

REPORT = NvmlReport(
    driver_version="580.1",
    cuda_version="13.0",
    gpus=(
        NvmlGpu(index=0, minor=0, uuid="GPU-0", bus_id="", name="A100"),
        NvmlGpu(
            index=1, minor=1, uuid="GPU-1", bus_id="", name="A100", mig_enabled=True,
            mig=(NvmlMig(index=0, uuid="MIG-0", gi=9, ci=0),),
        ),
    ),
)  # fmt: skip


def holding(pod: str, *ids: str) -> Holding:
    return Holding("default", pod, "main", "nvidia.com/gpu", ids)


@pytest.mark.parametrize(
    ("id_", "gpu", "instance", "device"),
    [
        ("GPU-0", "GPU-0", None, "GPU-0"),
        ("GPU-0::3", "GPU-0", None, "GPU-0"),
        ("0", "GPU-0", None, "GPU-0"),
        ("MIG-0", "GPU-1", (9, 0), "MIG-0"),
        ("MIG-0::1", "GPU-1", (9, 0), "MIG-0"),
        ("1:0", "GPU-1", (9, 0), "MIG-0"),
    ],
)
def test_an_id_is_found(id_: str, gpu: str, instance: tuple[int, int] | None, device: str) -> None:
    (found,) = pods.devices([holding("train", id_)], REPORT)
    assert (found.gpu, found.instance) == (gpu, instance)
    assert str(found) == f"pod default/train has {device}"


def test_ids_of_others_and_repeated_ones_are_left_out() -> None:
    holdings = [holding("train", "MIG-gone", "rdma0", "GPU-0::0", "GPU-0::1")]
    assert len(pods.devices(holdings, REPORT)) == 1


class FakeNvml:
    async def report(self) -> NvmlReport:
        return REPORT


class FakeCluster:
    def __init__(self, phases: dict[str, str]) -> None:
        self.phases = phases

    async def find(self, kind: Kind, name: str, namespace: str) -> Object | None:
        assert (kind, namespace) == (POD, "default")
        if name == "secret":
            raise ClusterError("may not get pods", status=FORBIDDEN)
        return {"status": {"phase": self.phases[name]}} if name in self.phases else None


class FakeKubelet:
    def __init__(self, path: Path) -> None:
        self.is_there = path.exists

    async def holdings(self) -> tuple[Holding, ...]:
        names = ("runs", "ended", "gone", "secret")
        return tuple(holding(name, "GPU-0") for name in names)


def asked(path: Path) -> list[str]:
    cluster = FakeCluster({"runs": "Running", "ended": "Succeeded"})
    found = pods.Pods(FakeNvml(), cluster, str(path))  # type: ignore[arg-type]
    found._kubelet = FakeKubelet(path)  # type: ignore[assignment]
    return [each.pod for each in asyncio.run(found.devices())]


def test_pods_that_have_ended_do_not_count(tmp_path: Path) -> None:
    path = tmp_path / "kubelet.sock"
    assert asked(path) == []  # there is no kubelet
    path.touch()
    assert asked(path) == ["runs", "secret"]


def test_a_long_list_is_shortened() -> None:
    assert pods.sentence(["a", "b"], limit=2) == "a; b"
    assert pods.sentence(list("abcd"), limit=2) == "a; b and 2 more"
