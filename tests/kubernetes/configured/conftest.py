# SPDX-License-Identifier: Apache-2.0
"""Pods on engines after `nvct runtime configure`."""

import pytest
import yaml

from tests.kubernetes.cluster import Cluster
from tests.kubernetes.device_plugin import RUNTIME_CLASSES
from tests.kubernetes.together import _nothing_of_other_files, cluster

__all__ = ["_nothing_of_other_files", "cluster"]


@pytest.fixture(scope="package")
def configured(cluster: Cluster) -> Cluster:
    """Return the cluster after `nvct runtime configure`, with the runtime classes."""
    cluster.engine.configure("--cdi.enabled")
    cluster.engine.reload()
    for runtime_class in yaml.safe_load_all(RUNTIME_CLASSES.read_text(encoding="utf-8")):
        cluster.api.create("/apis/node.k8s.io/v1/runtimeclasses", runtime_class)
    return cluster
