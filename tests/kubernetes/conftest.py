# SPDX-License-Identifier: Apache-2.0
"""A real cluster of one node with a simulated driver, and an engine configured by nvct."""

import contextlib
from collections.abc import Callable, Iterator, Mapping

import pytest

from nvct.errors import ContainerNotPossibleError
from tests.engines import conftest as engines
from tests.engines.box import Box
from tests.engines.releases import FULL, in_full, of_release
from tests.engines.supervised import Supervised, SupervisedContainerd, SupervisedCrio
from tests.kubernetes import device_plugin
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.node import machine

collect_ignore = [] if FULL else ["test_dra_two_nodes.py"]
CASES: Mapping[str, tuple[str, Callable[[Box], Supervised]]] = {
    "trixie": ("trixie", lambda box: SupervisedContainerd(box, 2)),
    "forky": ("forky", lambda box: SupervisedContainerd(box, 3)),
    "trixie-crio": ("trixie", SupervisedCrio),
    "forky-crio": ("forky", SupervisedCrio),
}
"""Releases and engines: containerd 1.7 and 2.1 with the versions of their config.toml; CRI-O with
runc 1.1, and with a runc that supports user namespaces."""
OLDER = dict.fromkeys(
    (
        "DRAPartitionableDevices", "DRADeviceTaints", "DRAExtendedResource",
        "DRAConsumableCapacity", "DRADeviceBindingConditions",
    ),
    False,
)  # fmt: skip
"""Feature gates that Kubernetes 1.34 and 1.35 do not have on by default."""
GATES: Mapping[str, Mapping[str, bool]] = {"trixie-older-dra": OLDER}
"""Clusters that are not as by default: `trixie` with these feature gates."""
CONTAINERD = [of_release("trixie"), *in_full("forky")]
ON_ONE = pytest.mark.parametrize("cluster", [of_release("trixie")], indirect=True)
"""For what does not depend on the engine's version."""
CRIO = ["trixie-crio", *(["forky-crio"] if FULL else [])]
"""Not required in CI: `make crio` builds CRI-O on demand."""


@contextlib.contextmanager
def running(name: str, factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Yield a ready cluster of one of the CASES, without nvct's changes; skip if it can't run."""
    gates = GATES.get(name)
    release, engine_of = CASES["trixie" if gates else name]
    try:
        with machine(engine_of, *engines.prepare(release, factory)) as engine:
            yield Cluster(engine, gates)
    except ContainerNotPossibleError as error:
        pytest.skip(error.message)


@pytest.fixture(scope="module", params=CONTAINERD)
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """Yield a cluster of the file's own."""
    with running(request.param, tmp_path_factory) as made:
        yield made


@pytest.fixture(scope="module")
def node(cluster: Cluster) -> Cluster:
    """Return the cluster after `nvct runtime configure`, for the device plugin in a pod."""
    device_plugin.prepare(cluster)
    return cluster
