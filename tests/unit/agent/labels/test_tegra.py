# SPDX-License-Identifier: Apache-2.0
"""Labels of a Tegra node, with a CUDA that is a few functions."""

import asyncio
import ctypes
import functools
import json
from dataclasses import replace
from typing import Any

import pytest

from nvct.agent.labels import compute, cuda_probe, gather
from nvct.agent.labels.settings import Settings
from nvct.errors import DriverNotFoundError

ORIN = {"name": b"Orin", "memory": 32 << 30, 75: 8, 76: 7}


class Cuda:
    """The calls of CUDA; each returns a number, 0 for success."""

    def __init__(self, *gpus: dict[Any, Any], fails: str = "") -> None:
        self.gpus, self.fails = gpus, fails

    def __getattr__(self, name: str) -> Any:
        return functools.partial(self._call, name)

    def _call(self, name: str, out: Any, *more: Any) -> int:
        if name == self.fails:
            return 100
        match name, *(each.value if isinstance(each, ctypes.c_int) else each for each in more):
            case ["cuDriverGetVersion"]:
                out._obj.value = 12060
            case ["cuDeviceGetCount"]:
                out._obj.value = len(self.gpus)
            case ["cuDeviceGet", index]:
                out._obj.value = index
            case ["cuDeviceGetName", _, device]:
                out.value = self.gpus[device]["name"]
            case ["cuDeviceTotalMem_v2", device]:
                out._obj.value = self.gpus[device]["memory"]
            case ["cuDeviceGetAttribute", key, device]:
                out._obj.value = self.gpus[device][key]
        return 0


def test_the_labels_are_those_of_nvidias_program() -> None:
    answer = json.dumps(cuda_probe.probe(Cuda(ORIN))).encode()
    facts = replace(gather.of_probe(answer), machine="Jetson AGX Orin")

    labels, _ = compute.labels(facts, Settings(extra_labels=()))

    known = {key: value for key, value in labels.items() if value not in ("unknown", "none")}
    assert known == {
        "nvidia.com/cuda.driver-version.full": "unknown.unknown.unknown",
        "nvidia.com/cuda.runtime-version.full": "12.6",
        **dict.fromkeys(
            ("nvidia.com/cuda.runtime-version.major", "nvidia.com/cuda.runtime.major"), "12"
        ),
        **dict.fromkeys(
            ("nvidia.com/cuda.runtime-version.minor", "nvidia.com/cuda.runtime.minor"), "6"
        ),
        "nvidia.com/gpu.compute.major": "8",
        "nvidia.com/gpu.compute.minor": "7",
        "nvidia.com/gpu.count": "1",
        "nvidia.com/gpu.family": "ampere",
        "nvidia.com/gpu.machine": "Jetson-AGX-Orin",
        "nvidia.com/gpu.memory": "32768",
        "nvidia.com/gpu.product": "Orin",
        "nvidia.com/gpu.replicas": "1",
        "nvidia.com/mig.capable": "false",
        "nvidia.com/mps.capable": "false",
        "nvidia.com/vgpu.present": "false",
    }


@pytest.mark.parametrize("call", ["cuInit", "cuDeviceGetCount", "cuDeviceGetName"])
def test_a_call_that_fails_is_named(call: str) -> None:
    with pytest.raises(cuda_probe.CudaError, match=f"{call} has failed with 100"):
        cuda_probe.probe(Cuda(ORIN, fails=call))


@pytest.mark.parametrize("answer", [b"", b"[]", b"{}", b'{"version": 1, "gpus": [{}]}', b"\xff"])
def test_a_malformed_answer_is_no_driver(answer: bytes) -> None:
    with pytest.raises(DriverNotFoundError, match="its answer is malformed"):
        gather.of_probe(answer)


def test_without_cuda_the_sentence_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "")
    code = 'import sys; sys.stdout.write(\'{"error": "libcuda.so.1: cannot open"}\')'
    monkeypatch.setattr(gather, "CUDA_PROBE", ("-I", "-c", code))

    with pytest.raises(DriverNotFoundError, match=r"CUDA: libcuda\.so\.1: cannot open"):
        asyncio.run(gather.facts_of_tegra())


def test_cuda_that_hangs_is_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gather, "CUDA_PROBE", ("-I", "-c", "import time; time.sleep(60)"))
    monkeypatch.setattr(gather, "PROBE_S", 0.1)

    with pytest.raises(DriverNotFoundError, match="it does not answer within"):
        asyncio.run(gather.facts_of_tegra())
