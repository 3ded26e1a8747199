# SPDX-License-Identifier: Apache-2.0
"""Pods of the device plugin by CDI, on a node that publishes its specification in layout farm."""

import contextlib
import subprocess
from collections.abc import Iterator

import pytest

from nvct.container.rootfs.view_links import OF_SPEC
from tests.engines.box import DRIVER_ROOT, PROGRAMS
from tests.engines.checks import LISTED, UUID
from tests.kubernetes.api import wait
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.conftest import CONTAINERD, CRIO
from tests.kubernetes.device_plugin import (
    GPUS,
    LIST,
    REGISTERED,
    TIMEOUT_S,
    allocatable,
    asks,
    log,
    plugin,
)
from tests.kubernetes.pods import run_all
from tests.kubernetes.test_pods import configured

__all__ = ["configured"]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.parametrize("strategy", ["cdi-cri", "cdi-annotations"]),
]
PUBLISHED = "/var/run/cdi/nvidia.yaml"
LOG = "plugin.log"
MOUNTED = "cut -d' ' -f5 /proc/self/mountinfo"


@pytest.mark.parametrize("cluster", CONTAINERD, indirect=True)
def test_pods_get_the_driver_as_the_published_view(strategy: str, node: Cluster) -> None:
    publish(node)
    with plugin(node, f"--device-list-strategy={strategy}") as name:
        assert f"by one view, as in {PUBLISHED}" in log(node, name)
        pods_have_the_view(node)


@pytest.mark.parametrize("cluster", CRIO, indirect=True)
def test_pods_of_crio_get_the_driver_as_the_published_view(
    strategy: str, configured: Cluster
) -> None:
    publish(configured)
    with plugin_on_host(configured, f"--device-list-strategy={strategy}"):
        log_of_plugin = (configured.box.work / LOG).read_text()
        assert f"by one view, as in {PUBLISHED}" in log_of_plugin
        pods_have_the_view(configured)


def publish(cluster: Cluster) -> None:
    """Write the node's specification; layout farm is the default there."""
    hook = f"--nvidia-cdi-hook-path={PROGRAMS}/nvidia-cdi-hook"
    done = cluster.box.call("nvidia-ctk", "cdi", "generate", f"--output={PUBLISHED}", hook)
    assert done.returncode == 0, done


@contextlib.contextmanager
def plugin_on_host(cluster: Cluster, *flags: str) -> Iterator[None]:
    """Run the plugin on the node until it has registered: CRI-O has no privileged pods here."""
    words = [
        f"{PROGRAMS}/python", "-I", "-m", "nvct.agent.core.program", "nvidia-device-plugin",
        f"--nvidia-driver-root={DRIVER_ROOT}", f"--driver-root-ctr-path={DRIVER_ROOT}", *flags,
    ]  # fmt: skip
    process = cluster.box.start(words, LOG)
    output = cluster.box.work / LOG
    try:
        assert wait(lambda: REGISTERED in output.read_text(), TIMEOUT_S), output.read_text()
        yield
    finally:
        cluster.box.call("pkill", "-f", "program nvidia-device-plugin")
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(TIMEOUT_S)
        assert wait(lambda: allocatable(cluster) == 0, TIMEOUT_S)


def pods_have_the_view(cluster: Cluster) -> None:
    """Assert that pods have their GPUs, and the driver's files by one mount alone."""
    assert wait(lambda: allocatable(cluster) == GPUS, TIMEOUT_S)
    script = f"{LIST}; {MOUNTED}; {LISTED}; sleep 3"
    results = run_all(cluster.api, {f"farm-{count}": asks(count, script) for count in (1, 3)})
    one, three = (UUID.findall(results[f"farm-{count}"].log) for count in (1, 3))
    assert (len(one), len(three), len({*one, *three})) == (1, 3, 4), results
    for result in results.values():
        assert result.lines.count(OF_SPEC) == 1, result
        assert not [line for line in result.lines if line.startswith("/usr/lib")], result
        assert result.lines[-1] == f"{OF_SPEC}/lib64/libcuda.so.1", result
