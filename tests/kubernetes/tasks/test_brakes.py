# SPDX-License-Identifier: Apache-2.0
"""The brakes of healing on a real API server: a rack of nodes that fails at once."""

import json
from pathlib import Path
from typing import Any

import pytest

from nvct.agent.heal.brakes import STOP, STOPPED
from tests.engines.box import PROGRAMS
from tests.kubernetes import rack
from tests.kubernetes.accounts import kubeconfig_of
from tests.kubernetes.api import Object, wait
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.conftest import ON_ONE

pytestmark = [pytest.mark.slow, ON_ONE]
NODES, AT_ONCE, STOP_AT = 30, 3, 5
LOG = "rack.log"
TIMEOUT_S = 240.0
LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
NAMES = (*(f"nvct-heal-{number}" for number in range(AT_ONCE)), STOP)


def lease(cluster: Cluster, name: str) -> Object:
    return cluster.api.get(f"{LEASES}/{name}")


def test_no_more_heal_at_once_than_may_and_many_that_fail_stop_all_until_a_person_ends_that(
    cluster: Cluster,
) -> None:
    """Also if one of them dies."""
    for name in NAMES:
        kind: Object = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
        cluster.api.create(LEASES, {**kind, "metadata": {"name": name}})
    account = kubeconfig_of(cluster, "heal", ("get,patch", "leases.coordination.k8s.io"))
    numbers = map(str, (NODES, AT_ONCE, STOP_AT))
    words = (f"{PROGRAMS}/python", str(Path(rack.__file__)), account, *numbers)
    with cluster.running(LOG, *words) as process:
        assert wait(lambda: STOPPED in notes(cluster), TIMEOUT_S)
        text = notes(cluster)[STOPPED]
        assert text.startswith(f"{STOP_AT} nodes failed within ten minutes: node-")
        assert wait(lambda: rack.ALL_STOPPED in cluster.log(LOG), TIMEOUT_S)
        assert process.poll() is None
        cluster.api.patch(f"{LEASES}/{STOP}", {"metadata": {"annotations": {STOPPED: None}}})
        assert process.wait(TIMEOUT_S) == 0
    seen: dict[str, Any] = json.loads(cluster.log(LOG).splitlines()[-1])
    print(seen)
    assert (seen["most"], seen["healed"]) == (AT_ONCE, NODES - 1)
    (stop,) = seen["stops"]
    assert text in stop
    assert not [name for name in NAMES if "holderIdentity" in lease(cluster, name).get("spec", {})]


def notes(cluster: Cluster) -> dict[str, str]:
    """Return the annotations of the Lease that stops all."""
    found: dict[str, str] = lease(cluster, STOP)["metadata"].get("annotations", {})
    return found
