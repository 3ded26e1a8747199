# SPDX-License-Identifier: Apache-2.0
"""Reads which batch job has which GPU, from a folder that the scheduler's prolog writes.

A file is named by a GPU's index, or by GPU and GPU instance as 0.7, and has a job in each line:
the format of dcgm-exporter (`--hpc-job-mapping-dir`). Other files are ignored, and so are links:
the folder may be another user's, who could show any file of root's in metrics.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from os import stat_result

from nvct.agent.exporter.series import Pods
from nvct.errors import DocumentError, NvctError
from nvct.host.nvml.sample_model import NvmlSamples
from nvct.linux.files import read_bytes

NAME = re.compile(r"\d+(\.\d+)?")
LIMIT = 1 << 20
"""Bytes of a file; a larger one is left out."""
JOBS = 64
"""Of one device; each of them has a series of every metric."""
LABEL = "hpc_job"


def read(folder: str) -> tuple[dict[str, list[str]], str]:
    """Return the jobs by the names of files, and why some or all are missing or ""."""
    try:
        names = sorted(filter(NAME.fullmatch, os.listdir(folder)))
    except OSError as error:
        return {}, f"metrics have no jobs: {error.filename}: {error.strerror}"
    jobs, problem = {}, ""
    for name in names:
        path = os.path.join(folder, name)
        try:
            data = read_bytes(path, LIMIT, check=_refuse_link)
        except FileNotFoundError:
            continue  # its job has just ended
        except OSError as error:
            problem = f"metrics lack jobs: {path}: {error.strerror}"
        except NvctError as error:
            problem = f"metrics lack jobs: {error.message}"
        else:
            lines = map(str.strip, data.decode(errors="replace").splitlines())
            jobs[name] = list(dict.fromkeys(filter(None, lines)))[:JOBS]
    return jobs, problem


def _refuse_link(path: str, opened: stat_result) -> None:
    if not os.path.samestat(os.lstat(path), opened):
        raise DocumentError(f"{path} is a link")


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
