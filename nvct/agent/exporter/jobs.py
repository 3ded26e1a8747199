# SPDX-License-Identifier: Apache-2.0
"""Reads which batch job has which GPU, from a folder that the scheduler's prolog writes.

A file is named by a GPU's index, or by GPU and GPU instance as 0.7, and has a job in each line:
the format of dcgm-exporter (`--hpc-job-mapping-dir`). Other files are ignored.
"""

from __future__ import annotations

import os
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from nvct.agent.exporter.series import Pods
    from nvct.host.nvml.sample_model import NvmlSamples

NAME = re.compile(r"\d+(\.\d+)?")
LIMIT = 64 << 10
"""Bytes of a file."""
JOBS = 64
"""Of one device; each of them has a series of every metric."""
LABEL = "hpc_job"


def read(folder: str) -> tuple[dict[str, list[str]], str]:
    """Return the jobs by the names of files, and why the folder cannot be read or ""."""
    jobs = {}
    try:
        for name in filter(NAME.fullmatch, os.listdir(folder)):
            with open(os.path.join(folder, name), encoding="utf-8", errors="replace") as file:
                lines = file.read(LIMIT).splitlines()
            jobs[name] = list(dict.fromkeys(line.strip() for line in lines if line.strip()))[:JOBS]
    except OSError as error:
        return {}, f"metrics have no jobs: {error.filename}: {error.strerror}"
    return jobs, ""


def added(pods: Pods, samples: NvmlSamples, jobs: Mapping[str, list[str]]) -> Pods:
    """Return the labels of pods with those of jobs; a device has series for each pair of them."""
    found = {key: list(labels) for key, labels in pods.items()}
    for gpu in samples.gpus:
        names = {(gpu.uuid, -1): str(gpu.index)}
        names |= {(gpu.uuid, mig.gi): f"{gpu.index}.{mig.gi}" for mig in gpu.mig}
        for key, name in names.items():
            if jobs.get(name):
                found[key] = [
                    {**pod, LABEL: job} for pod in found.get(key) or [{}] for job in jobs[name]
                ]
    return found
