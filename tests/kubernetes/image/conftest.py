# SPDX-License-Identifier: Apache-2.0
"""DaemonSets of the image's programs."""

import pytest

from tests.engines.supervised import SupervisedContainerd
from tests.kubernetes import device_plugin
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.together import _nothing_of_other_files, cluster
from tests.support import program_image

__all__ = ["_nothing_of_other_files", "cluster"]


@pytest.fixture(scope="package")
def node(cluster: Cluster) -> Cluster:
    """Return the cluster with the image, and nvidia as the default runtime."""
    assert isinstance(cluster.engine, SupervisedContainerd)
    done = cluster.engine.ctr("image", "import", str(program_image.archive()))
    assert done.returncode == 0, done
    device_plugin.prepare(cluster, "--nvidia-set-as-default")
    return cluster
