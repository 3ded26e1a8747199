# SPDX-License-Identifier: Apache-2.0
"""MIG through NVML's worker in another container, and its question to the container engine."""

import asyncio
import contextlib
import json
import tempfile
from collections.abc import Iterator
from concurrent import futures
from dataclasses import replace
from pathlib import Path
from types import NoneType
from typing import Any

import grpc
import pytest

from nvct import typed
from nvct.agent.core.context import Context
from nvct.agent.core.logs import Log
from nvct.agent.kubelet import kubelet_pb2 as api
from nvct.agent.mig_manager import task
from nvct.agent.nvml import engine_question, mig_verbs
from nvct.agent.nvml.client import NvmlClient
from nvct.agent.nvml.supervisor import call_of
from nvct.agent.nvml.worker_client import NvmlWorkerClient
from nvct.errors import HostError, NvmlError, UnsafePathError, UsageError
from nvct.host.nvml.mig_model import MigState
from nvct.host.nvml.session import NvmlSession
from nvct.host.roots import Roots
from nvct.mig import smi
from nvct.mig.apply import Machine
from nvct.mig.holders import Holder
from nvct.oci.jsontext import Json
from nvct.typed import MalformedError
from tests.unit.agent.machines import Supervisor
from tests.unit.agent.nvml.test_worker import Worker, ask, connected, started
from tests.unit.mig.conftest import machine, node  # noqa: F401 - fixtures
from tests.unit.mig.test_pause import fake_proc  # noqa: F401 - a fixture

UUID = "GPU-00000000-0000-0000-0000-000000000000"
GOOD: dict[str, dict[str, Json]] = {
    "mig_create": {"uuid": UUID, "kind": 0, "start": 0, "size": 1},
    "mig_create_compute": {"uuid": UUID, "gi": 1, "kind": 0, "engine": 0},
    "mig_destroy": {"uuid": UUID, "gi": 1},
    "mig_destroy_compute": {"uuid": UUID, "gi": 1, "ci": 0},
    "mig_set_mode": {"uuid": UUID, "enabled": True},
    mig_verbs.HOLDERS: {"gpus": [UUID], "instances": None},
    mig_verbs.NODES: {},
    mig_verbs.RESET: {"gpus": [UUID]},
}
BAD: list[tuple[str, Json]] = [
    ("report", {"uuid": UUID}),  # no arguments
    ("dlopen", {"path": "/evil.so"}),
    (mig_verbs.NODES, {"path": "/etc"}),
    (mig_verbs.HOLDERS, {"gpus": [UUID], "instances": [[UUID, 1]]}),
    (mig_verbs.HOLDERS, {"gpus": [UUID], "instances": [[UUID, 1, True]]}),
    (mig_verbs.HOLDERS, {"gpus": [UUID], "instances": "all"}),
    *((verb, []) for verb in GOOD),
    *((verb, {**call, "program": "/bin/sh"}) for verb, call in GOOD.items()),
    *((verb, {**call, name: {}}) for verb, call in GOOD.items() for name in call),
    *((verb, {}) for verb, call in GOOD.items() if call),
]


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    with started(tmp_path, profile="a100-80") as made:
        yield made


@pytest.mark.parametrize("verb", GOOD)
def test_each_verb_may_be_asked(verb: str) -> None:
    _, call = call_of(verb, {"library": "", "limit_s": 5, "call": GOOD[verb]})
    assert typed.dump(call) == GOOD[verb]


@pytest.mark.parametrize(("verb", "call"), BAD)
def test_what_is_no_call_of_a_verb_is_refused(verb: str, call: Json) -> None:
    with pytest.raises(MalformedError):
        call_of(verb, {"library": "", "limit_s": 5, "call": call})


def test_the_worker_checks_calls_and_limits(worker: Worker) -> None:
    with worker.connect() as connection:
        for verb, limit_s in (("mig_create", 5), (mig_verbs.RESET, 5), (mig_verbs.NODES, 61)):
            answer = ask(connection, verb, limit_s=limit_s)
            assert isinstance(answer, dict)
            assert "error" in answer
    assert worker.children() == []  # NVML was not even started


async def test_mig_devices_are_made_and_destroyed(worker: Worker) -> None:
    async with connected(worker) as client:
        change = client.call
        gpu = (await client.mig()).gpus[0]
        assert await change("mig_set_mode", bool, {"uuid": gpu.uuid, "enabled": True})
        place: dict[str, Json] = {"uuid": gpu.uuid, "kind": 0, "start": 0, "size": 1}
        gi = await change("mig_create", int, place)
        compute: dict[str, Json] = {"uuid": gpu.uuid, "gi": gi, "kind": 0, "engine": 0}
        ci = await change("mig_create_compute", int, compute)
        (instance,) = (await client.mig()).gpus[0].instances
        assert (instance.id, instance.compute[0].id) == (gi, ci)
        with pytest.raises(NvmlError, match="nvmlDeviceCreateGpuInstanceWithPlacement"):
            await change("mig_create", int, place)
        asked = mig_verbs.request_holders([gpu], {(gpu.uuid, gi, ci)})
        assert await change(mig_verbs.HOLDERS, tuple[Holder, ...], asked) == ()
        one: dict[str, Json] = {"uuid": gpu.uuid, "gi": gi}
        await change("mig_destroy_compute", NoneType, {**one, "ci": ci})
        await change("mig_destroy", NoneType, one)
        assert (await client.mig()).gpus[0].instances == ()
        assert client.problem == ""


async def test_gpus_are_reset_while_nvml_is_closed(worker: Worker) -> None:
    program = worker.node.driver_root / "usr/bin/nvidia-smi"
    record = worker.node.tree / "record"
    children = f"/proc/{worker.process.pid}/task/{worker.process.pid}/children"
    program.unlink()
    program.write_text(f'#!/bin/sh\necho "$@" > {record}\nwc -w < {children} >> {record}\n')
    program.chmod(0o755)

    async with connected(worker) as client:
        gpus = (await client.mig()).gpus
        with pytest.raises(NvmlError, match="NVML does not know all GPUs"):
            await client.call(mig_verbs.RESET, NoneType, {"gpus": [gpus[0].bus_id, "; reboot"]})
        assert not record.exists()
        buses: list[Json] = [gpu.bus_id for gpu in gpus[2:4]]
        await client.call(mig_verbs.RESET, NoneType, {"gpus": buses})
        # This shell is the worker's only child.
        assert record.read_text().split() == ["-r", "-i", f"{buses[0]},{buses[1]}", "1"]
        assert len((await client.mig()).gpus) == 8
        program.write_text("#!/bin/sh\necho GPU is in use >&2; exit 19\n")
        with pytest.raises(HostError, match=r"nvidia-smi -r -i .* failed: GPU is in use"):
            await client.call(mig_verbs.RESET, NoneType, {"gpus": buses})


def test_a_gpu_that_a_process_has_open_is_not_reset_by_the_worker(
    machine: Machine,  # noqa: F811
    fake_proc: Roots,  # noqa: F811
) -> None:
    session = machine.session
    assert isinstance(session, NvmlSession)
    gpu = session.mig().gpus[0]

    class Session:
        limit_s, path, is_open = 0, "/lib/libnvidia-ml.so.1", True

        def mig(self) -> MigState:
            return MigState(gpus=(replace(gpu, minor=3),))

        def close(self) -> None:
            self.is_open = False

    held = Session()
    with pytest.raises(HostError, match=r"a GPU is in use: process 4242 \(.*\) holds GPU 0"):
        mig_verbs.reset(held, fake_proc, mig_verbs.Reset(gpus=(gpu.bus_id,)))  # type: ignore[arg-type]
    assert not held.is_open
    (Path(fake_proc.proc) / "4242/comm").write_text("nvidia-persiste\n")
    with pytest.raises(HostError, match=r"nvidia-smi -r -i .* failed"):  # there is none here
        mig_verbs.reset(held, fake_proc, mig_verbs.Reset(gpus=(gpu.bus_id,)))  # type: ignore[arg-type]


def test_holders_are_named_across_containers(
    machine: Machine,  # noqa: F811
    fake_proc: Roots,  # noqa: F811
) -> None:
    session = machine.session
    assert isinstance(session, NvmlSession)
    gpu = session.mig().gpus[0]

    class Session:
        def mig(self) -> MigState:
            return MigState(gpus=(replace(gpu, minor=3),))

    call = typed.load(mig_verbs.Holders, mig_verbs.request_holders([gpu], None))
    found = typed.load(tuple[Holder, ...], mig_verbs.holders(Session(), fake_proc, call))  # type: ignore[arg-type]
    assert [str(holder).partition(" (")[0] for holder in found] == ["process 4242"]


def test_a_system_runs_its_own_nvidia_smi(tmp_path: Path) -> None:
    program = tmp_path / "usr/bin/nvidia-smi"
    program.parent.mkdir(parents=True)
    program.write_text("")
    program.chmod(0o755)
    library = f"{tmp_path}/usr/lib/libnvidia-ml.so.1"
    found = smi.find(str(tmp_path), library)
    assert found.command == (str(program),)
    assert found.env is not None
    assert found.env["LD_LIBRARY_PATH"] == f"{tmp_path}/usr/lib"
    loader = Path(f"{tmp_path}{smi.LOADERS[0]}")
    loader.parent.mkdir()
    loader.write_text("")
    assert smi.find(str(tmp_path), library) == smi.Smi(
        ("chroot", str(tmp_path), program.as_posix()[len(str(tmp_path)) :])
    )
    assert smi.find(str(tmp_path / "nothing"), library) == smi.Smi()
    program.parent.chmod(0o777)
    with pytest.raises(UnsafePathError, match="others than root can change /usr/bin"):
        smi.find(str(tmp_path), library)


@pytest.mark.parametrize("variable", ["WITH_REBOOT", "WITH_SHUTDOWN_HOST_GPU_CLIENTS"])
async def test_what_needs_the_host_is_refused_with_a_worker(variable: str) -> None:
    env = {variable: "true", "NODE_NAME": "node-1"}
    context = Context(env=env, client=NvmlWorkerClient("/nonexistent"), journal=Log())
    with pytest.raises(UsageError, match="cannot reboot the host"):
        task.make(context)


# The container engine is asked on its socket, by a process of its own.


CONFIG = json.dumps({"enableCDI": True})


@pytest.fixture
def root() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # the path of a socket is short
        yield Path(folder)


@contextlib.contextmanager
def engine(socket: Path) -> Iterator[None]:
    """Serve the CRI of a containerd."""
    socket.parent.mkdir(parents=True)
    unary = grpc.unary_unary_rpc_method_handler
    methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "Version": unary(
            lambda _request, _context: api.VersionResponse(
                runtime_name="containerd", runtime_version="1.7.24"
            ),
            api.VersionRequest.FromString,
            api.VersionResponse.SerializeToString,
        ),
        "Status": unary(
            lambda request, _context: api.StatusResponse(
                info={"config": CONFIG} if request.verbose else {}
            ),
            api.StatusRequest.FromString,
            api.StatusResponse.SerializeToString,
        ),
    }
    server = grpc.server(futures.ThreadPoolExecutor(2))
    handler = grpc.method_handlers_generic_handler("runtime.v1.RuntimeService", methods)
    server.add_generic_rpc_handlers((handler,))
    server.add_insecure_port(f"unix:{socket}")
    server.start()
    try:
        yield
    finally:
        server.stop(None).wait()


def test_the_agent_asks_through_its_supervisor(root: Path) -> None:
    socket = root / "run/containerd/containerd.sock"
    (root / "run/crio").mkdir(parents=True)
    (root / "run/crio/crio.sock").touch()  # no socket
    supervisor = Supervisor(HOST_ROOT_MOUNT=str(root))

    async def ask() -> object:
        client = NvmlClient(supervisor.connection)
        try:
            return await client.engine()
        finally:
            client.disconnect()
            assert supervisor.ended() == 0

    with engine(socket):
        answer = asyncio.run(ask())

    told = {"name": "containerd", "version": "1.7.24", "config": CONFIG}
    assert answer == {str(socket): told}


def test_without_an_engine_there_is_no_answer(root: Path) -> None:
    assert engine_question.ask([str(root)]) == {}


def test_the_roots_are_those_that_exist(root: Path) -> None:
    env = {"HOST_ROOT_MOUNT": "/nowhere", "DRIVER_ROOT_CTR_PATH": str(root)}

    assert engine_question.roots(env) == [str(root), "/"]
