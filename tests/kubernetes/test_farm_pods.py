# SPDX-License-Identifier: Apache-2.0
"""Pods of the device plugin by CDI, on a node that publishes its specification in layout farm."""

from __future__ import annotations

import pytest

from nvct.container.rootfs.view_links import OF_SPEC
from tests.engines.box import PROGRAMS
from tests.engines.checks import LISTED, UUID
from tests.kubernetes.api import wait
from tests.kubernetes.conftest import CONTAINERD
from tests.kubernetes.pods import run_all
from tests.kubernetes.test_device_plugin import (
    GPUS,
    LIST,
    TIMEOUT_S,
    _allocatable,
    _asks,
    _log,
    node,
    plugin,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tests.kubernetes.cluster import Cluster

__all__ = ["node"]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.parametrize("cluster", CONTAINERD, indirect=True),
]
PUBLISHED = "/var/run/cdi/nvidia.yaml"
MOUNTED = "cut -d' ' -f5 /proc/self/mountinfo"


@pytest.mark.parametrize("strategy", ["cdi-cri", "cdi-annotations"])
def test_pods_get_the_driver_as_the_published_view(strategy: str, node: Cluster) -> None:
    hook = f"--nvidia-cdi-hook-path={PROGRAMS}/nvidia-cdi-hook"
    done = node.box.call("nvidia-ctk", "cdi", "generate", f"--output={PUBLISHED}", hook)
    assert done.returncode == 0, done
    with plugin(node, f"--device-list-strategy={strategy}") as name:
        assert f"by one view, as in {PUBLISHED}" in _log(node, name)
        assert wait(lambda: _allocatable(node) == GPUS, TIMEOUT_S), _log(node, name)
        script = f"{LIST}; {MOUNTED}; {LISTED}; sleep 3"
        results = run_all(node.api, {f"farm-{count}": _asks(count, script) for count in (1, 3)})
    one, three = (results[f"farm-{count}"] for count in (1, 3))
    uuids = [UUID.findall(result.log) for result in (one, three)]
    assert [len(found) for found in uuids] == [1, 3], results
    assert len({*uuids[0], *uuids[1]}) == 4, results
    for result in results.values():
        assert result.lines.count(OF_SPEC) == 1, result
        assert not [line for line in result.lines if line.startswith("/usr/lib")], result
        assert result.lines[-1] == f"{OF_SPEC}/lib64/libcuda.so.1", result
