# SPDX-License-Identifier: Apache-2.0
"""Samples → text: names, label order and numbers as dcgm-exporter writes them."""

from pathlib import Path
from typing import Any

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families as parse

from nvct.agent.dra.journal import Entry, Journal, Prepared
from nvct.agent.exporter import counters, series
from nvct.agent.exporter.history import History
from nvct.agent.exporter.pods import NEW, labels
from nvct.agent.exporter.settings import Settings
from nvct.agent.kubelet.pod_resources import JOURNAL, Claim, Holding, claimed
from nvct.agent.web import exposition
from nvct.host.nvml.sample_model import VALUES, GpuSample, MigSample, NvmlSamples, XidCount

DEFAULT, _ = counters.read(str(counters.DEFAULT))
UUID = "GPU-818582cb-4611-5e40-88a8-507864c634eb"
MIG_UUID = "MIG-11111111-4611-5e40-88a8-507864c634eb"
NOW = 1_800_000_000.0
PROFILING = "GPUs before Hopper need DCGM's profiling module"


def gpu(index: int = 0, **changes: Any) -> GpuSample:
    fields_of: dict[str, Any] = {
        "index": index, "minor": index, "uuid": UUID[:-1] + str(index),
        "bus_id": "00000000:1B:00.0", "name": "NVIDIA A100-SXM4-40GB",
        "values": {"sm_clock": 1410, "power": 68123, "memory_used": 5 << 20},
        "errors": {"tensor_active": PROFILING},
    }  # fmt: skip
    return GpuSample(**{**fields_of, **changes})


def mig(gi: int = 7, **values: float) -> MigSample:
    return MigSample(uuid=MIG_UUID, gi=gi, ci=0, profile="1g.5gb", values=values)


def text(*gpus: GpuSample, history: History | None = None, **settings: Any) -> str:
    samples = NvmlSamples(driver_version="580.1", gpus=gpus)
    chosen = settings.pop("counters", DEFAULT)
    pods = settings.pop("pods", {})
    view = series.View(samples, history or History(), Settings(**settings), pods, NOW)
    return exposition.text(series.families(view, chosen))


def twice(*gpus: GpuSample) -> History:
    """Return the history of two equal samples."""
    history = History()
    for at in (NOW - 1, NOW):
        history.add(NvmlSamples(gpus=gpus), at, 300)
    return history


def read(text: str) -> dict[str, Metric]:
    return {family.name: family for family in parse(text)}


def test_a_line_is_as_dcgm_exporter_writes_it() -> None:
    written = text(gpu(), hostname="node-1").splitlines()

    start = (
        f'gpu="0",UUID="{UUID[:-1]}0",pci_bus_id="00000000:1B:00.0",device="nvidia0",'
        'modelName="NVIDIA A100-SXM4-40GB",Hostname="node-1",DCGM_FI_DRIVER_VERSION="580.1"'
    )
    assert written[:3] == [
        "# HELP DCGM_FI_DEV_SM_CLOCK SM clock frequency (in MHz).",
        "# TYPE DCGM_FI_DEV_SM_CLOCK gauge",
        f"DCGM_FI_DEV_SM_CLOCK{{{start}}} 1410",
    ]
    assert f"DCGM_FI_DEV_POWER_USAGE{{{start}}} 68.123000" in written
    assert f"DCGM_FI_DEV_FB_USED{{{start}}} 5" in written
    assert f'DCGM_FI_DEV_XID_ERRORS{{{start},err_code="0",err_msg="No Error"}} 0' in written


def of_file(tmp_path: Path, *lines: str) -> tuple[counters.Counter, ...]:
    path = tmp_path / "counters.csv"
    path.write_text("".join(f"{line}\n" for line in lines))
    found, warnings = counters.read(str(path))
    assert warnings == []
    return found


def test_nvlink_bandwidth_is_a_rate_as_dcgm_computes_it(tmp_path: Path) -> None:
    chosen = of_file(tmp_path, *(
        f"DCGM_FI_DEV_NVLINK_{way}BANDWIDTH_TOTAL, counter, B" for way in ("", "TX_", "RX_")
    ))  # fmt: skip
    history = History()
    first = gpu(values={"nvlink_tx": 9_000_000, "nvlink_rx": 50_000})
    history.add(NvmlSamples(gpus=(first,)), NOW - 10, 300)
    of_first = read(text(first, history=history, counters=chosen))
    second = gpu(values={"nvlink_tx": 9_400_000, "nvlink_rx": 69_990})
    history.add(NvmlSamples(gpus=(second,)), NOW, 300)
    of_second = read(text(second, history=history, counters=chosen))
    anew = gpu(values={"nvlink_tx": 5, "nvlink_rx": 5})
    history.add(NvmlSamples(gpus=(anew,)), NOW + 10, 300)

    assert list(of_first) == ["nvct_metric_unavailable"]
    assert [family.samples[0].value for family in of_second.values()] == [41, 40, 1]
    assert list(read(text(anew, history=history, counters=chosen))) == ["nvct_metric_unavailable"]


def test_fields_of_other_peoples_counter_files(tmp_path: Path) -> None:
    values = {
        "power_limit": 700_000, "power_limit_enforced": 650_500, "performance_state": 0,
        "gpu_count": 8, "cuda_driver": 13000, "memory_total": 80 << 30,
        "memory_reserved": 16 << 30, "memory_used": 16 << 30, "gpm_nvlink_tx": 5e9,
    }  # fmt: skip
    chosen = of_file(
        tmp_path,
        "DCGM_FI_DEV_POWER_MGMT_LIMIT, gauge, L",
        "DCGM_FI_DEV_ENFORCED_POWER_LIMIT, gauge, L",
        "DCGM_FI_DEV_PSTATE, gauge, P",
        "DCGM_FI_DEV_COUNT, gauge, C",
        "DCGM_FI_DEV_FB_USED_PERCENT, gauge, U",
        "DCGM_FI_PROF_NVLINK_TX_BYTES, gauge, B",
        "DCGM_FI_CUDA_DRIVER_VERSION, label, C",
        "DCGM_FI_DEV_BRAND, label, B",
    )

    written = text(gpu(values=values, brand="14"), counters=chosen)

    labels = 'DCGM_FI_CUDA_DRIVER_VERSION="13000",DCGM_FI_DEV_BRAND="NVIDIA"'
    shown = [line.partition(labels)[2] for line in written.splitlines() if labels in line]
    assert shown == ["} 700.000000", "} 650.500000", "} 0", "} 8", "} 0.250000", "} 5000000000"]


@pytest.mark.parametrize(
    ("xid", "message"),
    [(140, "Unrecovered ECC Error"), (119, "GSP RPC Timeout"), (173, "Unknown Error")],
)
def test_an_xid_has_nvidias_text(xid: int, message: str) -> None:
    history, failed = History(), gpu(xids=(XidCount(xid=xid, count=1, at=5.0),))
    history.add(NvmlSamples(gpus=(failed,)), NOW, 300)

    families = read(text(failed, history=history))

    (sample,) = families["DCGM_FI_DEV_XID_ERRORS"].samples
    assert (sample.value, sample.labels["err_msg"]) == (xid, message)


def test_the_nodes_label_can_have_the_name_of_dcgm_exporters_main_branch() -> None:
    written = text(gpu(), hostname="node-1", hostname_label="hostname")

    assert 'modelName="NVIDIA A100-SXM4-40GB",hostname="node-1",' in written
    assert "Hostname" not in written
    samples = NvmlSamples(gpus=(gpu(),))
    holding = {(f"{UUID[:-1]}0", -1): [{"pod": "p"}]}
    (own,) = series.holders(samples, holding, "node-1").samples
    assert own.labels["Hostname"] == own.labels["hostname"] == "node-1"


def test_what_has_no_value_is_named_and_not_invented() -> None:
    families = read(text(gpu(), gpu(1)))

    assert "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE" not in families
    reasons = {
        sample.labels["metric"]: (sample.labels["reason"], sample.value)
        for sample in families["nvct_metric_unavailable"].samples
    }
    assert reasons["DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"] == (PROFILING, 2)
    assert reasons["DCGM_FI_DEV_VGPU_LICENSE_STATUS"][1] == 2
    shown = {counter.name for counter in DEFAULT if counter.kind != "label"}
    assert set(families) | set(reasons) == shown | {"nvct_metric_unavailable"}


@pytest.mark.parametrize(
    ("devices", "expected"),
    [("f", [("0", "7"), ("1", None)]), ("g", [("0", None), ("1", None)]), ("i", [("0", "7")])],
)
def test_instances_stand_for_their_gpu(
    devices: str, expected: list[tuple[str, str | None]]
) -> None:
    busy = {"sm_clock": 1410, "gpu_utilization": 90, "memory_used": 9 << 20}
    split = gpu(0, values=busy, mig=(mig(memory_used=2 << 20),))

    families = read(text(split, gpu(1), devices=devices))

    rows = families["DCGM_FI_DEV_SM_CLOCK"].samples
    assert [(row.labels["gpu"], row.labels.get("GPU_I_ID")) for row in rows] == expected
    used = families["DCGM_FI_DEV_FB_USED"].samples[0].value
    assert used == (9 if devices == "g" else 2)
    assert ("DCGM_FI_DEV_GPU_UTIL" in families) is (devices == "g")


def test_the_old_namespace_has_the_old_names() -> None:
    old = tuple(counters.Counter(name, "gauge", "H.", field)
                for name, field in counters.VERSION_1.items())  # fmt: skip

    families = read(text(gpu(), counters=old, old_namespace=True))

    assert families["dcgm_sm_clock"].samples[0].labels["uuid"] == f"{UUID[:-1]}0"


def test_a_pod_is_found_by_each_form_of_its_device() -> None:
    samples = NvmlSamples(gpus=(gpu(mig=(mig(),)), gpu(1), gpu(2)))
    first, second = samples.gpus[0].uuid, samples.gpus[1].uuid
    forms = {
        MIG_UUID: (first, 7), "nvidia0/gi7": (first, 7), f"{MIG_UUID}::3": (first, 7),
        second: (second, -1), f"{second}::0": (second, -1), f"{second}::": (second, -1), "nvidia1": (second, -1),
        "nvidia1/vgpu2": (second, -1), "nvidia0/gi7/vgpu0": (first, 7), "1": (second, -1),
    }  # fmt: skip
    for id_, key in forms.items():
        held = (Holding("ns", "pod", "main", "nvidia.com/gpu", (id_,)),)
        pods = labels(held, samples, NEW, lambda _name: True)
        assert pods == {key: [{"container": "main", "namespace": "ns", "pod": "pod"}]}, id_
    unknown = (Holding("ns", "pod", "main", "nvidia.com/gpu", ("GPU-other",)),)
    assert labels(unknown, samples, NEW, lambda _name: True) == {}


def test_a_pod_is_found_by_its_claim_and_the_claim_is_shown_on_demand() -> None:
    samples = NvmlSamples(gpus=(gpu(0, minor=5), gpu(1, minor=0)))
    claim = Claim("single", "ns", "node-1")
    held = (Holding("ns", "pod", "main", "gpu.nvidia.com", ("gpu-0",), claim),)
    key, pod = (samples.gpus[1].uuid, -1), {"container": "main", "namespace": "ns", "pod": "pod"}

    assert labels(held, samples, NEW, lambda _name: True) == {key: [pod]}
    of_claim = {
        "dra_claim_name": "single", "dra_claim_namespace": "ns", "dra_pool_name": "node-1",
        "dra_driver_name": "gpu.nvidia.com", "dra_device_name": "gpu-0",
    }  # fmt: skip
    assert labels(held, samples, NEW, lambda _name: True, claims=True) == {key: [pod | of_claim]}


def test_a_mig_device_of_a_claim_is_found_in_the_drivers_journal(tmp_path: Path) -> None:
    samples = NvmlSamples(gpus=(gpu(mig=(mig(),)),))
    entry = Entry(device="gpu-0-mig-a", uuid=MIG_UUID, gpu=samples.gpus[0].uuid, requests=("r",))
    journal = Journal(str(tmp_path))
    journal.save({"u": Prepared(namespace="ns", name="half", uid="u", entries=(entry,))})
    claim = Claim("half", "ns", "node-1")
    held = (Holding("ns", "pod", "main", "gpu.nvidia.com", ("gpu-0-mig-a",), claim),)

    found = labels(
        held, samples, NEW, lambda _name: True, claims=True, claimed=claimed(journal.path)
    )

    ((key, (pod,)),) = found.items()
    assert key == (samples.gpus[0].uuid, 7)
    assert (pod["pod"], pod["dra_mig_profile"]) == ("pod", "1g.5gb")
    assert pod["dra_mig_device_uuid"] == MIG_UUID
    assert journal.path.endswith(JOURNAL.rpartition("/")[2])


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"claims": [1]}', '{"claims": [{"name": 1}]}'])
def test_a_malformed_journal_has_no_devices(text: str, tmp_path: Path) -> None:
    (tmp_path / "journal").write_text(text)

    assert claimed(str(tmp_path / "journal")) == claimed(str(tmp_path / "none")) == {}


def test_labels_of_a_pod_follow_in_alphabetical_order() -> None:
    pods = {(f"{UUID[:-1]}0", -1): [{"container": "main", "namespace": "ns", "pod": "train"}]}

    line = text(gpu(), pods=pods).splitlines()[2]

    assert line.endswith(
        'DCGM_FI_DRIVER_VERSION="580.1",container="main",namespace="ns",pod="train"} 1410'
    )


def test_a_shared_gpu_has_no_pod_unless_each_is_asked_for() -> None:
    samples = NvmlSamples(gpus=(gpu(),))
    uuid = samples.gpus[0].uuid
    held = tuple(
        Holding("ns", pod, "main", "nvidia.com/gpu.shared", (f"{uuid}::{number}",))
        for number, pod in enumerate(("one", "two"))
    )

    assert labels(held, samples, NEW, lambda _name: True) == {}
    each = labels(held, samples, NEW, lambda _name: True, virtual=True)
    assert [(pod["pod"], pod["vgpu"]) for pod in each[uuid, -1]] == [("one", "0"), ("two", "1")]
    alone = labels(held[:1], samples, NEW, lambda _name: True)
    assert alone[uuid, -1][0]["pod"] == "one"


def test_each_holder_of_a_device_is_told() -> None:
    samples = NvmlSamples(gpus=(gpu(), gpu(1, mig=(mig(),))))
    ids = (f"{samples.gpus[0].uuid}::0", f"{samples.gpus[0].uuid}::1", MIG_UUID)
    held = tuple(
        Holding("ns", f"pod-{number}", "main", "nvidia.com/gpu.shared", (id_,))
        for number, id_ in enumerate(ids)
    )
    pods = labels(held, samples, NEW, lambda _name: True, virtual=True)

    family = series.holders(samples, pods, "node-1")

    rows = [(s.labels["gpu"], s.labels.get("GPU_I_ID"), s.labels["pod"]) for s in family.samples]
    assert rows == [("0", None, "pod-0"), ("0", None, "pod-1"), ("1", "7", "pod-2")]
    assert all(sample.value == 1 and len(sample.labels) <= 8 for sample in family.samples)


def xid(number: int, count: int, at: float, gi: int = -1) -> XidCount:
    return XidCount(xid=number, count=count, at=at, gi=gi)


def test_xids_are_counted_across_watches_and_in_a_window() -> None:
    history = History()
    for now, watch, count in ((0, 1, 1), (10, 1, 3), (400, 2, 1)):
        sampled = gpu(xids=(xid(79, count, NOW + now),))
        history.add(NvmlSamples(watch_start=watch, gpus=(sampled,)), NOW + now, 600)

    uuid = gpu().uuid
    assert history.xids[uuid, -1][79] == (4, NOW + 400)
    assert history.last_xid(uuid, -1) == history.last_xid(uuid, 7) == 79
    assert history.xids_since(NOW + 5, uuid, -1) == {79: 3}
    assert history.xids_since(NOW + 300, uuid, -1) == {79: 1}
    history = History()
    sampled = gpu(xids=(xid(43, 1, NOW, gi=7),))
    history.add(NvmlSamples(watch_start=1, gpus=(sampled,)), NOW, 600)
    assert (history.last_xid(uuid, 7), history.last_xid(uuid, 8)) == (43, 0)


def test_clock_events_are_counted_in_a_window() -> None:
    history = History()
    for second, bits in ((0, 0x40), (60, 0x48), (120, 0)):
        sampled = gpu(values={"clock_event_reasons": bits})
        history.add(NvmlSamples(gpus=(sampled,)), NOW + second, 100)

    counted = history.clock_events_since(NOW, gpu().uuid)

    assert counted == {"hw_slowdown": 1, "hw_thermal": 1}  # the first sample is forgotten


def test_every_field_is_a_value_of_a_sample() -> None:
    assert {field.value for field in counters.FIELDS.values()} <= {*VALUES, "memory_used_ratio"}
    assert not any(counters.why_not(name, is_label=False) for name in counters.VERSION_1.values())


def test_a_field_that_nvct_does_not_read_is_counted_with_its_reason() -> None:
    unread = (
        counters.Counter("DCGM_FI_DEV_HEAT", "gauge", "H.", "DCGM_FI_DEV_HEAT", "not read"),
        counters.Counter("DCGM_FI_DEV_MOOD", "label", "M.", "DCGM_FI_DEV_MOOD", "not read"),
    )
    families = read(text(gpu(), gpu(1), counters=(*DEFAULT, *unread)))

    rows = families["nvct_metric_unavailable"].samples
    counts = {
        row.labels["metric"]: row.value for row in rows if row.labels["reason"] == "not read"
    }
    assert counts == {"DCGM_FI_DEV_HEAT": 2, "DCGM_FI_DEV_MOOD": 2}
    assert "DCGM_FI_DEV_HEAT" not in families


def test_labels_of_a_counter_file_are_written_as_nvidias_exporter_writes_them() -> None:
    names = ("DCGM_FI_DEV_NAME", "DCGM_FI_DEV_MINOR_NUMBER", "DCGM_FI_DEV_PCI_BUSID")
    labels = tuple(counters.Counter(name, "label", "L.", name) for name in names)
    plain = gpu(3, minor=4)

    families = read(text(plain, counters=(*DEFAULT, *labels)))

    found = families["DCGM_FI_DEV_SM_CLOCK"].samples[0].labels
    assert [found[name] for name in names] == [plain.name, "4", plain.bus_id]


def test_the_number_of_labels_is_bounded() -> None:
    pods = {(f"{UUID[:-1]}0", 7): [{"container": "m", "namespace": "n", "pod": "p"}]}
    for family in parse(text(gpu(mig=(mig(),)), pods=pods, hostname="h")):
        for sample in family.samples:
            plain = set(sample.labels) - {"err_code", "err_msg"}
            assert len(plain) <= 12, sample


def test_the_number_of_series_of_a_device_is_bounded() -> None:
    full = gpu(values=dict.fromkeys(VALUES, 1.0), errors={})
    of_each = tuple(mig(gi, **dict.fromkeys(VALUES, 1.0)) for gi in range(7, 14))
    split = gpu(1, values=full.values, mig=of_each)
    counted = len(DEFAULT) - 2  # without the driver's version, a label, and the vGPU license

    history = twice(full, split)

    written = text(full, split, history=history).splitlines()
    lines = [line for line in written if "UUID=" in line]

    assert len([line for line in lines if 'gpu="0"' in line]) == counted
    assert len([line for line in lines if 'gpu="1"' in line]) == 7 * counted
