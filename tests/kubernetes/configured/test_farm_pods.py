# SPDX-License-Identifier: Apache-2.0
"""Pods of the device plugin by CDI, on a node that publishes its specification in layout farm."""

import pytest

from nvct.container.rootfs.view_links import OF_SPEC
from tests.engines.box import PROGRAMS
from tests.engines.checks import LISTED, UUID
from tests.kubernetes.api import wait
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.conftest import CONTAINERD, CRIO
from tests.kubernetes.device_plugin import (
    GPUS,
    LIST,
    ON_HOST,
    TIMEOUT_S,
    allocatable,
    asks,
    plugin_on_host,
)
from tests.kubernetes.pods import run_all

pytestmark = pytest.mark.slow
PUBLISHED = "/var/run/cdi/nvidia.yaml"
MOUNTED = "cut -d' ' -f5 /proc/self/mountinfo"


@pytest.mark.parametrize("strategy", ["cdi-cri", "cdi-annotations"])
@pytest.mark.parametrize("cluster", [*CONTAINERD, *CRIO], indirect=True)
def test_pods_get_the_driver_as_the_published_view(strategy: str, configured: Cluster) -> None:
    """They have the GPUs that they ask for, no others, and the driver's files by one mount alone."""
    hook = f"--nvidia-cdi-hook-path={PROGRAMS}/nvidia-cdi-hook"
    # Layout farm is the default there.
    done = configured.box.call("nvidia-ctk", "cdi", "generate", f"--output={PUBLISHED}", hook)
    assert done.returncode == 0, done
    try:
        with plugin_on_host(configured, f"--device-list-strategy={strategy}"):
            assert f"by one view, as in {PUBLISHED}" in configured.log(ON_HOST)
            assert wait(lambda: allocatable(configured) == GPUS, TIMEOUT_S)
            script = f"{LIST}; {MOUNTED}; {LISTED}; sleep 3"
            results = run_all(configured.api, {f"farm-{n}": asks(n, script) for n in (1, 3)})
    finally:
        configured.box.call("rm", PUBLISHED)
    one, three = (UUID.findall(results[f"farm-{count}"].log) for count in (1, 3))
    assert (len(one), len(three), len({*one, *three})) == (1, 3, 4), results
    for result in results.values():
        assert result.lines.count(OF_SPEC) == 1, result
        assert not [line for line in result.lines if line.startswith("/usr/lib")], result
        assert result.lines[-1] == f"{OF_SPEC}/lib64/libcuda.so.1", result
