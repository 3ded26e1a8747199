# SPDX-License-Identifier: Apache-2.0
"""A resource stays registered, whatever the kubelet and others do; it can go and come back."""

import asyncio
import contextlib
import errno
import io
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator

import grpc
import pytest
from typing_extensions import Self

from nvct.agent.core.logs import Log
from nvct.agent.core.resources_mode import CLASSIC, ResourcesMode
from nvct.agent.device_plugin import registration, socket_owner
from nvct.agent.device_plugin.counts import Counts
from nvct.agent.device_plugin.endpoint import Endpoint
from nvct.agent.device_plugin.registration import Registration
from nvct.agent.device_plugin.resources import GPU, Content, Device, Node, Resource
from nvct.agent.device_plugin.served import ServedResources
from nvct.agent.device_plugin.settings import Settings
from nvct.agent.kubelet import kubelet_pb2 as api
from nvct.agent.machine.folder_watch import identity
from nvct.doctor import decisions
from nvct.host.recorder import Recorder
from tests.unit.agent.device_plugin.fake_kubelet import FakeKubelet, until

SOON_S = 2.0


@pytest.fixture
def folder() -> Iterator[str]:
    with tempfile.TemporaryDirectory(dir="/tmp") as path:  # a socket's path is short
        yield path


def content(count: int = 2, **settings: object) -> Content:
    devices = [
        Device(id=f"GPU-{n}", uuid=f"GPU-{n}", gpu=f"GPU-{n}", index=str(n)) for n in range(count)
    ]
    return Content(
        resource=Resource(name=GPU, devices={device.id: device for device in devices}),
        settings=Settings(**settings),  # type: ignore[arg-type]
        node=Node(),
        mode=ResourcesMode(CLASSIC, is_alone=True),
        look=nothing_new,
    )


async def nothing_new() -> None:
    """The driver is the one that was looked at."""


class Running:
    """A registration that runs, and is looked after."""

    def __init__(
        self,
        kubelet: str,
        folder: str,
        served: Content | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        self.log = io.StringIO()
        log = Log(target=self.log, recorder=recorder)
        self.registration = Registration(served or content(), kubelet, folder, log, Counts())
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self.task = asyncio.create_task(self.registration.run())
        self._tasks = [self.task, asyncio.create_task(self._look())]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _look(self) -> None:
        while True:
            self.registration.look()
            await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def started(kubelet: FakeKubelet) -> AsyncIterator[FakeKubelet]:
    await kubelet.start()
    try:
        yield kubelet
    finally:
        await kubelet.stop()


HEALTHY = {"GPU-0": "Healthy", "GPU-1": "Healthy"}


@pytest.mark.parametrize("is_old", [False, True])
@pytest.mark.parametrize("authority", ["", "localhost", "nvidia-gpu.sock", "a%2Fb"])
async def test_a_resource_is_registered_and_listed(
    folder: str, authority: str, *, is_old: bool
) -> None:
    async with started(FakeKubelet(folder, is_old=is_old, authority=authority)) as kubelet:
        async with Running(kubelet.socket, folder) as plugin:
            await until(lambda: kubelet.lists.get(GPU) == HEALTHY)
            await until(lambda: plugin.registration.state == "listed")
            (request,) = kubelet.registered
            assert (request.version, request.endpoint) == ("v1beta1", "nvidia-gpu.sock")
            assert request.options.get_preferred_allocation_available
            assert sorted(os.listdir(folder)) == ["kubelet.sock", "nvidia-gpu.sock"]
        assert os.listdir(folder) == ["kubelet.sock"]


async def test_the_kubelet_calls_the_plugin(folder: str) -> None:
    recorder = Recorder(folder)
    async with (
        started(FakeKubelet(folder)) as kubelet,
        Running(kubelet.socket, folder, recorder=recorder),
    ):
        await until(lambda: GPU in kubelet.lists)
        asked = api.AllocateRequest()
        asked.container_requests.add(devices_ids=["GPU-1", "GPU-0"])
        answer = await kubelet.call(GPU, "Allocate", asked, api.AllocateResponse)
        envs = answer["container_responses"][0]["envs"]
        assert envs == {"NVIDIA_VISIBLE_DEVICES": "GPU-0,GPU-1"}
        wish = api.PreferredAllocationRequest()
        wish.container_requests.add(available_deviceIDs=["GPU-1"], allocation_size=1)
        answer = await kubelet.call(
            GPU, "GetPreferredAllocation", wish, api.PreferredAllocationResponse
        )
        assert answer["container_responses"] == [{"deviceIDs": ["GPU-1"]}]
        asked.container_requests.add(devices_ids=["GPU-9"])
        with pytest.raises(grpc.aio.AioRpcError, match="unknown device: GPU-9"):
            await kubelet.call(GPU, "Allocate", asked, api.AllocateResponse)

    given, refused = decisions.look([folder], decisions.Filter(container=GPU)).records
    assert (given["outcome"], given["asked"]) == ("given", "GPU-1, GPU-0")
    assert refused["error"].endswith("unknown device: GPU-9")


async def test_the_end_of_an_older_instance_does_not_take_the_resource_away(folder: str) -> None:
    """The older stream's end would drop the newer plugin (kubernetes#121994), or forget it."""
    async with started(FakeKubelet(folder)) as kubelet, Running(kubelet.socket, folder) as older:
        await until(lambda: kubelet.lists.get(GPU) == HEALTHY)
        kubelet.delay_s = 0.2
        async with Running(kubelet.socket, folder, content(3)) as newer:
            await until(older.task.done)
            assert older.registration.state == "yielded"
            assert len(kubelet.registered) == 1
            await until(lambda: newer.registration.state == "listed")
            await until(lambda: len(kubelet.lists.get(GPU, ())) == 3)
            assert len(kubelet.registered) == 2
        await until(lambda: GPU not in kubelet.lists, SOON_S)


async def test_the_end_of_a_stream_of_an_earlier_registration_does_not_matter(folder: str) -> None:
    async with (
        started(FakeKubelet(folder, drops=False)) as kubelet,
        Running(kubelet.socket, folder) as plugin,
    ):
        await until(lambda: plugin.registration.state == "listed")
        os.utime(kubelet.socket)  # looks like another kubelet
        await until(lambda: kubelet.opened[GPU] == 2)
        await until(lambda: plugin.registration.state == "listed")
        await kubelet.end_stream(0)
        await asyncio.sleep(0.5)
        assert len(kubelet.registered) == 2
        await kubelet.end_stream(1)
        await until(lambda: len(kubelet.registered) == 3)


@pytest.mark.parametrize("turns", range(6))
async def test_it_ends_when_it_is_canceled_as_something_happens(folder: str, turns: int) -> None:
    async with started(FakeKubelet(folder)) as kubelet:
        plugin = Registration(
            content(), kubelet.socket, folder, Log(target=io.StringIO()), Counts()
        )
        task = asyncio.create_task(plugin.run())
        await until(lambda: plugin.state == "listed")
        os.unlink(f"{folder}/nvidia-gpu.sock")
        plugin.look()
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task], timeout=SOON_S)
        assert task.cancelled()


async def test_a_socket_of_another_process_is_left_alone(folder: str) -> None:
    async with started(FakeKubelet(folder)) as kubelet:
        async with Running(kubelet.socket, folder) as plugin:
            await until(lambda: plugin.registration.state == "listed")
            os.mkfifo(f"{folder}/other")
            os.rename(f"{folder}/other", f"{folder}/nvidia-gpu.sock")
            await until(plugin.task.done)
            assert "another process has taken" in plugin.log.getvalue()
        assert identity(f"{folder}/nvidia-gpu.sock")


OTHER = """
import socket, sys
server = socket.socket(socket.AF_UNIX)
server.bind(sys.argv[1])
server.listen()
print("listens", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def other_program(path: str) -> Iterator[subprocess.Popen[str]]:
    """Another program's plugin: a process that listens, and speaks no gRPC."""
    words = [sys.executable, "-c", OTHER, path]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout
        other.stdout.readline()
        try:
            yield other
        finally:
            other.kill()


async def test_a_living_plugin_of_another_program_is_not_displaced(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registration, "ENDING_S", 0.2)
    monkeypatch.setattr(registration, "FREE_S", 0.3)
    monkeypatch.setattr(registration, "OWNER_S", 0.05)
    path = f"{folder}/nvidia-gpu.sock"

    async with started(FakeKubelet(folder)) as kubelet:
        with other_program(path) as other:
            owned = identity(path)
            async with Running(kubelet.socket, folder) as plugin:
                await until(lambda: plugin.registration.state == "refused")
                program = os.path.basename(sys.executable)
                reason = f"process {other.pid} ({program}) serves {path}, and is not displaced"
                assert plugin.registration.reason == reason
                assert reason in plugin.log.getvalue()
                await asyncio.sleep(0.5)
                assert identity(path) == owned
                assert not kubelet.registered
                other.kill()
                await until(lambda: kubelet.lists.get(GPU) == HEALTHY)
                assert sorted(os.listdir(folder)) == ["kubelet.sock", "nvidia-gpu.sock"]


async def test_a_plugin_that_was_displaced_serves_again_once_the_other_has_gone(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NVIDIA's removes whatever is there when it starts, and its own socket when it ends."""
    monkeypatch.setattr(registration, "FREE_S", 0.3)
    monkeypatch.setattr(registration, "OWNER_S", 0.05)
    path = f"{folder}/nvidia-gpu.sock"
    async with started(FakeKubelet(folder)) as kubelet, Running(kubelet.socket, folder) as plugin:
        await until(lambda: kubelet.lists.get(GPU) == HEALTHY)
        with other_program(f"{folder}/other.sock") as other:
            os.rename(f"{folder}/other.sock", path)
            await until(lambda: plugin.registration.state == "refused")
            assert f"process {other.pid} " in plugin.registration.reason
            kubelet.lists.clear()
            other.kill()
            os.unlink(path)
            await until(lambda: kubelet.lists.get(GPU) == HEALTHY)
        await until(lambda: plugin.registration.state == "listed")


async def test_an_owner_that_is_ending_is_waited_for(folder: str) -> None:
    async with started(FakeKubelet(folder)) as kubelet:
        with other_program(f"{folder}/nvidia-gpu.sock") as other:
            async with Running(kubelet.socket, folder) as plugin:
                await asyncio.sleep(0.5)
                assert not kubelet.registered
                other.kill()
                await until(lambda: kubelet.lists.get(GPU) == HEALTHY, SOON_S)
                assert "refused" not in plugin.log.getvalue()


async def test_a_dead_socket_is_taken_over(folder: str) -> None:
    async with started(FakeKubelet(folder)) as kubelet:
        with other_program(f"{folder}/nvidia-gpu.sock") as other:
            other.kill()
        async with Running(kubelet.socket, folder):
            await until(lambda: kubelet.lists.get(GPU) == HEALTHY, SOON_S)


async def test_a_socket_that_appears_before_the_own_one_is_there_stays(folder: str) -> None:
    path = f"{folder}/nvidia-gpu.sock"

    endpoint = Endpoint(content(), folder, lambda: None, Counts(), Log())
    with other_program(path):
        owned = identity(path)
        with pytest.raises(FileExistsError, match="another process has just made"):
            await endpoint.start(None)
        assert (identity(path), os.listdir(folder)) == (owned, ["nvidia-gpu.sock"])
    await endpoint.stop()


async def test_a_socket_in_a_folder_that_became_read_only_does_not_fail_the_end(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)

    async with started(FakeKubelet(folder)) as kubelet:
        async with Running(kubelet.socket, folder) as plugin:
            await until(lambda: plugin.registration.state == "listed")
            monkeypatch.setattr("nvct.agent.kubelet.sockets.os.unlink", refuse)
        assert plugin.task.cancelled()
        monkeypatch.undo()


def test_a_process_of_another_container_is_called_so() -> None:
    assert str(socket_owner.Owner(0, "")) == "a process of another container"
    assert str(socket_owner.Owner(7, "")) == "process 7"


async def test_without_a_kubelets_socket_it_serves_and_does_not_register(folder: str) -> None:
    async with Running("", folder) as plugin:
        await until(lambda: plugin.registration.state == "serving")
        channel = grpc.aio.insecure_channel(f"unix:{folder}/nvidia-gpu.sock")
        call = channel.unary_unary(
            "/v1beta1.DevicePlugin/GetDevicePluginOptions",
            api.Empty.SerializeToString,
            api.DevicePluginOptions.FromString,
        )
        assert (await call(api.Empty())).get_preferred_allocation_available
        await channel.close()


@pytest.mark.parametrize("is_over", [False, True], ids=["in time", "too late"])
def test_a_resource_that_comes_back_is_offered_again(
    monkeypatch: pytest.MonkeyPatch, *, is_over: bool
) -> None:
    monkeypatch.setattr(registration, "WITHDRAWN_S", 0.2 if is_over else 60)

    async def run(folder: str) -> None:
        kubelet = FakeKubelet(folder)
        await kubelet.start()
        served = ServedResources(Log(target=io.StringIO()), Counts())
        watch = asyncio.create_task(served.watch())
        gpus = content(kubelet_socket=kubelet.socket)
        for _ in range(3):
            served.offer([gpus])
            await until(lambda: kubelet.lists.get(GPU) == HEALTHY)
            served.offer([])
            await until(lambda: not kubelet.lists.get(GPU))
            assert served.current == {}
            if is_over:
                await until(lambda: not served.all)
        # Too late, the end of the older stream may make the kubelet drop the newer registration.
        assert len(kubelet.registered) >= 3 if is_over else len(kubelet.registered) == 1
        watch.cancel()
        await served.stop()
        await kubelet.stop()

    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        asyncio.run(run(folder))
