# SPDX-License-Identifier: Apache-2.0
"""Facts that an agent without privileges gets from NVML's worker; the user's own labels."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from nvct.agent.labels import compute, gather
from nvct.agent.labels.facts import Facts, GpuFacts
from nvct.agent.machine.discovery import Discovery
from nvct.agent.nvml.client import NvmlClient
from nvct.errors import DocumentError, NvmlError
from nvct.host.gpu.pci import HostDriver
from nvct.host.nvml import messages
from nvct.host.roots import Roots

TYPE_CHECKING = False
if TYPE_CHECKING:
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
        ("a b: c", "'a b' is no key of a label"),
        ("a: b c", "'b c' is no value of label a"),
        ("a: [1]", r"\[1\] is no value of label a"),
        ("a:", "None is no value of label a"),
        ('a: "@b c"', "'@b c' is no value of label a"),
        ("kubernetes.io/hostname: x", "is of a domain that is Kubernetes's own"),
        ("node-role.kubernetes.io/gpu: x", "is of a domain that is Kubernetes's own"),
        ("topology.k8s.io/rack: x", "is of a domain that is Kubernetes's own"),
        ("- a", "is no table"),
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
