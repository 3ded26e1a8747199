# SPDX-License-Identifier: Apache-2.0
"""The cases of the demonstration: ways to request GPUs, and the expected results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nvct.host.model import Gpu

DEVICE_LIST = "/var/run/nvidia-container-devices"


@dataclass(frozen=True, kw_only=True)
class Case:
    """One container.

    Attributes:
        title: short name of the case.
        request: the request, for display.
        expected: UUIDs that nvidia-smi -L must list, None if there must be no driver.
        by_name: whether the request is a CDI name, resolved from spec files and not the host.
        error: a word of the expected error message, "" if the create must succeed.
    """

    title: str
    request: str
    env: Sequence[str] = ()
    mounts: Sequence[Mapping[str, Any]] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    expected: Sequence[str] | None = ()
    error: str = ""
    by_name: bool = False


def first_of_each_plan(all_cases: Sequence[Case]) -> list[Case]:
    """Return the first case for each of the two plans: without and with a CDI name."""
    with_devices = [case for case in all_cases if case.expected]
    return [
        next(case for case in with_devices if case.by_name is by_name) for by_name in (False, True)
    ]


def _env(value: str) -> dict[str, Any]:
    variable = f"NVIDIA_VISIBLE_DEVICES={value}"
    return {"request": variable, "env": [variable]}


def cases(gpus: Sequence[Gpu]) -> list[Case]:
    """Return the cases for a node of eight GPUs, one of them in MIG mode if it has NVML."""
    whole = {gpu.index: gpu.uuid for gpu in gpus if not gpu.mig_enabled}
    mig = [(gpu.index, device) for gpu in gpus for device in gpu.mig]
    everything = [*whole.values(), *(device.uuid for _index, device in mig)]
    null = {"type": "bind", "source": "/dev/null", "options": ["bind", "ro"]}
    listed = [{**null, "destination": f"{DEVICE_LIST}/{index}"} for index in (4, 5)]
    mig_cases = [
        Case(title="a MIG device", **_env(f"{parent}:{device.index}"), expected=[device.uuid])
        for parent, device in mig[2:3]
    ]
    return [
        Case(title="no request", request="nothing", expected=None),
        Case(title="two by index", **_env("0,1"), expected=[whole[0], whole[1]]),
        Case(title="by UUID", **_env(whole[6]), expected=[whole[6]]),
        *mig_cases,
        Case(title="all", **_env("all"), expected=everything),
        Case(
            title="a list of volume mounts",
            request=f"{DEVICE_LIST}/{{4,5}}",
            mounts=listed,
            expected=[whole[4], whole[5]],
        ),
        Case(
            title="a CDI name",
            request="cdi.k8s.io/demo: nvidia.com/gpu=7",
            annotations={"cdi.k8s.io/demo": "nvidia.com/gpu=7"},
            expected=[whole[7]],
            by_name=True,
        ),
        Case(title="a typo", **_env("gpu0"), expected=None, error="gpu0"),
    ]
