# SPDX-License-Identifier: Apache-2.0
"""A cluster for the chart."""

from __future__ import annotations

import pytest

from tests.kubernetes import image_alone

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tests.kubernetes.cluster import Cluster


@pytest.fixture(scope="module")
def node(cluster: Cluster) -> Cluster:
    """Return the cluster with the image; containers see the simulated driver, and no nvct."""
    image_alone.prepare(cluster)
    return cluster
