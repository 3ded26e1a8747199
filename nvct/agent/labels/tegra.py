# SPDX-License-Identifier: Apache-2.0
"""The facts of a Tegra node: its GPUs as CUDA names them, because there is no NVML.

As in NVIDIA's program, the version of the driver is unknown, and the class of the GPUs too.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys

from nvct.agent.core.waiting import within
from nvct.agent.labels.facts import Facts, GpuFacts
from nvct.agent.labels.passthrough import UNKNOWN_VERSION
from nvct.errors import DriverNotFoundError

PROGRAM = ("-I", "-m", "nvct.agent.labels.cuda_probe")
LIMIT_S = 30.0
KILL_S = 2.0
"""How long a process may live after SIGKILL; one that waits in the kernel does."""


async def facts() -> Facts:
    """Return the facts of the GPUs that CUDA sees from this container.

    Raises:
        DriverNotFoundError: CUDA is not there, or does not answer.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable, *PROGRAM, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        output, _ = await within(LIMIT_S, process.communicate())
    except asyncio.TimeoutError as error:
        process.kill()
        with contextlib.suppress(asyncio.TimeoutError):
            await within(KILL_S, process.wait())
        raise _failure(f"it does not answer within {LIMIT_S:g} s") from error
    return of_probe(output)


def of_probe(output: bytes) -> Facts:
    """Return facts from the output of `cuda_probe`.

    Raises:
        DriverNotFoundError: it has failed.
    """
    try:
        answer = json.loads(output)
        if "error" in answer:
            raise _failure(str(answer["error"]))
        version = int(answer["version"])
        gpus = tuple(
            GpuFacts(
                model=str(gpu["name"]),
                memory_mib=int(gpu["memory_mib"]) or None,
                compute=(int(gpu["compute"][0]), int(gpu["compute"][1])),
            )
            for gpu in answer["gpus"]
        )
    except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        raise _failure("its answer is malformed") from error
    cuda = f"{version // 1000}.{version % 100 // 10}"
    return Facts(driver_version=UNKNOWN_VERSION, cuda_version=cuda, gpus=gpus)


def _failure(reason: str) -> DriverNotFoundError:
    return DriverNotFoundError(
        f"the GPUs of this Tegra machine are unknown: CUDA: {reason}",
        hint="the container needs the runtime nvidia, with NVIDIA_VISIBLE_DEVICES=all",
    )
