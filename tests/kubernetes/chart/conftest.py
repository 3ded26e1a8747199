# SPDX-License-Identifier: Apache-2.0
"""One cluster for all files about the chart: each test removes the chart, and finds nothing left of it."""

from collections.abc import Iterator

import pytest

from tests.engines.releases import FULL
from tests.kubernetes import image_alone
from tests.kubernetes.api import DEFAULT
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.conftest import CONTAINERD, running

collect_ignore = [] if FULL else ["test_nri.py", "test_release.py", "test_versions.py"]


@pytest.fixture(scope="package", params=CONTAINERD)
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """Yield the cluster, which tests/conftest.py gives to one worker."""
    with running(request.param, tmp_path_factory) as made:
        yield made


@pytest.fixture(scope="package")
def node(cluster: Cluster) -> Cluster:
    """Return the cluster with the image; containers see the simulated driver, and no nvct."""
    image_alone.prepare(cluster)
    return cluster


@pytest.fixture(scope="module", autouse=True)
def _no_events_of_other_files(cluster: Cluster) -> None:
    """Forget what was said of pods that have the same names."""
    cluster.api.delete(f"{DEFAULT}/events")
