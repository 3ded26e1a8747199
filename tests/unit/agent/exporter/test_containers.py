# SPDX-License-Identifier: Apache-2.0
"""Whose a GPU is: containers by cgroup, their part of a shared GPU, and batch jobs."""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse

from nvct.agent.exporter import pods, series, usage
from nvct.agent.exporter.history import History
from nvct.agent.exporter.settings import Settings
from nvct.agent.web import exposition
from nvct.doctor.containers import Containers
from nvct.host.gpu_record import Holding, Record
from nvct.host.nvml.sample_model import GpuSample, NvmlSamples, ProcessSample
from tests.unit.agent.exporter.test_series import DEFAULT, NOW, gpu, mig

A, B = "a" * 64, "0123456789ab" + "b" * 52
UID = "pod1b5e5b0c_1b5c_4d7e_9a5e_0d7d4b5c6d7e"
KUBEPODS = "0::/kubepods.slice/kubepods-besteffort.slice"
POD = {"container": "main", "namespace": "ml", "pod": "train"}


def host(tmp_path: Path, pid: int, cgroup: str) -> Containers:
    (tmp_path / f"proc/{pid}").mkdir(parents=True, exist_ok=True)
    (tmp_path / f"proc/{pid}/cgroup").write_text(cgroup)
    containers = Containers(str(tmp_path))
    containers.refresh()
    return containers


def kubelet_link(tmp_path: Path, id_: str) -> None:
    folder = tmp_path / "var/log/containers"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"train_ml_main-{id_}.log").symlink_to("/var/log/pods/0.log")


@pytest.mark.parametrize(
    "cgroup",
    [
        f"{KUBEPODS}/kubepods-besteffort-{UID}.slice/cri-containerd-{A}.scope\n",
        f"{KUBEPODS}/kubepods-besteffort-{UID}.slice/crio-{A}.scope/container\n",
        f"0::/../../kubepods-{UID}.slice/cri-containerd-{A}.scope\n",
        f"12:cpuset:/kubepods/burstable/{UID}/{A}\n11:devices:/kubepods/burstable/{UID}/{A}\n0::/\n",
        f"0::/system.slice/containerd.service/kubepods-{UID}.slice:cri-containerd:{A}\n",
        f"0::/docker/{B}/kubelet.slice/kubepods-{UID}.slice/cri-containerd-{A}.scope\n",
    ],
)
def test_a_pod_is_found_by_each_form_of_a_cgroup(cgroup: str, tmp_path: Path) -> None:
    kubelet_link(tmp_path, A)

    assert host(tmp_path, 7, cgroup).labels(7) == POD


@pytest.mark.parametrize(
    ("config", "data"),
    [
        (None, "var/lib/docker"),
        ('{"data-root": "/data/docker"}', "data/docker"),
        ('{"data-root": 7}', "var/lib/docker"),
        ("{", "var/lib/docker"),
    ],
)
def test_docker_names_its_containers(config: str | None, data: str, tmp_path: Path) -> None:
    if config is not None:
        (tmp_path / "etc/docker").mkdir(parents=True)
        (tmp_path / "etc/docker/daemon.json").write_text(config)
    folder = tmp_path / f"{data}/containers/{A}"
    folder.mkdir(parents=True)
    (folder / "config.v2.json").write_text(json.dumps({"ID": A, "Name": "/train"}))

    containers = host(tmp_path, 7, f"0::/system.slice/docker-{A}.scope\n")

    assert containers.labels(7) == {"container": "train"}


def test_podman_names_its_containers_and_new_ones(tmp_path: Path) -> None:
    path = tmp_path / "var/lib/containers/storage/overlay-containers/containers.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps([{"id": A, "names": ["train"]}, {"id": B}]))
    containers = host(tmp_path, 7, f"0::/machine.slice/libpod-{A}.scope/container\n")
    assert containers.labels(7) == {"container": "train"}

    path.write_text(json.dumps([{"id": A, "names": ["train-again"]}]))
    containers.refresh()

    assert containers.labels(7) == {"container": "train-again"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"0::/system.slice/docker-{B}.scope\n", {"container": B[:12]}),
        ("0::/user.slice/user-1000.slice/session-1.scope\n", {}),
        (f"0::/system.slice/{A}{A}.scope\n", {}),
        ("", {}),
    ],
)
def test_what_nobody_names(text: str, expected: dict[str, str], tmp_path: Path) -> None:
    containers = host(tmp_path, 7, text)

    assert containers.labels(7) == expected
    assert containers.labels(8) == {}, "it has ended"


@pytest.mark.parametrize("text", ["", "{", "[]", "[1]", '{"Name": 1}', '[{"id": 1, "names": 2}]'])
def test_malformed_state_of_engines_is_no_name(text: str, tmp_path: Path) -> None:
    for path in (
        f"var/lib/docker/containers/{A}/config.v2.json",
        "var/lib/containers/storage/overlay-containers/containers.json",
    ):
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_text(text)

    assert host(tmp_path, 7, f"0::/docker-{A}.scope\n").labels(7) == {"container": A[:12]}


def process(pid: int, memory: int | None, sm: int | None = None, gi: int = -1) -> ProcessSample:
    return ProcessSample(pid=pid, memory=memory, sm=sm, gi=gi)


SHARED = gpu(
    processes=(
        process(1, 3 << 30, 20),
        process(2, 1 << 30, 5),
        process(3, 2 << 30, 30),
        process(4, None),
    ),
    values={"gpu_utilization": 60, "memory_used": 7 << 30},
)
HOLDERS = {
    1: POD, 2: POD, 3: {"container": "main", "namespace": "ml", "pod": "other"},
}  # fmt: skip


def rows(text: str, name: str) -> dict[str, float]:
    """Return the values of a metric by label pod."""
    return {
        sample.labels.get("pod", ""): sample.value
        for family in parse(text)
        for sample in family.samples
        if sample.name == name
    }


def shared_by(one: GpuSample, holders: Mapping[int, dict[str, str]], *names: str) -> str:
    """Return the metrics of a GPU that pods share, whose processes are those of holders."""
    samples = NvmlSamples(gpus=(one,))
    found = usage.usages(samples, lambda pid: holders.get(pid, {}))
    shares = {(one.uuid, -1): [{**POD, "pod": name, "vgpu": name} for name in names]}
    view = series.View(samples, History(), Settings(virtual_gpus=True), shares, NOW, found)
    return exposition.text(series.families(view, DEFAULT))


def test_processes_of_a_container_are_added_up() -> None:
    found = usage.usages(NvmlSamples(gpus=(SHARED,)), lambda pid: HOLDERS.get(pid, {}))

    text = exposition.text(usage.families(found, "node-1"))

    assert rows(text, "nvct_container_gpu_memory_used_bytes") == {
        "train": 4 << 30,
        "other": 2 << 30,
    }
    assert rows(text, "nvct_container_gpu_utilization_ratio") == {"train": 0.25, "other": 0.3}
    assert rows(text, "nvct_container_gpu_processes") == {"train": 2, "other": 1, "": 1}
    assert (
        f'{{Hostname="node-1",hostname="node-1",gpu="0",UUID="{SHARED.uuid}",container="main"'
        in text
    )


def test_a_process_of_an_instance_is_shown_with_it() -> None:
    split = gpu(mig=(mig(),), processes=(process(1, 5, gi=7),))

    found = usage.usages(NvmlSamples(gpus=(split,)), lambda _pid: {"container": "docker-one"})

    (line,) = [x for x in exposition.text(usage.families(found, "")).splitlines() if "bytes{" in x]
    assert line.endswith('GPU_I_ID="7",container="docker-one"} 5')


def test_pods_that_share_a_gpu_have_their_part_and_the_gpu_its_whole() -> None:
    text = shared_by(SHARED, HOLDERS, "train", "other", "idle")
    assert rows(text, "DCGM_FI_DEV_GPU_UTIL") == {"": 60, "train": 25, "other": 30, "idle": 0}
    assert rows(text, "DCGM_FI_DEV_FB_USED") == {"": 7168, "train": 4096, "other": 2048, "idle": 0}
    assert set(rows(text, "DCGM_FI_DEV_XID_ERRORS")) == {"train", "other", "idle"}


@pytest.mark.parametrize(
    ("used", "sm", "expected"),
    [(60, 40, {"": 60, "train": 40, "idle": 0}), (0, None, {"": 0, "train": 0, "idle": 0}),
     (60, None, {"": 60})],
    ids=["one works", "none works", "not reported"],
)  # fmt: skip
def test_a_process_without_a_time_is_idle_if_others_have_one(
    used: int, sm: int | None, expected: dict[str, float]
) -> None:
    holders = {1: POD, 2: {**POD, "pod": "idle"}}
    one = gpu(processes=(process(1, 1, sm), process(2, 1)), values={"gpu_utilization": used})
    text = shared_by(one, holders, "train", "idle")
    assert rows(text, "DCGM_FI_DEV_GPU_UTIL") == expected


@pytest.mark.parametrize(
    ("holders", "memory", "expected"),
    [
        ({1: {"container": A[:12]}, 3: POD}, 5 << 30, {"": 7168, "train": 5120}),
        ({1: {"container": A[:12]}}, 5 << 30, {"": 7168}),
        ({}, 5 << 30, {"": 7168}),
        ({3: POD}, None, {"": 7168, "idle": 0}),
    ],
    ids=["of an unnamed container", "without the kubelet's names", "in no container", "unknown"],
)
def test_the_part_of_a_pod_that_is_not_known_is_not_zero(
    holders: Mapping[int, dict[str, str]], memory: int | None, expected: dict[str, float]
) -> None:
    """Its processes may be those whose pod, or whose memory, nobody tells."""
    one = gpu(processes=(process(1, 2 << 30), process(3, memory)), values={"memory_used": 7 << 30})
    text = shared_by(one, holders, "train", "idle")
    assert rows(text, "DCGM_FI_DEV_FB_USED") == expected


@pytest.mark.parametrize(
    "cgroup",
    [
        f"0::/user.slice/user-1000.slice/user@1000.service/app.slice/docker-{A}.scope\n",
        f"0::/user.slice/user-1000.slice/docker-{A}.scope\n",
    ],
)
def test_a_user_cannot_take_the_name_of_a_pod(cgroup: str, tmp_path: Path) -> None:
    kubelet_link(tmp_path, A)

    assert host(tmp_path, 7, cgroup).labels(7) == {"container": A[:12]}


def test_a_container_cannot_take_the_name_of_another_pod(tmp_path: Path) -> None:
    kubelet_link(tmp_path, A)
    (tmp_path / f"var/log/containers/other_team_main-{B}.log").touch()
    inside = f"{KUBEPODS}/kubepods-{UID}.slice/cri-containerd-{A}.scope/docker-{B}.scope\n"

    assert host(tmp_path, 7, inside).labels(7) == POD


# Batch jobs of GPUs and GPU instances, from the files of dcgm-exporter's format.


def link(path: Path) -> None:
    path.symlink_to("0")


def large(path: Path) -> None:
    path.write_bytes(b"7\n" * pods.JOBS_LIMIT)


def test_files_of_gpus_and_instances_are_read_and_others_are_not(tmp_path: Path) -> None:
    files = {"0": "7\n\n7\n8\n", "1.7": "9", "1.7.tmp": "no", "gpu": "no", "3": "", "4": "\xff"}
    for name, text in files.items():
        (tmp_path / name).write_bytes(text.encode("latin-1"))

    found, problem = pods.read_jobs(str(tmp_path))

    assert (found, problem) == ({"0": ["7", "8"], "1.7": ["9"], "3": [], "4": ["\ufffd"]}, "")


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    found, problem = pods.read_jobs(str(tmp_path / "none"))

    assert found == {}
    assert problem == f"metrics have no jobs: {tmp_path}/none: No such file or directory"


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (os.mkdir, "is not a regular file"),
        (os.mkfifo, "is not a regular file"),
        (link, "is a link"),
        (large, f"is larger than {pods.JOBS_LIMIT} bytes"),
    ],
)
def test_a_file_that_is_none_leaves_the_jobs_of_other_gpus(
    make: Callable[[Path], None], why: str, tmp_path: Path
) -> None:
    (tmp_path / "0").write_text("7")
    (tmp_path / "2").write_text("8")
    make(tmp_path / "1")

    found, problem = pods.read_jobs(str(tmp_path))

    assert found == {"0": ["7"], "2": ["8"]}
    assert problem == f"metrics lack jobs: {tmp_path}/1 {why}"


def test_a_file_that_has_just_gone_is_no_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "2").write_text("8")
    monkeypatch.setattr(os, "listdir", lambda _folder: ["1", "2"])

    assert pods.read_jobs(str(tmp_path)) == ({"2": ["8"]}, "")


def test_the_jobs_of_a_device_are_bounded(tmp_path: Path) -> None:
    (tmp_path / "0").write_text("".join(f"{number}\n" for number in range(100_000)))

    assert len(pods.read_jobs(str(tmp_path))[0]["0"]) == pods.JOBS


def test_each_pod_and_job_of_a_device_has_series() -> None:
    samples = NvmlSamples(gpus=(gpu(), gpu(1, mig=(mig(),)), gpu(2)))
    whole, split, other = (each.uuid for each in samples.gpus)
    pod = {"pod": "a"}

    labels = pods.with_jobs(
        {(split, 7): [pod], (other, -1): [pod]}, samples, {"0": ["1", "2"], "1.7": ["3"], "2": []}
    )

    assert labels == {
        (whole, -1): [{"hpc_job": "1"}, {"hpc_job": "2"}],
        (split, 7): [{"pod": "a", "hpc_job": "3"}],
        (other, -1): [pod],
    }


def test_since_when_a_container_has_a_gpu_where_the_nri_plugin_records_it() -> None:
    holding = Holding(
        id=A, since=12.5, devices=("GPU-0", "GPU-1"), numbers=((195, 0), (195, 1)), **POD
    )
    old = replace(holding, since=0.0, devices=("GPU-2",))
    record = Record(holdings=(holding, old), decisions={"given": 2, "refused": 1})

    families = list(parse(exposition.text(usage.recorded(record))))

    since, decided = families
    assert since.name == "nvct_container_gpu_start_time_seconds"
    assert [(each.labels, each.value) for each in since.samples] == [
        ({"device": "GPU-0", **POD}, 12.5), ({"device": "GPU-1", **POD}, 12.5),
    ]  # fmt: skip
    assert [(each.labels["outcome"], each.value) for each in decided.samples] == [
        ("given", 2), ("refused", 1),
    ]  # fmt: skip
    assert list(usage.recorded(None)) == []
