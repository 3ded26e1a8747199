# SPDX-License-Identifier: Apache-2.0
"""What happens to the kubelet's list of GPUs when something breaks, on a real kubelet.

Each test prints the seconds until the kubelet's own list is right and, apart, until the Node object
shows it. The bounds are for a busy machine.
"""

import asyncio
import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvct.agent.device_plugin.counts import Counts
from nvct.agent.device_plugin.endpoint import Endpoint
from nvct.agent.device_plugin.resources import GPU, Content, Device, Node, Resource
from nvct.agent.device_plugin.settings import FOLDER, Settings
from nvct.agent.kubelet import service
from nvct_sim import node_changes
from tests.engines.checks import UUID
from tests.engines.releases import of_release
from tests.kubernetes import device_plugin
from tests.kubernetes.api import PODS, wait
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.device_plugin import GPUS, TIMEOUT_S, asks, log, plugin, simulated, state
from tests.kubernetes.listed import Watch, kubelet
from tests.kubernetes.pods import run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.parametrize("cluster", [of_release("trixie")], indirect=True),
]
SOON_S = 20.0
"""Bound of what takes less than 2 s on a machine that is not busy."""
ENDED_S = 3.0
"""After the end of a stream, until the kubelet certainly knows."""
HANG_S = 600
"""Ended by the test."""
HANGS = ("hang", "hang-hard")
ENDED = "the kubelet ended the stream of the list"
PROGRAM = "nvct.agent.core.program nvidia-device-plugin"


@pytest.fixture
def watch(node: Cluster) -> Iterator[Watch]:
    """Yield a watch of a node with a plugin whose list is complete."""
    with plugin(node), Watch(node) as watch:
        watch.until(GPUS, "the plugin has started", time.time())
        yield watch


def test_a_restarted_kubelet(node: Cluster, watch: Watch) -> None:
    socket = node.box.root / FOLDER.lstrip("/") / "kubelet.sock"
    before = socket.stat().st_mtime
    killed = time.time()
    node.restart_kubelet()
    assert wait(lambda: _is_newer(socket, before), TIMEOUT_S)
    began = socket.stat().st_mtime
    assert watch.until(GPUS, "the kubelet's socket is there", began) < SOON_S
    print(f"the kubelet needed {began - killed:.2f} s for its own start")
    _gives_all(node)


def test_a_killed_plugin(node: Cluster, watch: Watch) -> None:
    began = time.time()
    node.box.call("pkill", "-KILL", "-f", PROGRAM)
    assert watch.until(GPUS, "SIGKILL of the plugin", began) < SOON_S
    assert device_plugin.restarts(node, device_plugin.PLUGIN) == 1
    _gives_all(node)


def test_a_restarted_engine(node: Cluster, watch: Watch) -> None:
    began = time.time()
    node.engine.reload()
    watch.until(GPUS, "containerd was restarted", began)
    assert watch.least(began) == GPUS
    assert device_plugin.restarts(node, device_plugin.PLUGIN) == 0
    _gives_all(node)


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


async def test_the_kubelet_forgets_a_plugin_to_which_it_connects_as_an_older_one_ends(
    node: Cluster,
) -> None:
    """Why nvct registers after the end of an older stream; once this fails, a kubelet has mended it."""

    async def shows(count: int) -> bool:
        return await asyncio.to_thread(wait, lambda: kubelet(node) == count, TIMEOUT_S)

    folder = str(node.box.root / FOLDER.lstrip("/"))
    socket = f"{folder}/kubelet.sock"
    assert await shows(0)
    for registrations, left in ((1, 3), (2, 0)):
        older, newer = _endpoint(folder, "older.sock", 2), _endpoint(folder, "newer.sock", 3)
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(newer.stop)
            await older.start(None)
            stack.push_async_callback(older.stop)
            await service.register(socket, GPU, "older.sock")
            assert await shows(2)
            # The kubelet connects until there is a socket, ten seconds at most.
            connecting = asyncio.create_task(service.register(socket, GPU, "newer.sock"))
            await asyncio.sleep(0.5)
            await older.stop()
            assert await shows(0)
            await newer.start(None)
            await connecting
            for _ in range(1, registrations):
                await service.register(socket, GPU, "newer.sock")
            assert await shows(3)
        await asyncio.sleep(ENDED_S)
        assert kubelet(node) == left
        await asyncio.to_thread(_restart_kubelet, node, Path(socket))
        assert await shows(0), "what docs/migrate.md recommends"


def _restart_kubelet(node: Cluster, socket: Path) -> None:
    before = socket.stat().st_mtime
    node.restart_kubelet()
    assert wait(lambda: _is_newer(socket, before), TIMEOUT_S)


def _endpoint(folder: str, name: str, count: int) -> Endpoint:
    devices = {str(n): Device(id=str(n), uuid="", gpu="", index=str(n)) for n in range(count)}
    resource = Resource(name=GPU, devices=devices)
    content = Content(resource=resource, settings=Settings(), node=Node())
    made = Endpoint(content, folder, lambda: None, Counts())
    made.paths = (f"{folder}/{name}",)
    return made


@pytest.mark.parametrize("kind", HANGS)
def test_nvml_that_hangs(kind: str, node: Cluster, watch: Watch) -> None:
    machine = simulated(node)
    began = time.time()
    node_changes.set_fault(machine, kind, HANG_S)
    try:
        watch.until(0, f"NVML {kind}s", began)
        assert "all devices are unhealthy" in log(node, device_plugin.PLUGIN)
    finally:
        node_changes.set_fault(machine, kind, 0)
    ended = time.time()
    assert watch.until(GPUS, f"the {kind} of NVML has ended", ended) < SOON_S, state(
        node, device_plugin.PLUGIN
    )
    assert device_plugin.restarts(node, device_plugin.PLUGIN) == 0
    _gives_all(node)


def test_one_gpu_that_hangs(node: Cluster) -> None:
    machine = simulated(node)
    with plugin(node, "--health-probation=1"), Watch(node) as watch:
        watch.until(GPUS, "the plugin has started", time.time())
        began = time.time()
        node_changes.apply(machine, "gpu", ["3", f"hang={HANG_S}"])
        try:
            assert watch.until(GPUS - 1, "one GPU hangs", began) < SOON_S
            assert watch.least(began) == GPUS - 1
            assert "does not answer: its devices are unhealthy" in log(node, device_plugin.PLUGIN)
        finally:
            node_changes.apply(machine, "gpu", ["3", "hang=0"])
        ended = time.time()
        assert watch.until(GPUS, "the GPU answers again", ended) < SOON_S
        assert watch.least(ended) == GPUS - 1
        assert device_plugin.restarts(node, device_plugin.PLUGIN) == 0
        _gives_all(node)


def test_a_slow_gpu_is_not_offered_until_a_reset_has_mended_it(node: Cluster) -> None:
    machine = simulated(node)
    node_changes.apply(machine, "gpu", ["5", "eccnext=0", "remap_pending=1"])
    words = ("--health-preflight=ecc-pending=withhold", "--health-probation=1")
    with plugin(node, *words), Watch(node) as watch:
        began = time.time()
        watch.until(GPUS - 1, "the plugin has started", began)
        assert "preflight: a part of the memory is replaced at the next reset, ECC is" in log(
            node, device_plugin.PLUGIN
        )
        node_changes.apply(machine, "reset", ["5"])
        ended = time.time()
        assert watch.until(GPUS, "the GPU was reset", ended) < SOON_S
        _gives_all(node)
    node_changes.apply(machine, "gpu", ["5", "ecc=1", "eccnext=1"])


def test_a_driver_that_goes_and_comes_back(node: Cluster, watch: Watch) -> None:
    machine = simulated(node)
    files = (machine.driver_root / "usr", machine.proc / "driver/nvidia")
    began = time.time()
    for path in files:
        path.rename(path.with_name("hidden"))
    try:
        watch.until(0, "the driver has gone", began)
    finally:
        for path in files:
            path.with_name("hidden").rename(path)
    ended = time.time()
    assert watch.until(GPUS, "the driver has come back", ended) < SOON_S, state(
        node, device_plugin.PLUGIN
    )
    assert device_plugin.restarts(node, device_plugin.PLUGIN) == 0
    _gives_all(node)


def test_the_kubelet_counts_what_the_plugin_offers(node: Cluster) -> None:
    """The other tests rely on this."""
    assert wait(lambda: kubelet(node) == 0, TIMEOUT_S)
    with plugin(node):
        assert wait(lambda: kubelet(node) == GPUS, TIMEOUT_S)
        assert kubelet(node, f"{GPU}.shared") == 0


def _is_newer(file: Path, before: float) -> bool:
    try:
        return file.stat().st_mtime > before
    except FileNotFoundError:
        return False


def _gives_all(node: Cluster) -> None:
    result = run(node.api, "asks-all", asks(GPUS))
    assert len(set(UUID.findall(result.log))) == GPUS, (result, state(node, device_plugin.PLUGIN))
