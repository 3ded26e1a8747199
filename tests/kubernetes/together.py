# SPDX-License-Identifier: Apache-2.0
"""A cluster for all files of a folder, whose conftest imports these; tests/conftest.py gives one worker the folder."""

from collections.abc import Iterator

import pytest

from tests.kubernetes import device_plugin
from tests.kubernetes.api import DEFAULT
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.conftest import CONTAINERD, running


@pytest.fixture(scope="package", params=CONTAINERD)
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """Yield the cluster."""
    with running(request.param, tmp_path_factory) as made:
        yield made


@pytest.fixture(scope="package")
def node(cluster: Cluster) -> Cluster:
    """Return the cluster after `nvct runtime configure`, for the device plugin in a pod."""
    device_plugin.prepare(cluster)
    return cluster


@pytest.fixture(scope="module", autouse=True)
def _nothing_of_other_files(cluster: Cluster) -> Iterator[None]:
    """Forget what was said of pods that have the same names, and at the end the Node's new labels."""
    cluster.api.delete(f"{DEFAULT}/events")
    before = cluster.labels.keys()
    yield
    if new := cluster.labels.keys() - before:
        cluster.label(*(f"{name}-" for name in sorted(new)))
