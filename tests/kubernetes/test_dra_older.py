# SPDX-License-Identifier: Apache-2.0
"""The DRA driver where the cluster has what an older Kubernetes has: fewer gates, an older API."""

import pytest

from tests.engines.checks import UUID
from tests.kubernetes.api import wait
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.device_plugin import GPUS, smi
from tests.kubernetes.dra import (
    ATTRIBUTES,
    MEMORY,
    MIG_UUID,
    TIMEOUT_S,
    Driver,
    account,
    asks_for_claims,
    claim,
    devices,
    make_classes,
)  # fmt: skip
from tests.kubernetes.pods import run

pytestmark = pytest.mark.slow
PROFILE = f"{ATTRIBUTES}.?profile.orValue('') == '3g.40gb'"


@pytest.mark.parametrize("cluster", ["trixie-older-dra"], indirect=True)
def test_without_partitionable_devices_those_that_exist_are_offered(node: Cluster) -> None:
    make_classes(node, extended="")
    driver = Driver(node, account(node))
    driver.start()
    try:
        claim(node, "large", MEMORY.format("40Gi"))
        large = run(node.api, "large", asks_for_claims("large"))
        assert len(UUID.findall(large.log)) == 1, (large, driver.log())
        smi(node, "-i", "0", "-mig", "1")
        assert wait(lambda: "knows no shared counters" in driver.log(), TIMEOUT_S), driver.log()
        smi(node, "mig", "-i", "0", "-cgi", "9", "-C")
        assert wait(lambda: len(devices(node)) == GPUS, TIMEOUT_S), driver.log()
        assert wait(lambda: any("-mig-" in name for name in devices(node)), TIMEOUT_S)
        claim(node, "half", PROFILE, device_class="mig.nvidia.com")
        half = run(node.api, "half", asks_for_claims("half"))
        assert len(MIG_UUID.findall(half.log)) == 1, (half, driver.log())
        assert wait(lambda: driver.journal() == [], TIMEOUT_S), driver.log()
        assert len(MIG_UUID.findall(smi(node, "-L"))) == 1  # it was not made for the claim
    finally:
        driver.kill()
