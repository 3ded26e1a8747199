# SPDX-License-Identifier: Apache-2.0
"""GPUs that can only be reset together, on a node whose GPUs no other test has failed."""

import pytest

from tests.kubernetes.api import PODS
from tests.kubernetes.conftest import ON_ONE
from tests.kubernetes.device_plugin import GPUS
from tests.kubernetes.healing.test_heal import RELEASED_S, Lab, lab  # noqa: F401 - a fixture

pytestmark = [pytest.mark.slow, ON_ONE]


def test_gpus_that_nvlinks_connect_are_emptied_and_reset_together_and_others_are_left_alone(
    lab: Lab,  # noqa: F811
) -> None:
    well, gpus = lab.well(), lab.listed()
    assert gpus == len(well) == GPUS
    names = {lab.run(f"pod-{number}"): f"pod-{number}" for number in range(gpus)}
    group, others = well[:2], well[2:]
    kept = {names[index]: lab.uid(names[index]) for index in others}
    with lab.connected([group, others]):
        lab.fail(group[0])
        lab.until(lambda: lab.listed() == gpus - 2, "both are withheld", RELEASED_S)
        lab.until(lambda: not any(lab.uid(names[index]) for index in group), "pods are evicted")
        lab.until(lambda: lab.listed() == gpus, "both come back", RELEASED_S)
    assert {name: lab.uid(name) for name in kept} == kept
    assert "" not in kept.values()
    assert lab.resets() == {lab.uuids[index]: 1 for index in group}
    for name in kept:
        lab.cluster.api.delete(f"{PODS}/{name}")
