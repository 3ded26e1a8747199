# SPDX-License-Identifier: Apache-2.0
"""NVML in a process beside the agent's, as two containers have it: who is served, what survives."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from nvct.agent.host_side import Host
from nvct.agent.machine.place import Place
from nvct.agent.nvml import client as nvml_client
from nvct.agent.nvml import supervisor
from nvct.agent.nvml import worker as nvml_worker
from nvct.agent.nvml.host_verbs import HostDrivers
from nvct.agent.nvml.worker_client import NvmlWorkerClient
from nvct.errors import DriverNotFoundError, NvmlError
from nvct.host.gpu.pci import HostDriver
from nvct.host.nvml import messages
from nvct.host.roots import Roots
from nvct.oci.jsontext import Json
from nvct_sim import node_changes, tree
from tests.support.cpu import Limit
from tests.support.memory import in_memory
from tests.support.nvml_node import CACHE
from tests.support.processes import captured
from tests.unit.agent import machines
from tests.unit.agent.machines import REPOSITORY

TIMEOUT_S = 30.0


class Worker:
    """`nvct agent worker` for a node of plain files."""

    words = ("-m", "nvct.agent.nvml.worker")
    """Of the interpreter."""
    more: Mapping[str, str] = {}
    """Of its variables."""

    def __init__(self, node: tree.Node, folder: str) -> None:
        self.node, self.path = node, f"{folder}/nvml.sock"
        self.specs = Path(folder, "cdi")
        self.specs.mkdir()
        self.log = Path(folder, "log")
        self.start()

    def start(self) -> None:
        env = {
            "NVCT_SIM_DEV": str(self.node.dev),
            "NVCT_AGENT_WORKER": self.path,
            "DRIVER_ROOT_CTR_PATH": str(self.node.driver_root),
            "CDI_ROOT": str(self.specs),
            "ROOTS": json.dumps(asdict(machines.roots_of(self.node))),
            **self.more,
        }
        with self.log.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, *self.words],
                env={**os.environ, **env}, stdout=file, stderr=file, cwd=REPOSITORY,
            )  # fmt: skip
        limit = Limit(TIMEOUT_S)
        while "listens on" not in self.text:
            assert self.process.poll() is None, self.text
            assert not limit.is_over, self.text
            time.sleep(0.02)

    @property
    def text(self) -> str:
        return self.log.read_text(encoding="utf-8")

    def children(self) -> list[int]:
        """Return the processes of NVML."""
        pid = self.process.pid
        return [int(pid) for pid in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def until(self, holds: Callable[[], object]) -> None:
        limit = Limit(TIMEOUT_S)
        while not holds():
            assert not limit.is_over, self.text
            time.sleep(0.02)

    def connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(TIMEOUT_S)
        connection.connect(self.path)
        return connection


@contextlib.contextmanager
def started(
    tmp_path: Path, kind: type[Worker] = Worker, profile: str = "t4-4"
) -> Iterator[Worker]:
    with in_memory(tmp_path) as nodes, tempfile.TemporaryDirectory(dir="/tmp") as folder:
        node = tree.create("lab", profile, nodes, nodes="plain", native_cache=CACHE)
        made = kind(node, folder)
        try:
            yield made
        finally:
            node_changes.set_fault(node, "hang", 0)
            made.process.kill()
            made.process.wait()


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    with started(tmp_path) as made:
        yield made


@contextlib.asynccontextmanager
async def connected(worker: Worker) -> AsyncIterator[NvmlWorkerClient]:
    client = NvmlWorkerClient(worker.path)
    try:
        yield client
    finally:
        client.disconnect()


def run(worker: Worker, ask: Callable[[NvmlWorkerClient], Awaitable[object]]) -> None:
    async def inside() -> None:
        async with connected(worker) as client:
            await ask(client)

    asyncio.run(inside())


def answers(worker: Worker) -> bool:
    with contextlib.suppress(NvmlError):
        run(worker, lambda client: client.report())
        return True
    return False


def ask(
    connection: socket.socket, verb: str, library: str = "", limit_s: int = 5, **call: Json
) -> Json:
    arguments: Json = {"library": library, "limit_s": limit_s, "call": {**call}}
    messages.send(connection, {"id": 1, "verb": verb, "arguments": arguments})
    return messages.receive(connection)


async def test_the_agent_gets_reports_and_events(worker: Worker) -> None:
    async with connected(worker) as client:
        assert len((await client.report()).gpus) == 4
        assert (await client.events()).events == ()
        node_changes.apply(worker.node, "xid", ("0", "79"))
        for _ in range(100):
            if (await client.events()).events:
                break
            await asyncio.sleep(0.1)
        else:
            pytest.fail("no event")


async def test_the_drivers_of_vgpus_hosts_need_no_nvml(worker: Worker) -> None:
    """This machine has no vGPU; the labels' tests have."""
    node_changes.set_fault(worker.node, "hang", 1)

    async with connected(worker) as client:
        host = Host(client, lambda: Place(roots=Roots()))
        assert await host.ask(HostDrivers(), tuple[HostDriver, ...]) == ()
        assert client.problem is None
    assert worker.children() == []


async def test_both_sides_survive_the_end_of_the_other(worker: Worker) -> None:
    async with connected(worker) as client:
        await client.report()
        worker.process.kill()
        worker.process.wait()
        with pytest.raises(
            NvmlError, match=r"NVML's worker \(container nvml-worker\) does not answer"
        ):
            await client.events()
        with pytest.raises(NvmlError, match=r"Connection refused; it has ended once since"):
            await client.events()
        worker.start()
        assert len((await client.report()).gpus) == 4
        assert client.problem == ""
    worker.until(lambda: not worker.children())  # without an agent no handle stays open
    async with connected(worker) as client:
        await client.events()
    assert worker.process.poll() is None
    worker.process.send_signal(signal.SIGTERM)
    assert worker.process.wait(TIMEOUT_S) == 0


def test_it_serves_a_connected_agent_until_that_one_ends(worker: Worker) -> None:
    """A signal to both containers of a pod, while the agent serves until a newer one takes over."""
    with worker.connect() as connection:
        ask(connection, "events")
        worker.process.send_signal(signal.SIGTERM)
        ask(connection, "events")
        assert worker.process.poll() is None
    assert worker.process.wait(TIMEOUT_S) == 0


@pytest.mark.parametrize("fault", ["hang", "crash"])
async def test_a_fault_is_the_answer_until_it_is_over(
    worker: Worker, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvml_client, "CALL_S", 1)

    async with connected(worker) as client:
        await client.report()
        node_changes.set_fault(worker.node, fault, 600)
        sentence = "does not answer within 1 s" if fault == "hang" else "crashed with SIGSEGV"
        with pytest.raises(NvmlError, match=sentence):
            await client.events()
        node_changes.set_fault(worker.node, fault, 0)
        assert len((await client.report()).gpus) == 4


async def test_a_gpu_that_hangs_stays_as_it_was_and_the_others_are_asked(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvml_client, "START_S", 2)

    async with connected(worker) as client:
        before, attributes = await client.report(), await client.attributes()
        properties = await client.properties()
        node_changes.apply(worker.node, "gpu", ("1", "hang=600"))

        uuid = before.gpus[1].uuid
        assert (await client.events()).unanswered == {uuid: "no answer within 0.8 s"}
        report = await client.report()
        assert report.gpus == before.gpus
        assert report.unanswered == {"1": "no answer within 0.8 s"}
        assert report.warnings == (f"GPU 1 does not answer: {uuid} is shown as it was",)
        assert await client.attributes() == attributes
        assert await client.properties() == properties
        await client.close()
        cold = await client.report()  # by a new process, to which GPU 1 has never answered
        assert cold.gpus == before.gpus
        node_changes.apply(worker.node, "gpu", ("1", "hang=0"))
        for _ in range(200):
            if not (await client.report()).unanswered:
                break
            await asyncio.sleep(0.02)
        assert await client.report() == before
        assert (await client.events()).unanswered == {}


async def test_a_gpu_that_has_never_answered_is_left_out(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvml_client, "START_S", 1)
    node_changes.apply(worker.node, "gpu", ("1", "hang=600"))

    async with connected(worker) as client:
        report = await client.report()
        assert [gpu.index for gpu in report.gpus] == [0, 2, 3]
        assert report.warnings == ("GPU 1 does not answer: it has never been reported",)
        node_changes.apply(worker.node, "gpu", ("1", "hang=0"))


@pytest.mark.slow
def test_a_process_that_cannot_be_killed_is_left_alone_whoever_asks(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvml_client, "CALL_S", 1)

    async def hangs(client: NvmlWorkerClient) -> None:
        await client.report()
        node_changes.apply(worker.node, "nvml-hang-hard", ("600",))
        with pytest.raises(NvmlError):
            await client.events()

    async def is_told(client: NvmlWorkerClient) -> None:
        with pytest.raises(NvmlError, match="waits in the driver and cannot be killed"):
            await client.report()

    run(worker, hangs)
    children = worker.children()
    if not children:
        pytest.skip("no process in state D here: it needs /dev/fuse and the right to mount")
    run(worker, is_told)  # another agent, which starts no second process
    assert worker.children() == children
    node_changes.apply(worker.node, "nvml-hang-hard", ("0",))
    worker.until(lambda: answers(worker))


async def test_a_driver_that_is_gone_is_named_and_comes_back(worker: Worker) -> None:
    usr = worker.node.driver_root / "usr"

    async with connected(worker) as client:
        usr.rename(usr.with_name("gone"))
        with pytest.raises(DriverNotFoundError, match=r"no libnvidia-ml\.so\.1 in"):
            await client.report()
        with pytest.raises(NvmlError, match=r"no libnvidia-ml\.so\.1 in"):
            await client.events()
        usr.with_name("gone").rename(usr)
        assert len((await client.report()).gpus) == 4


def test_the_agent_names_no_file_and_no_other_verb(worker: Worker) -> None:
    evil = str(worker.node.tree / "evil.so")
    with worker.connect() as connection:
        answer = ask(connection, "report", library=evil)
        assert isinstance(answer, dict)
        assert "value" in answer
        for verb, limit_s in (("dlopen", 5), ("report", 0), ("report", 10**6)):
            answer = ask(connection, verb, limit_s=limit_s)
            assert isinstance(answer, dict)
            assert "error" in answer
        assert ask(connection, "check") == {"id": 1, "value": None}


def test_what_is_no_request_is_answered_by_an_error(worker: Worker) -> None:
    good: dict[str, Any] = {"library": "", "limit_s": 5, "call": {}}
    requests: list[Any] = [
        None, [], {}, {"id": 1}, {"id": [], "verb": "report", "arguments": good},
        *({"id": 1, "verb": verb, "arguments": good} for verb in ("", "mps\0", "x" * 100_000)),
        *({"id": 1, "verb": verb, "arguments": {}} for verb in supervisor.CALLS),
        *(
            {"id": 1, "verb": verb, "arguments": {**good, name: value}}
            for verb in supervisor.CALLS
            for name, value in (
                ("call", None), ("call", [{}]), ("call", {"daemons": [{}]}), ("limit_s", True),
                ("call", {"path": "/etc/shadow"}), ("library", {}), ("limit_s", 10**30),
            )
        ),
    ]  # fmt: skip
    with worker.connect() as connection:
        for request in requests:
            messages.send(connection, request)
            answer = messages.receive(connection)
            assert isinstance(answer, dict)
            assert "malformed" in str(answer["error"])
        wanted: dict[str, Any] = {"starts": True, "owner": ""}
        assert "error" in str(ask(connection, "mps", daemons=[{}], **wanted))
        assert ask(connection, "mps", daemons=[], **wanted) == {"id": 1, "value": {}}
        assert ask(connection, "check") == {"id": 1, "value": None}
    assert worker.process.poll() is None


def test_a_library_that_others_can_change_is_not_loaded(worker: Worker) -> None:
    folder = worker.node.driver_root / "usr/lib/x86_64-linux-gnu"
    (library,) = (each for each in folder.glob("libnvidia-ml.so.*") if not each.is_symlink())
    with worker.connect() as connection:
        for path in (folder.parent, folder, library):
            mode = path.stat().st_mode
            path.chmod(mode | 0o002)
            assert "others than root can change" in str(ask(connection, "report")), path
            path.chmod(mode)
        assert "value" in str(ask(connection, "report"))


def test_hostile_clients_cost_the_agent_nothing(worker: Worker) -> None:
    with contextlib.ExitStack() as stack:
        for data in (b"\xff\xff\xff\xff", b"\0\0\0\2{}", b"\0\0\0\5x", b""):
            connection = stack.enter_context(worker.connect())
            connection.sendall(data)
        for _ in range(20):
            stack.enter_context(worker.connect())
        run(worker, lambda client: client.events())
    assert "more than 16777216" in worker.text
    assert "it takes too long" in worker.text


def test_a_socket_of_a_killed_process_1_does_not_keep_it_from_starting() -> None:
    """The number of a container's process 1 is always the same."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # the path of a socket is short
        path = f"{folder}/nvml.sock"
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(f"{path}.{os.getpid()}")
        with nvml_worker.listen(path), socket.socket(socket.AF_UNIX) as client:
            client.connect(path)


def test_another_user_is_refused(worker: Worker) -> None:
    if os.geteuid():
        pytest.skip("needs root's privileges")
    assert os.stat(worker.path).st_mode & 0o777 == 0o600
    os.chmod(worker.path, 0o666)  # noqa: S103
    os.chmod(os.path.dirname(worker.path), 0o755)  # noqa: S103
    code = f"import socket; s = socket.socket(socket.AF_UNIX); s.connect({worker.path!r}); print(s.recv(1))"
    done = captured(
        ["setpriv", "--reuid=65534", "--clear-groups", "/usr/bin/python3", "-c", code],
        timeout=TIMEOUT_S,
    )

    assert done.stdout == "b''\n", done
    assert "of user 65534 is refused" in worker.text


def test_it_has_no_network(worker: Worker) -> None:
    if os.geteuid():
        pytest.skip("needs root's privileges")
    mine, its = (os.readlink(f"/proc/{pid}/ns/net") for pid in ("self", worker.process.pid))

    assert mine != its
