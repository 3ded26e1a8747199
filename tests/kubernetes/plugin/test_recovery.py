# SPDX-License-Identifier: Apache-2.0
"""What happens to the kubelet's list of GPUs when something breaks, on a real kubelet.

The seconds until the kubelet's own list is right are printed and, apart, those until the Node object
shows it. The bounds are for a busy machine.
"""

import contextlib
import time
from pathlib import Path

import pytest

from nvct.agent.device_plugin.settings import FOLDER
from nvct_sim import node_changes
from tests.engines.checks import UUID
from tests.kubernetes.api import PODS, wait
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.conftest import ON_ONE
from tests.kubernetes.device_plugin import (
    GPUS,
    LIST,
    PLUGIN,
    TIMEOUT_S,
    asks,
    log,
    plugin,
    restarts,
    simulated,
    state,
)
from tests.kubernetes.listed import Watch
from tests.kubernetes.pods import run

pytestmark = [pytest.mark.slow, ON_ONE]
SOON_S = 20.0
"""Bound of what takes less than 2 s on a machine that is not busy."""
HANG_S = 600
"""Ended by the test."""
ENDED = "the kubelet ended the stream of the list"
PROGRAM = "nvct.agent.core.program nvidia-device-plugin"
FLAGS = ("--health-preflight=ecc-pending=withhold", "--health-probation=1")


def test_what_breaks_takes_gpus_away_and_they_come_back(node: Cluster) -> None:
    """One plugin goes through all of it: what it has been through changes nothing later."""
    with plugin(node, *FLAGS), Watch(node) as watch:
        watch.until(GPUS, "the plugin has started", time.time())
        _the_kubelet_restarts(node, watch)
        began = time.time()
        node.engine.reload()
        watch.until(GPUS, "containerd was restarted", began)
        assert watch.least(began) == GPUS
        for kind in ("hang", "hang-hard"):
            _nvml_hangs(node, watch, kind)
        _one_gpu_hangs(node, watch)
        _the_driver_goes(node, watch)
        _gives_all(node)
        assert restarts(node, PLUGIN) == 0
        _the_plugin_is_killed(node, watch)
        _gives_all(node)


def _the_kubelet_restarts(node: Cluster, watch: Watch) -> None:
    """A pod keeps its GPU, and others get the rest."""
    socket = node.box.root / FOLDER.lstrip("/") / "kubelet.sock"
    path, before = f"{PODS}/stays", socket.stat().st_mtime
    node.api.create(PODS, asks(1, f"{LIST}; sleep 600").manifest("stays"))
    try:
        assert wait(lambda: UUID.findall(log(node, "stays")), TIMEOUT_S), state(node, "stays")
        killed = time.time()
        node.restart_kubelet()
        assert wait(lambda: _is_newer(socket, before), TIMEOUT_S)
        began = socket.stat().st_mtime
        assert watch.until(GPUS, "the kubelet's socket is there", began) < SOON_S
        print(f"the kubelet needed {began - killed:.2f} s for its own start")
        rest = UUID.findall(run(node.api, "asks-rest", asks(GPUS - 1)).log)
        assert len({*rest, *UUID.findall(log(node, "stays"))}) == GPUS, rest
        assert restarts(node, "stays") == 0
    finally:
        node.api.delete(path)
        assert wait(lambda: node.api.find(path) is None, TIMEOUT_S)


def _nvml_hangs(node: Cluster, watch: Watch, kind: str) -> None:
    began = time.time()
    node_changes.set_fault(simulated(node), kind, HANG_S)
    try:
        watch.until(0, f"NVML {kind}s", began)
        assert "all devices are unhealthy" in log(node, PLUGIN)
    finally:
        node_changes.set_fault(simulated(node), kind, 0)
    ended = time.time()
    took = watch.until(GPUS, f"the {kind} of NVML has ended", ended)
    assert took < SOON_S, state(node, PLUGIN)


def _one_gpu_hangs(node: Cluster, watch: Watch) -> None:
    began = time.time()
    node_changes.apply(simulated(node), "gpu", ["3", f"hang={HANG_S}"])
    try:
        assert watch.until(GPUS - 1, "one GPU hangs", began) < SOON_S
        assert watch.least(began) == GPUS - 1
        assert "does not answer: its devices are unhealthy" in log(node, PLUGIN)
    finally:
        node_changes.apply(simulated(node), "gpu", ["3", "hang=0"])
    ended = time.time()
    assert watch.until(GPUS, "the GPU answers again", ended) < SOON_S
    assert watch.least(ended) == GPUS - 1


def _the_driver_goes(node: Cluster, watch: Watch) -> None:
    machine = simulated(node)
    with contextlib.ExitStack() as hidden:
        began = time.time()
        for path in (machine.driver_root / "usr", machine.proc / "driver/nvidia"):
            path.rename(path.with_name("hidden"))
            hidden.callback(path.with_name("hidden").rename, path)
        watch.until(0, "the driver has gone", began)
    ended = time.time()
    took = watch.until(GPUS, "the driver has come back", ended)
    assert took < SOON_S, state(node, PLUGIN)


def _the_plugin_is_killed(node: Cluster, watch: Watch) -> None:
    """As it starts again, a GPU is slow: it is not offered until a reset has mended it."""
    machine, began = simulated(node), time.time()
    node_changes.apply(machine, "gpu", ["5", "eccnext=0", "remap_pending=1"])
    node.box.call("pkill", "-KILL", "-f", PROGRAM)
    assert watch.until(GPUS - 1, "SIGKILL of the plugin", began) < SOON_S
    assert restarts(node, PLUGIN) == 1
    sentence = "preflight: a part of the memory is replaced at the next reset, ECC is"
    assert sentence in log(node, PLUGIN)
    node_changes.apply(machine, "reset", ["5"])
    ended = time.time()
    assert watch.until(GPUS, "the GPU was reset", ended) < SOON_S
    node_changes.apply(machine, "gpu", ["5", "ecc=1", "eccnext=1"])


def test_a_surge_upgrade(node: Cluster) -> None:
    """The end of the older stream may make the kubelet drop the newer plugin (kubernetes#121994).

    It does not if the older plugin yields before the newer one is registered.
    """
    with contextlib.ExitStack() as stack:
        older = stack.enter_context(plugin(node, name="older"))
        watch = stack.enter_context(Watch(node))
        watch.until(GPUS, "the older plugin has started", time.time())
        began = time.time()
        newer = stack.enter_context(plugin(node, name="newer"))
        watch.until(GPUS, "the newer plugin was created", began)
        began = time.time()
        node.api.delete(f"{PODS}/{older}")
        assert wait(lambda: node.api.find(f"{PODS}/{older}") is None, TIMEOUT_S)
        assert watch.until(GPUS, "the older plugin was deleted", began) < SOON_S, state(
            node, newer
        )
        print("dropped, and registered again:", ENDED in log(node, newer))
        _gives_all(node)


def _is_newer(file: Path, before: float) -> bool:
    try:
        return file.stat().st_mtime > before
    except FileNotFoundError:
        return False


def _gives_all(node: Cluster) -> None:
    result = run(node.api, "asks-all", asks(GPUS))
    assert len(set(UUID.findall(result.log))) == GPUS, (result, state(node, PLUGIN))
