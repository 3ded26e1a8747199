# SPDX-License-Identifier: Apache-2.0
"""Facts of NVML's worker, of a Tegra, of GPUs that are passed through; the user's own labels."""

import asyncio
import functools
import json
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nvct.agent.labels import compute, cuda_probe, gather
from nvct.agent.labels.facts import Facts, GpuFacts, is_key, is_value
from nvct.agent.labels.settings import Settings
from nvct.agent.machine.discovery import Discovery
from nvct.agent.nvml.client import NvmlClient
from nvct.errors import DocumentError, DriverNotFoundError, NvmlError
from nvct.host.gpu import pci
from nvct.host.gpu.pci import HostDriver
from nvct.host.nvml import messages
from nvct.host.roots import Roots
from nvct.oci.jsontext import Json

READABLE = 64
"""Bytes of a device's configuration space, without privileges."""


@pytest.fixture
def roots(tmp_path: Path) -> Roots:
    device = tmp_path / "bus/pci/devices/0000:00:05.0"
    device.mkdir(parents=True)
    (device / "vendor").write_text("0x10de\n")
    (device / "config").write_bytes(bytes(READABLE))
    return Roots(sys=str(tmp_path))


def gathered(roots: Roots, answer: dict[str, Json]) -> tuple[Facts, list[str]]:
    """Return the facts that a worker's answer to one request makes."""
    ours, theirs = socket.socketpair()

    async def inside() -> tuple[Facts, list[str]]:
        client = NvmlClient(ours)
        client.chooses_library = False
        client._failure = NvmlError  # type: ignore[assignment,method-assign]  # as a worker's client
        asking = asyncio.create_task(gather.without_gpus(Discovery(roots, client)))
        message = await asyncio.to_thread(messages.receive, theirs)
        number, verb, _ = messages.request_of(message)
        assert verb == "host_drivers"
        messages.send(theirs, {"id": number, **answer})
        try:
            return await asking
        finally:
            client.disconnect()

    with theirs:
        return asyncio.run(inside())


def test_the_worker_reads_what_needs_privileges(roots: Roots) -> None:
    facts, warnings = gathered(roots, {"value": [["550.90.05", "r550_00"]]})
    assert facts.host_drivers == (HostDriver("550.90.05", "r550_00"),)
    assert warnings == []


@pytest.mark.parametrize(
    "answer",
    [
        {"value": None},
        {"value": [["550"]]},
        {"value": [[550, ""]]},
        {"value": [{"version": "550", "branch": ""}]},
        {"error": {"message": "the worker is too old"}},
    ],
)
def test_an_answer_that_is_none_leaves_the_labels_out(
    roots: Roots, answer: dict[str, Json]
) -> None:
    facts, warnings = gathered(roots, answer)
    assert facts.host_drivers is None
    assert len(warnings) == 1
    assert warnings[0].startswith("no labels of vGPUs: ")


def test_without_a_worker_the_configuration_space_has_to_be_readable(roots: Roots) -> None:
    facts, warnings = asyncio.run(gather.without_gpus(Discovery(roots, NvmlClient(None))))
    assert facts.host_drivers is None
    assert "only 64 bytes are readable" in warnings[0]


def test_cuda_is_asked_where_there_is_no_nvml(
    roots: Roots, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def cuda() -> Facts:
        return Facts(cuda_version="12.6", gpus=(GpuFacts(model="Orin"),))

    monkeypatch.setattr(gather, "facts_of_tegra", cuda)
    machine = tmp_path / "product_name"
    machine.write_text("Jetson AGX Orin\n")
    ours, theirs = socket.socketpair()
    theirs.close()
    client = NvmlClient(ours)
    try:
        discovery = Discovery(roots, client, mode="csv")
        facts, _ = asyncio.run(gather.with_gpus(discovery, str(machine)))
    finally:
        client.disconnect()

    assert (facts.machine.strip(), facts.cuda_version) == ("Jetson AGX Orin", "12.6")
    assert [gpu.model for gpu in facts.gpus] == ["Orin"]


# The user's own labels: constants, references, and what is refused.


LABELS = {"nvidia.com/gpu.product": "Tesla-T4"}


def test_constants_and_references_are_added(tmp_path: Path) -> None:
    file = tmp_path / "labels.yaml"
    file.write_text(
        "example.com/pool: training\n"
        'example.com/gpu: "@nvidia.com/gpu.product"\n'
        'example.com/none: "@nvidia.com/gpu.absent"\n'
        "rack: 7\n"
        "ready: true\n"
        "nvidia.com/gpu.product: mine\n"
    )

    labels, warnings = compute.added(LABELS, compute.load(str(file)))

    assert labels == {
        **LABELS, "example.com/pool": "training", "example.com/gpu": "Tesla-T4", "rack": "7",
        "ready": "true",
    }  # fmt: skip
    assert warnings == [
        "label nvidia.com/gpu.product of the labels file is left out: nvct sets it"
    ]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a b: c", "'a b' is not a valid key of a label"),
        ("a: b c", "'b c' is not a valid value of label a"),
        ("a: [1]", r"\[1\] is not a valid value of label a"),
        ("a:", "None is not a valid value of label a"),
        ('a: "@b c"', "'@b c' is not a valid value of label a"),
        ("kubernetes.io/hostname: x", "is in a domain that is reserved for Kubernetes"),
        ("node-role.kubernetes.io/gpu: x", "is in a domain that is reserved for Kubernetes"),
        ("topology.k8s.io/rack: x", "is in a domain that is reserved for Kubernetes"),
        ("- a", "is not a table"),
        ("{", "is malformed"),
    ],
)
def test_a_bad_file_is_refused_with_a_sentence(text: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "labels.yaml").write_text(text)
    with pytest.raises(DocumentError, match=sentence):
        compute.load(f"{tmp_path}/labels.yaml")


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("", {}),
        ("feature.node.kubernetes.io/mine: x", {"feature.node.kubernetes.io/mine": "x"}),
    ],
)
def test_a_good_file_is_read(text: str, labels: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "labels.yaml").write_text(text)
    assert compute.load(f"{tmp_path}/labels.yaml") == labels
    with pytest.raises(DocumentError, match="labels file /nowhere: No such file"):
        compute.load("/nowhere")


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
        known: list[Any] = [getattr(each, "value", each) for each in more]
        match [name, *known]:
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


WINDOWS = """\
0x0000000094000000 0x0000000094ffffff 0x0000000000040200
0x0000280000000000 0x00002fffffffffff 0x000000000014220c
0x0000000000000000 0x0000000000000000 0x0000000000000000
0x0000300000000000 0x0000300001ffffff 0x000000000014220c
0x0000000000000000 0x0000000000000000 0x0000000000000000
0x0000000000000000 0x0000000000000000 0x0000000000000000
0x0000000000000000 0x0000000000000000 0x0000000000000000
"""
PCI_IDS = """\
# names
10dd  Another
\t2330  Another's
10de  NVIDIA Corporation
\t2330  GH100 [H100 SXM5 80GB]
\t\t10de 16c1  A board
\t2331  GH100 [H100 PCIe]
10df  The next
\t2332  Another's
"""


def add(root: Path, bus_id: str, driver: str = "vfio-pci", **files: str) -> Path:
    """Add an NVIDIA device to a /sys."""
    folder = root / f"sys/bus/pci/devices/{bus_id}"
    folder.mkdir(parents=True)
    content = {"vendor": "0x10de", "device": "0x2330", "class": "0x030200", "resource": WINDOWS}
    for name, text in {**content, **files}.items():
        (folder / name).write_text(f"{text}\n")
    of_driver = root / f"sys/bus/pci/drivers/{driver}"
    of_driver.mkdir(parents=True, exist_ok=True)
    (folder / "driver").symlink_to(of_driver)
    return folder


def labels(root: Path) -> dict[str, str]:
    roots = Roots(driver_root=str(root), sys=f"{root}/sys", proc=f"{root}/proc")
    facts = replace(gather.passed_through(roots, pci.names(roots)), machine="A Server\n")
    found, warnings = compute.labels(facts, Settings(extra_labels=()))
    assert warnings == []
    assert all(is_key(key) and is_value(value) for key, value in found.items())
    return found


def test_they_have_the_incumbents_labels(tmp_path: Path) -> None:
    add(tmp_path, "0000:17:00.0")
    add(tmp_path, "0000:18:00.0")
    add(tmp_path, "0000:19:00.0", driver="nvidia")
    add(tmp_path, "0000:20:00.0", **{"class": "0x040300"})
    (add(tmp_path, "0000:21:00.0") / "physfn").symlink_to("../0000:17:00.0")
    (tmp_path / "usr/share/misc").mkdir(parents=True)
    (tmp_path / "usr/share/misc/pci.ids").write_text(PCI_IDS)

    found = labels(tmp_path)
    assert {key: value for key, value in found.items() if key.startswith("nvidia.com/gpu.")} == {
        "nvidia.com/gpu.count": "2",
        "nvidia.com/gpu.family": "undefined",
        "nvidia.com/gpu.machine": "A-Server",
        "nvidia.com/gpu.memory": str(1 << 44),
        "nvidia.com/gpu.mode": "compute",
        "nvidia.com/gpu.product": "GH100-H100-SXM5-80GB",
        "nvidia.com/gpu.replicas": "1",
        "nvidia.com/gpu.sharing-strategy": "none",
    }
    assert found["nvidia.com/cuda.runtime-version.full"] == "0.0"


def test_without_a_list_of_names_the_device_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nvct.host.gpu.pci.FILES", ())
    add(tmp_path, "0000:17:00.0")

    assert labels(tmp_path)["nvidia.com/gpu.product"] == "UNKNOWN_DEVICE"


def test_without_such_a_gpu_there_are_no_labels_of_gpus(tmp_path: Path) -> None:
    add(tmp_path, "0000:17:00.0", driver="nvidia")

    assert labels(tmp_path) == {"nvidia.com/vgpu.present": "false"}


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("", 0),
        ("0x0 0x0 0x0", 0),
        ("0x0 0xffffff 0x40200", 0),  # 32 bits
        ("0x0 0xffffff 0x14220c", 1 << 24),
        ("0x0 0xffffff 0x14220c\n0x0 0xffffff 0x14220c\n0x0 0x1 0x14220c", 1 << 26),
        ("nonsense\n0x0 0xffff 0x14220c 5", 0),
    ],
)
def test_memory_windows_are_added_and_rounded_up(text: str, size: int) -> None:
    assert gather.memory_windows(text) == size
