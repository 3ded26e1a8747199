# SPDX-License-Identifier: Apache-2.0
"""The brakes of healing on a real API server: a rack of 50 nodes that fails at once."""

import json
from pathlib import Path
from typing import Any

import pytest

from nvct.agent.heal.brakes import STOP, STOPPED
from tests.engines.box import PROGRAMS
from tests.engines.releases import of_release
from tests.kubernetes import rack
from tests.kubernetes.api import Object, wait
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.test_condition import kubeconfig_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.parametrize("cluster", [of_release("trixie")], indirect=True),
]
NODES, AT_ONCE = 50, 3
TIMEOUT_S = 240.0
LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
NAMES = (*(f"nvct-heal-{number}" for number in range(AT_ONCE)), STOP)


@pytest.fixture(scope="module")
def account(cluster: Cluster) -> str:
    """Make the Leases, and return the kubeconfig of an account with the chart's rights to them."""
    path = kubeconfig_of(cluster, "heal")
    cluster.kubectl(
        "create", "role", "heal", "--verb=get,patch", "--resource=leases.coordination.k8s.io",
        *(f"--resource-name={name}" for name in NAMES),
    )  # fmt: skip
    cluster.kubectl(
        "create", "rolebinding", "heal", "--role=heal", "--serviceaccount=default:heal"
    )
    return path


@pytest.fixture(autouse=True)
def _leases(cluster: Cluster) -> None:
    for name in NAMES:
        cluster.api.delete(f"{LEASES}/{name}")
        lease: Object = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
        cluster.api.create(LEASES, {**lease, "metadata": {"name": name}})


def command(account: str, stop: int) -> list[str]:
    numbers = map(str, (NODES, AT_ONCE, stop))
    return [f"{PROGRAMS}/python", str(Path(rack.__file__)), account, *numbers]


def test_no_more_nodes_heal_at_once_than_may_also_if_one_of_them_dies(
    cluster: Cluster, account: str
) -> None:
    done = cluster.box.call(*command(account, 0), timeout=TIMEOUT_S)
    assert done.returncode == 0, done
    seen: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(seen)
    assert seen["most"] == AT_ONCE
    assert seen["healed"] == NODES - 1
    assert seen["stops"] == []
    for name in NAMES:
        lease = cluster.api.find(f"{LEASES}/{name}")
        assert lease is not None
        assert "holderIdentity" not in lease.get("spec", {})


def test_many_that_fail_together_stop_all_until_a_person_ends_that(
    cluster: Cluster, account: str
) -> None:
    process = cluster.box.start(command(account, 5), "rack.log")
    assert wait(lambda: STOPPED in notes(cluster), TIMEOUT_S)
    text = notes(cluster)[STOPPED]
    assert text.startswith("5 nodes failed within ten minutes: node-")
    log = cluster.box.work / "rack.log"
    assert wait(lambda: rack.ALL_STOPPED in log.read_text(), TIMEOUT_S)
    assert process.poll() is None
    cluster.kubectl("annotate", "lease", STOP, f"{STOPPED}-")
    assert process.wait(TIMEOUT_S) == 0
    seen = json.loads(log.read_text().splitlines()[-1])
    print(seen)
    assert (seen["most"], seen["healed"]) == (AT_ONCE, NODES - 1)
    (stop,) = seen["stops"]
    assert text in stop


def notes(cluster: Cluster) -> dict[str, str]:
    """Return the annotations of the Lease that stops all."""
    lease = cluster.api.find(f"{LEASES}/{STOP}")
    assert lease is not None
    found: dict[str, str] = lease["metadata"].get("annotations", {})
    return found
