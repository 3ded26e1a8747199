# SPDX-License-Identifier: Apache-2.0
"""A node with the image of nvct, but with nothing of nvct installed."""

from tests.engines.daemons import SPEC
from tests.engines.supervised import SupervisedContainerd
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.device_plugin import use_simulated_runc
from tests.support import program_image


def prepare(cluster: Cluster) -> None:
    """Import the image, make containers see the simulated driver, and make /usr/local writable."""
    containerd, box = cluster.engine, cluster.box
    assert isinstance(containerd, SupervisedContainerd)
    done = containerd.ctr("image", "import", str(program_image.archive()))
    assert done.returncode == 0, done
    box.call("rm", "-f", SPEC)
    use_simulated_runc(box)
    containerd.reload()
    done = box.call("mount", "-t", "tmpfs", "local", "/usr/local")  # /usr is read-only here
    assert done.returncode == 0, done
