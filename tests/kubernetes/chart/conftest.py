# SPDX-License-Identifier: Apache-2.0
"""Each test removes the chart, and finds nothing left of it."""

import pytest

from tests.engines.releases import FULL
from tests.kubernetes import image_alone
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.together import _nothing_of_other_files, cluster

__all__ = ["_nothing_of_other_files", "cluster"]
collect_ignore = [] if FULL else ["test_nri.py", "test_release.py", "test_versions.py"]


@pytest.fixture(scope="package")
def node(cluster: Cluster) -> Cluster:
    """Return the cluster with the image; containers see the simulated driver, and no nvct."""
    image_alone.prepare(cluster)
    return cluster
