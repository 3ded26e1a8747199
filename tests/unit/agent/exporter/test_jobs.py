# SPDX-License-Identifier: Apache-2.0
"""Batch jobs of GPUs and GPU instances, from the files of dcgm-exporter's format."""

from __future__ import annotations

import os

import pytest

from nvct.agent.exporter import pods
from nvct.host.nvml.sample_model import NvmlSamples
from tests.unit.agent.exporter.test_series import gpu, mig

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


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
        (os.mkdir, "is no regular file"),
        (os.mkfifo, "is no regular file"),
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
