# SPDX-License-Identifier: Apache-2.0
"""Agent and worker in pods of their own, which are replaced one before the other."""

import asyncio
import hashlib
import io
import os
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, cast, get_args, get_type_hints

import pytest

from nvct.agent import host_side
from nvct.agent.core.logs import Log
from nvct.agent.device_plugin.socket_owner import Owner, named
from nvct.agent.host_side import HostSide
from nvct.agent.machine.driver_root import with_driver_roots
from nvct.agent.machine.place import Place
from nvct.agent.main import Agent
from nvct.agent.nvml import engine_question, supervisor, worker_client
from nvct.agent.nvml.host_verbs import Machine, SocketOwner, Written
from nvct.agent.nvml.worker_client import NvmlWorkerClient
from nvct.errors import NvmlError
from nvct.host.gpu.pci import HostDriver
from nvct.host.nvml import messages
from nvct.host.nvml.mig_model import MigState
from nvct.host.nvml.model import (
    GpuAttributes,
    GpuProperties,
    NvmlEvents,
    NvmlReport,
    NvmlTopology,
)
from nvct.host.nvml.sample_model import NvmlConditions, NvmlPreflight, NvmlSamples
from nvct.host.roots import Roots
from nvct.installer import ready
from tests.unit.agent.nvml.test_worker import TIMEOUT_S, Worker, ask, connected, run, started

OLD, NEW = "0f0f", "a1a1"
PROGRAM = "from nvct.agent.nvml import worker; worker.SUCCESSOR_S = 4; worker.main()"
ANSWERS = (
    NvmlReport, NvmlTopology, GpuAttributes, GpuProperties, NvmlEvents, NvmlConditions, MigState,
    NvmlPreflight, NvmlSamples, Written, Machine, HostDriver,
)  # fmt: skip
OF_PROTOCOL = {3: "f2506e85b79c0eec"}
"""What the verbs take and answer, as a digest, by the protocol's number."""


class OfRelease(Worker):
    """A worker in a pod of its own, which waits some seconds for its successor."""

    words = ("-c", PROGRAM)

    def start_as(self, release: str) -> None:
        """Start one more; the one before still runs."""
        self.more = {"NVCT_RELEASE": release}
        self.start()


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[OfRelease]:
    with started(tmp_path, OfRelease) as made:
        made.process.kill()
        made.process.wait()
        cast("OfRelease", made).start_as(OLD)
        yield cast("OfRelease", made)


async def test_an_agent_waits_for_the_worker_of_its_own_release(worker: OfRelease) -> None:
    log = Log(target=io.StringIO())

    async with connected(worker) as client:
        env = {"NVCT_RELEASE": NEW}
        agent = Agent([], env, client, log, lambda: True)
        waits = asyncio.create_task(agent._meet_worker())
        await asyncio.sleep(1.5)
        assert not waits.done()
        assert f"was installed with {OLD}, this agent with {NEW}" in agent.status.why_not_ready()
        first = worker.process
        worker.start_as(NEW)
        await asyncio.wait_for(waits, TIMEOUT_S)
        first.kill()
        first.wait()
        assert len((await client.report()).gpus) == 4
    lines = cast("io.StringIO", log.target).getvalue().splitlines()
    assert len([line for line in lines if "it waits for its own worker" in line]) == 1


async def test_an_agent_that_serves_takes_any_worker_of_its_protocol(worker: OfRelease) -> None:
    async with connected(worker) as client:
        assert await client.why_apart(OLD) == ""
        worker.process.kill()
        worker.process.wait()
        worker.start_as(NEW)
        assert len((await client.report()).gpus) == 4  # the request is sent again


async def test_a_worker_of_another_protocol_is_refused_until_it_is_replaced(
    worker: OfRelease, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connected(worker) as client:
        own = supervisor.PROTOCOL
        monkeypatch.setattr(worker_client, "PROTOCOL", own + 1)
        with pytest.raises(NvmlError, match=f"speaks protocol {own}, this agent {own + 1}"):
            await client.report()
        assert f"speaks protocol {own}" in await client.why_apart(OLD)
        monkeypatch.setattr(worker_client, "PROTOCOL", own)
        assert len((await client.report()).gpus) == 4


def test_one_that_does_not_say_its_protocol_is_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "old.sock")
    refusal = {"class": "NvmlError", "message": "the verb is unknown", "hint": "", "code": ""}

    def serve(listener: socket.socket) -> None:
        client, _ = listener.accept()
        with client:
            messages.receive(client)
            messages.send(client, {"id": 0, "error": {**refusal}})

    async def test() -> None:
        with pytest.raises(NvmlError, match="speaks protocol unknown"):
            await NvmlWorkerClient(path).report()

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        asyncio.run(test())
        thread.join()


def test_a_worker_with_a_successor_serves_its_agent_until_that_ends(worker: OfRelease) -> None:
    first = worker.process
    with worker.connect() as connection:
        ask(connection, "events")
        first.send_signal(signal.SIGTERM)
        worker.start_as(NEW)
        time.sleep(5)
        assert first.poll() is None
        ask(connection, "events")
    assert first.wait(TIMEOUT_S) == 0
    run(worker, lambda client: client.report())


async def test_a_worker_leaves_its_agent_to_one_of_the_same_release(worker: OfRelease) -> None:
    """As by `kubectl rollout restart`: the agent is the same, and stays."""

    async with connected(worker) as client:
        first = worker.process
        await client.report()
        worker.start_as(OLD)
        first.send_signal(signal.SIGTERM)
        while first.poll() is None:
            await client.events()
            await asyncio.sleep(0.01)
        assert first.returncode == 0
        assert len((await client.report()).gpus) == 4


def test_a_worker_that_nothing_replaces_ends_soon(worker: OfRelease) -> None:
    with worker.connect() as connection:
        ask(connection, "events")
        worker.process.send_signal(signal.SIGTERM)
        assert worker.process.wait(TIMEOUT_S) == 0


def test_the_owner_of_a_socket_is_named_and_no_link_followed() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as host_root:  # a socket's path is short
        owners_are_named(Path(host_root))


def owners_are_named(host_root: Path) -> None:
    folder = host_root / "device-plugins"
    folder.mkdir()
    side = HostSide(lambda: Place(roots=Roots(), host_root=str(host_root), kubelet="/"))

    def owner(name: str) -> Any:
        call = SocketOwner(folder="device-plugins", name=name)
        return side.answer(call, lambda: pytest.fail("NVML is asked"))

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "nvidia-gpu.sock"))
        listener.listen()
        found = owner("nvidia-gpu.sock")
        assert found["pid"] > 0
        assert found["program"]
        (folder / "link.sock").symlink_to("nvidia-gpu.sock")
        assert owner("link.sock")["pid"] == 0
    assert owner("nothing.sock")["pid"] == 0
    for name in ("../kubelet.sock", ".", "a/b", ""):
        with pytest.raises(ValueError, match="not the name of a socket"):
            SocketOwner(folder="device-plugins", name=name)


@pytest.mark.parametrize(
    ("path", "folder"),
    [
        ("/var/lib/kubelet/device-plugins/nvidia-gpu.sock", "device-plugins"),
        ("/data/plugins_registry/gpu.nvidia.com-reg.sock", "plugins_registry"),
    ],
)
def test_an_agent_that_does_not_see_an_owner_asks_for_it(path: str, folder: str) -> None:
    unseen, seen = Owner(0, ""), Owner(7, "nvidia-device-plugin")

    class Host:
        answer: Owner | None = seen

        async def ask(self, call: SocketOwner, _kind: type[Owner]) -> Owner:
            assert (call.folder, path) == (folder, f"{os.path.dirname(path)}/{call.name}")
            if self.answer is None:
                raise NvmlError("nobody answers")
            return self.answer

    host = cast("Any", Host())
    assert asyncio.run(named(unseen, path, host.ask)) == seen
    assert asyncio.run(named(seen, path, None)) == seen
    assert asyncio.run(named(unseen, path, None)) == unseen
    host.answer = None
    assert asyncio.run(named(unseen, path, host.ask)) == unseen


def test_the_hosts_processes_are_not_looked_for_in_a_driver_container(tmp_path: Path) -> None:
    """There the installer finds the device nodes, too."""
    root = f"{tmp_path}/run/nvidia/driver"
    keys = ("DRIVER_ROOT_CTR_PATH", "DEV_ROOT_CTR_PATH")
    path = ready.write(str(tmp_path / "found"), ready.DRIVER, dict.fromkeys(keys, root))
    given = dict.fromkeys(keys, str(tmp_path))
    env = {**given, "NVCT_DRIVER_FOLDER": root, "NVCT_DRIVER_READY_FILE": path}
    place = host_side.of_environment(env)
    assert (place.host_root, place.roots.dev_root) == (str(tmp_path), root)


def test_the_hook_of_a_host_is_not_looked_for_in_a_driver_container(tmp_path: Path) -> None:
    root, hook = tmp_path / "run/nvidia/driver", tmp_path / "usr/local/nvidia/hook"
    for folder in (root, hook.parent, tmp_path / "cdi"):
        folder.mkdir(parents=True)
    hook.touch()
    found = {"DRIVER_ROOT_CTR_PATH": str(root), "NVIDIA_DRIVER_ROOT": "/run/nvidia/driver"}
    path = ready.write(str(tmp_path / "found"), ready.DRIVER, found)
    env = {
        "DRIVER_ROOT_CTR_PATH": str(tmp_path), "NVCT_DRIVER_FOLDER": str(root),
        "NVCT_DRIVER_READY_FILE": path, "CDI_ROOT": str(tmp_path / "cdi"),
        "NVIDIA_CDI_HOOK_PATH": "/usr/local/nvidia/hook",
    }  # fmt: skip
    place = host_side.of_environment(env)
    assert place.roots.driver_root == str(root)
    assert host_side._why_not(place) == ""
    assert str(tmp_path) in engine_question.roots(with_driver_roots(env))


def test_the_protocol_has_another_number_when_what_it_says_changes() -> None:
    """Where this fails: raise PROTOCOL, and write its digest here."""
    lines: list[str] = []
    for name, kind in sorted(supervisor.CALLS.items()):
        lines.append(f"{name}: {kind.__name__}")
        _describe(kind, lines)
    for kind in ANSWERS:
        _describe(kind, lines)
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
    assert {supervisor.PROTOCOL: digest} == OF_PROTOCOL


def _describe(kind: Any, lines: list[str]) -> None:
    """Add the fields of a type, and of those in it, to lines."""
    names = [each.name for each in fields(kind)] if is_dataclass(kind) else kind._fields
    hints, written = get_type_hints(kind, include_extras=True), kind.__annotations__
    head = f"{kind.__name__}("
    if any(line.startswith(head) for line in lines):
        return
    lines.append(head + ", ".join(f"{name}: {written[name]}" for name in names) + ")")
    for name in names:
        for part in (hints[name], *_parts(hints[name])):
            if is_dataclass(part) or hasattr(part, "_fields"):
                _describe(part, lines)


def _parts(hint: Any) -> Iterator[Any]:
    for part in get_args(hint):
        yield part
        yield from _parts(part)
