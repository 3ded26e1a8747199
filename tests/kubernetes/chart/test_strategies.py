# SPDX-License-Identifier: Apache-2.0
"""The chart with each way of giving GPUs: a pod has those that the kubelet gave it, and no others."""

from dataclasses import replace
from functools import partial

import pytest

from tests.engines.checks import UUID
from tests.engines.releases import FULL
from tests.kubernetes.api import PODS, wait
from tests.kubernetes.chart.lab import (
    CLASSES,
    FARM,
    GPUS,
    ON_ONE,
    TIMEOUT_S,
    allocatable,
    asks,
    gpus_of,
    installed,
    state_of,
)
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.pods import Pod, run_all

pytestmark = [pytest.mark.slow, ON_ONE]
COUNT = "ls /dev | grep -c nvidia"
WAYS = {
    "auto": ("--set=deviceListStrategy=auto",),
    "index": ("--set=deviceListStrategy=envvar", "--set=deviceIDStrategy=index"),
    "mounts": ("--set=deviceListStrategy=volume-mounts",),
}


@pytest.mark.parametrize("way", WAYS if FULL else ["index"])
def test_pods_get_what_they_request_and_no_more(way: str, node: Cluster) -> None:
    """Their authors say `all`, with each RuntimeClass and without one."""
    with installed(node, *FARM, *WAYS[way]):
        assert wait(lambda: allocatable(node) == GPUS, TIMEOUT_S), state_of(node)
        asked = {f"asks-{name or 'none'}": asks(name) for name in CLASSES}
        results = run_all(node.api, asked)
        assert [gpus_of(result) for result in results.values()] == [1] * len(CLASSES), (
            results, state_of(node),
        )  # fmt: skip
        silent = {f"silent-{name or 'none'}": replace(pod, container={}, script=COUNT)
                  for name, pod in zip(CLASSES, asked.values(), strict=True)}  # fmt: skip
        counts = [result.lines for result in run_all(node.api, silent).values()]
        assert counts == [["0"]] * len(CLASSES)
        (uuid,) = set(UUID.findall(results["asks-nvidia"].log))
        named = Pod(script=COUNT, runtime_class="nvidia", env={"NVIDIA_VISIBLE_DEVICES": uuid})
        node.api.create(PODS, named.manifest("named"))
        try:
            assert wait(partial(_is_refused, node), TIMEOUT_S), node.api.events("named")
        finally:
            node.api.delete(f"{PODS}/named")


def _is_refused(node: Cluster) -> bool:
    return "policy rule 'pods ask Kubernetes for GPUs' denies" in str(node.api.events("named"))
