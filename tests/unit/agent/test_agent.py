# SPDX-License-Identifier: Apache-2.0
"""The agent: one serves a node, a failed task is started again, /status says why."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import io
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from click.testing import CliRunner
from prometheus_client import parser

from nvct.agent import main, task_table
from nvct.agent.core import instance, logs, status
from nvct.agent.core.instance import YIELD, Instance
from nvct.agent.core.logs import Log, from_environment
from nvct.agent.core.status import Status, with_yield
from nvct.agent.core.task import KeptTask
from nvct.agent.kubernetes import node_news
from nvct.agent.kubernetes.cluster import ClusterError
from nvct.agent.machine.driver_root import with_driver_roots
from nvct.agent.main import Agent, run
from nvct.agent.task_table import Entry
from nvct.agent.web import http
from nvct.agent.web.exposition import Family, Sample
from nvct.agent.web.http import Request
from nvct.cli import agent as cli
from nvct.cli import options
from nvct.errors import HostError, NvmlError, UsageError
from tests.support.processes import captured
from tests.unit.agent.device_plugin.fake_kubelet import until
from tests.unit.agent.machines import REPOSITORY


@pytest.fixture
def folder() -> Iterator[str]:
    with tempfile.TemporaryDirectory(dir="/tmp") as path:  # a socket's path is short
        yield path


async def forever() -> None:
    await asyncio.Event().wait()


@dataclass
class Folder:
    """A folder of a task."""

    make: Callable[..., Any]

    def module(self, _name: str) -> Folder:
        return self

    def resolve(self, _words: object, _env: object) -> tuple[None, tuple[()]]:
        return None, ()


class Unused:
    """NVML that no task asks for anything."""

    closed = 0
    asked = 0
    problem = None
    refusal = ""
    is_let_go = False
    lets_go = True
    chooses_library = True

    async def report(self) -> None:
        self.asked += 1
        raise NvmlError("it does not answer")

    async def close(self) -> None:
        self.closed += 1

    async def let_go(self, reason: str) -> None:
        self.refusal, self.is_let_go = reason, self.lets_go


def agent(*run: Callable[[], Awaitable[None]], has_gpu: bool = True, port: int = -1) -> Agent:
    """An agent without a task of its own; it gets these instead."""
    made = Agent(
        (), {}, Unused(), Log(target=io.StringIO()), lambda: has_gpu,  # type: ignore[arg-type]
        listen=("127.0.0.1", port) if port >= 0 else None,
    )  # fmt: skip
    made.tasks = [KeptTask(f"task-{n}", one) for n, one in enumerate(run)]
    made.status.tasks = [*made.tasks, *made.status.tasks]
    return made


@contextlib.asynccontextmanager
async def serving(made: Agent, folder: str) -> AsyncIterator[None]:
    stopped = asyncio.Event()
    runs = asyncio.create_task(made.serve(Instance(folder), stopped))
    try:
        yield
    finally:
        stopped.set()
        await runs


class Begun:
    """Tasks that note that they have begun, in an agent that has these alone."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *names: str, **env: str) -> None:
        self.names: list[str] = []
        self.works = {name: SimpleNamespace(run=partial(self.run, name)) for name in names}
        entries = {
            name: cast("Entry", Folder(lambda _context, work=work: work))
            for name, work in self.works.items()
        }
        monkeypatch.setattr(main, "TASKS", entries)
        monkeypatch.setattr(task_table, "load", list)
        log = Log(target=io.StringIO())
        self.agent = Agent(names, env, cast("Any", Unused()), log, lambda: True)

    async def run(self, name: str) -> None:
        self.names.append(name)
        await forever()

    def all(self) -> bool:
        return sorted(self.names) == sorted(self.works)


@pytest.mark.parametrize("limit_s", [60.0, 0.0], ids=["it-comes", "it-does-not"])
async def test_a_task_waits_a_moment_for_the_file_of_config_manager(
    limit_s: float, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both start at once; without the wait, each start of the agent would log failures."""
    monkeypatch.setattr(main, "SOON_S", limit_s)
    path = f"{folder}/config.yaml"
    begun = Begun(monkeypatch, "labels", "config-manager", CONFIG_FILE=path)
    async with serving(begun.agent, folder):
        if limit_s:
            await until(lambda: begun.names == ["config-manager"])
            os.close(os.open(path, os.O_CREAT))
        await until(begun.all)


@pytest.mark.parametrize("limit_s", [60.0, 0.0], ids=["it-offers", "it-does-not"])
async def test_other_tasks_start_once_the_devices_are_offered(
    limit_s: float, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they import would delay the kubelet's first list; it came after all of them."""
    monkeypatch.setattr(main, "SOON_S", limit_s)
    begun = Begun(monkeypatch, "labels", "device-plugin", "config-manager")
    offers = begun.works["device-plugin"]
    offers.is_settled = False
    async with serving(begun.agent, folder):
        if limit_s:
            await until(lambda: bool(begun.names))
            assert begun.names == ["device-plugin"]
            offers.is_settled = True
        await until(begun.all)


def probe(made: Agent, path: str) -> tuple[int, str]:
    """Return what an agent answers root of its node."""
    answer = made.status.answer(http.Request("GET", path))
    return answer.status, answer.body


TENANTS = "team-a/claim-of-somebody"


def test_the_port_shows_states_and_names_no_tenant() -> None:
    detail = {
        "resource": "gpu.nvidia.com",
        "state": "failed",
        "reason": TENANTS,
        "claims": [TENANTS],
    }
    work: Any = SimpleNamespace(describe=lambda: [detail], metrics=tuple)
    task = KeptTask("dra", forever, lambda: work)
    task.state, task.reason, task.restarts = "failed", TENANTS, 2
    status = Status([task], lambda: TENANTS, "serving", lambda: {"devices": [TENANTS]})
    for accepts_html in (False, True):
        for path in ("/status", "/", "/healthz", "/readyz", "/livez", "/nothing"):
            request = Request("GET", path, accepts_html=accepts_html)
            assert TENANTS not in status.open_answer(request).body, path
            same = status.answer(request)
            assert status.open_answer(request).status == same.status
            assert (TENANTS in same.body) is (
                path in ("/healthz", "/readyz", "/status") or (path == "/" and accepts_html)
            )
    unknown = status.answer(Request("GET", "/nothing"))
    assert (unknown.status, "GET /status" in unknown.body) == (404, True)
    shown = json.loads(status.open_answer(Request("GET", "/status")).body)
    assert shown["tasks"] == [{"name": "dra", "state": "failed", "restarts": 2}]
    assert (shown["state"], shown["nvml"]) == ("serving", {"state": "fails"})
    assert "nvct agent --status" in shown["details"]


def test_an_agent_that_starts_is_alive_and_not_ready() -> None:
    made = agent(forever)
    assert probe(made, "/livez")[0] == 200
    assert probe(made, "/readyz")[0] == 503


async def test_a_task_that_fails_is_started_again_and_the_others_run_on(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nvct.agent.core.waiting.DELAYS_S", (0.3,))
    starts: list[int] = []

    async def fails() -> None:
        starts.append(1)
        if len(starts) < 3:
            raise HostError("it is out of order")
        await forever()

    made = agent(fails, forever)
    async with serving(made, folder):
        await until(lambda: made.tasks[0].state == "failed")
        number, body = await http.ask(f"{folder}/agent.sock", "GET", "/healthz")
        assert (number, body) == (503, "failed: task-0: it is out of order\n")
        assert probe(made, "/livez") == (200, "ok\n")
        assert probe(made, "/readyz") == (
            503, "failed: task-0 has failed: it is out of order\n"
        )  # fmt: skip
        _, body = await http.ask(f"{folder}/agent.sock", "GET", "/status")
        first, second = json.loads(body)["tasks"]
        assert (first["state"], first["reason"]) == ("failed", "it is out of order")
        assert (second["state"], second["reason"]) == ("running", "")
        await until(lambda: made.tasks[0].restarts == 2)
        assert (await http.ask(f"{folder}/agent.sock", "GET", "/healthz"))[0] == 200


async def test_a_newer_agent_takes_over_and_the_older_one_stands_by_until_it_ends(
    folder: str,
) -> None:
    older, newer = agent(forever), agent(forever)
    async with serving(older, folder):
        await until(lambda: older.tasks[0].state == "running")
        async with serving(newer, folder):
            await until(lambda: newer.tasks[0].state == "running")
            assert older.tasks[0].state == "stopped"
            assert older.status.part == "standby"
            assert older.shared.has_successor
            assert probe(newer, "/readyz") == (200, "ok\n")
            assert probe(older, "/readyz") == (
                503, "failed: another agent serves this node\n"
            )  # fmt: skip
            assert probe(older, "/livez") == (200, "ok\n")
            await until(lambda: older.client.closed == 1)  # type: ignore[attr-defined]
            _, body = await http.ask(f"{folder}/agent.sock", "GET", "/status")
            assert json.loads(body)["state"] == "serving"
        await until(lambda: older.tasks[0].state == "running")
        assert (older.status.part, newer.tasks[0].state) == ("serving", "stopped")
        assert not older.shared.has_successor


async def test_an_agent_whose_pod_ends_serves_until_the_sockets_are_taken(folder: str) -> None:
    taken, stopped = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        await taken.wait()

    async def serves() -> None:
        try:
            await forever()
        finally:
            assert older.shared.hands_over(wait)

    older, newer = agent(serves), agent(forever)
    runs = asyncio.create_task(older.serve(Instance(folder), stopped))
    await until(lambda: older.tasks[0].state == "running")
    older.is_ending = True
    async with serving(newer, folder):
        await until(lambda: newer.tasks[0].state == "running")
        await asyncio.sleep(0.1)
        assert not runs.done()
        taken.set()
        await asyncio.wait_for(runs, 10)


async def test_an_agent_that_leaves_the_node_has_no_successor(folder: str) -> None:
    made, leaves = agent(forever), Instance(folder)
    async with serving(made, folder):
        await until(lambda: made.tasks[0].state == "running")
        await leaves.take(to_serve=False)
        assert (made.tasks[0].state, made.shared.has_successor) == ("stopped", False)
        leaves.release()


async def test_an_agent_that_knows_no_hand_over_yields(folder: str) -> None:
    """Those of before."""

    older, newer, yielded = Instance(folder), Instance(folder), asyncio.Event()
    await older.take()
    server = with_yield(Status(()), {YIELD: yielded.set})
    await server.listen_unix(older.socket)
    taken = asyncio.create_task(newer.take())
    await asyncio.wait_for(yielded.wait(), 10)
    await server.close()
    older.release()
    await taken
    newer.release()


@pytest.mark.parametrize("part", ["serving", "waiting"])
async def test_the_driver_is_released_and_taken_again_by_commands(
    part: str, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nvct.agent.core.instance.FOLDER", folder)
    monkeypatch.setattr(cli, "RELEASE_S", 3)

    def command(*words: str) -> tuple[int, str]:
        result = CliRunner().invoke(cli.agent, words)
        return result.exit_code, result.output or str(result.exception)

    made = agent(forever, has_gpu=part == "serving")
    async with serving(made, folder):
        await until(lambda: made.status.part == part)
        released = await asyncio.to_thread(command, "release", "--limit=1")
        assert released[0] == 0
        assert "the release ends after 1 min" in released[1]
        nvml = made.status.document()["nvml"]
        assert nvml == {
            "state": "released",
            "reason": "the driver is being replaced, as `nvct agent release` says",
        }
        assert (await asyncio.to_thread(command, "resume"))[0] == 0
        made.release._has_driver = lambda: True
        await until(lambda: not made.client.refusal)
        made.client.lets_go = False  # type: ignore[attr-defined]
        status, output = await asyncio.to_thread(command, "release")
        assert status == 1
        assert "the agent still uses the driver after 3 s: NVML closing" in output
    assert (await asyncio.to_thread(command, "resume"))[0] == 0
    assert "no agent serves this node" in (await asyncio.to_thread(command, "release"))[1]
    assert "driver-release.json" in os.listdir(folder)
    assert (
        "as `nvct agent release` says" in (await asyncio.to_thread(options.agent_and_release))[1]
    )
    _, output = await asyncio.to_thread(command, "resume")
    assert output == "the release is over: no agent serves this node\n"
    assert (await asyncio.to_thread(options.agent_and_release))[1] == ""


def test_a_host_without_what_an_agent_needs_has_nothing_released(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "nvct.agent.core.instance", None)
    monkeypatch.delattr("nvct.agent.core.instance")
    assert options.agent_and_release() == (None, "")


def test_another_user_learns_why_the_agent_does_not_answer(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nvct.agent.core.instance.FOLDER", folder)

    async def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(http, "ask", refuse)
    with pytest.raises(HostError, match=r"agent\.sock answers only root") as raised:
        instance.status()
    assert raised.value.hint == "run this command as root"


@pytest.mark.parametrize("in_pod", [True, False])
async def test_the_agent_ends_when_nvct_leaves_the_node(in_pod: bool, folder: str) -> None:
    made = agent(forever)
    made.env = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"} if in_pod else {}

    async with serving(made, folder):
        await until(lambda: made.status.part == "serving")
        taker = Instance(folder)
        await taker.take()
        os.unlink(f"{folder}/agent.lock")
        taker.release()
        await until(lambda: made.status.part == "standby")
        await asyncio.sleep(1.5)
        said = made.journal.target
        assert isinstance(said, io.StringIO)
        assert ("nvct has left this node" in said.getvalue()) is not in_pod
        assert "another agent serves" not in said.getvalue()


async def test_labels_of_the_node_release_the_driver(folder: str) -> None:
    made = agent(forever)
    made.env = {"NODE_NAME": "node-7"}
    key = "nvidia.com/gpu.deploy.client"

    async with serving(made, folder):
        await until(lambda: made.tasks[0].state == "running")  # it listens by then
        for node, value in (("node-8", ""), ("node-7", "paused-for-driver-upgrade")):
            node_news.tell(node, {"metadata": {"labels": {key: value}}})
            await until(lambda: made.client.is_let_go is bool(value))  # noqa: B023


def test_the_node_is_watched_where_the_chart_says_so() -> None:
    env = {"NVCT_DRIVER_UPGRADES": "true"}
    log = Log(target=io.StringIO())
    made = Agent((), env, cast("Any", Unused()), log, lambda: True)
    assert [task.name for task in made.tasks] == ["driver-upgrades"]
    with pytest.raises(ClusterError, match="cluster"):
        asyncio.run(made.tasks[0].run())  # type: ignore[arg-type]  # a coroutine


@pytest.mark.parametrize("part", ["serving", "waiting"])
async def test_nvml_of_another_container_starts_before_the_older_agent_yields(
    part: str, folder: str
) -> None:
    """A node without a GPU has no use for it."""

    made, older = agent(forever, has_gpu=part == "serving"), Instance(folder)
    made.client.chooses_library = False
    await older.take()
    serves = asyncio.create_task(made.serve(Instance(folder), asyncio.Event()))
    await until(lambda: made.client.asked == (part == "serving"))  # type: ignore[attr-defined]
    assert made.tasks[0].state == "waiting"
    older.release()
    await until(lambda: made.status.part == part)
    serves.cancel()
    await asyncio.gather(serves, return_exceptions=True)


def test_the_modules_of_all_tasks_are_there() -> None:
    task_table.load(task_table.TASKS)


async def test_an_agent_that_does_not_yield_is_named(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nvct.agent.core.instance.YIELD_S", 0.2)

    older, newer = Instance(folder), Instance(folder)
    await older.take()
    with pytest.raises(HostError, match=f"another agent holds {folder}/agent.lock"):
        await newer.take()
    older.release()
    await newer.take()
    newer.release()


async def test_without_a_gpu_no_task_is_started(folder: str) -> None:
    made = agent(forever, has_gpu=False)
    async with serving(made, folder):
        await until(lambda: "no NVIDIA GPU" in str(made.journal.target.getvalue()))  # type: ignore[union-attr]
        assert made.tasks[0].state == "waiting"


def test_the_metrics_of_all_tasks_are_one_text() -> None:
    samples = (Sample(value=1, labels={"name": "é"}),)
    made = agent(forever, forever)
    work: Any = SimpleNamespace(
        describe=list, metrics=lambda: [Family(name="x", help="X.", samples=samples)]
    )
    made.tasks[1].work = lambda: work

    made.tasks[0].state, made.tasks[0].restarts = "failed", 3
    answer = Status(made.tasks, lambda: "it hangs", "serving").answer(Request("GET", "/metrics"))

    families = parser.text_string_to_metric_families(answer.body)
    values = {(s.name, *sorted(s.labels.items())): s.value for f in families for s in f.samples}
    assert answer.body.endswith('# HELP x X.\n# TYPE x gauge\nx{name="é"} 1\n')
    assert values["x", ("name", "é")] == 1
    assert values["nvct_agent_task_state", ("state", "failed"), ("task", "task-0")] == 1
    assert values["nvct_agent_task_restarts_total", ("task", "task-0")] == 3
    assert values["nvct_agent_state", ("state", "serving")] == 1
    assert values["nvct_agent_nvml_up",] == 0


def test_the_installers_file_tells_where_the_driver_is(tmp_path: Path) -> None:
    file = tmp_path / "driver-ready"
    env = {"NVCT_DRIVER_READY_FILE": str(file), "NVIDIA_DRIVER_ROOT": "/", "MIG_STRATEGY": "mixed"}
    assert with_driver_roots(env) == env
    file.write_text("NVIDIA_DRIVER_ROOT=/run/nvidia/driver\n")
    assert with_driver_roots(env) == {**env, "NVIDIA_DRIVER_ROOT": "/run/nvidia/driver"}
    assert with_driver_roots({}) == {}


@pytest.mark.parametrize(
    ("root", "is_known"),
    [
        ("/", True), ("/host", True), ("/host/run/nvidia/driver", True), ("/host/", True),
        ("/run/nvct-agent", False), ("/host/run/nvct-agent", False), ("/host/../tmp", False),
        ("host", False), ("/hosts", False),
    ],
)  # fmt: skip
def test_the_installers_file_chooses_among_the_roots_of_the_chart(
    *, root: str, is_known: bool, tmp_path: Path
) -> None:
    file = tmp_path / "driver-ready"
    file.write_text(f"DRIVER_ROOT_CTR_PATH={root}\n")
    env = {
        "NVCT_DRIVER_READY_FILE": str(file), "DRIVER_ROOT_CTR_PATH": "/host",
        "NVCT_DRIVER_FOLDER": "/host/run/nvidia/driver",
    }  # fmt: skip

    if is_known:
        assert with_driver_roots(env)["DRIVER_ROOT_CTR_PATH"] == root
        return
    with pytest.raises(HostError, match="is not a driver root that this container knows"):
        with_driver_roots(env)


@pytest.mark.parametrize(
    ("tasks", "env", "sentence"),
    [
        (("dra", "mig-manager"), {}, "tasks dra and mig-manager both change MIG devices"),
        (("device-plugin", "dra"), {"NVCT_RESOURCES": "both"},
         "NVCT_RESOURCES must be classic or dra, not 'both'"),
        (("x",), {}, "task 'x' is unknown"),
    ],
)  # fmt: skip
def test_tasks_that_cannot_run_are_refused(
    tasks: tuple[str, ...], env: dict[str, str], sentence: str
) -> None:
    with pytest.raises(UsageError, match=sentence):
        run(tasks, env, Unused())  # type: ignore[arg-type]


def test_the_log_has_a_level_and_a_form() -> None:
    target = io.StringIO()
    log = Log(level="warning", form="json", target=target)

    log.info("not this")
    log.warning("two\nlines")

    (line,) = target.getvalue().splitlines()
    entry = json.loads(line)
    assert (entry["level"], entry["message"]) == ("warning", "two lines")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, ""),
        ({"host": "older"}, "older serves this node"),
        ({"tasks": []}, ""),
        (
            {"tasks": [{"name": "x", "state": "failed", "reason": "no driver", "detail": None}]},
            "x has failed: no driver",
        ),
        (
            {"tasks": [{"name": "x", "state": "running", "detail": [
                {"resource": "nvidia.com/gpu", "state": "registering"}]}]},
            "nvidia.com/gpu is registering",
        ),
    ],
)  # fmt: skip
def test_an_agent_is_ready_when_it_serves_the_node(change: dict[str, object], reason: str) -> None:
    made = agent(forever)
    listed = [{"resource": "nvidia.com/gpu", "state": "listed"}]
    work: Any = SimpleNamespace(describe=lambda: listed)
    made.tasks[0].work = lambda: work
    document = {**Status(made.tasks).document(), "host": "this"}

    assert status.why_not_ready({**document, **change}, "this") == reason


async def test_a_port_that_is_taken_is_the_reason_of_its_task_and_the_others_run(
    folder: str,
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        made = agent(forever, port=port)
        async with serving(made, folder):
            await until(lambda: made.http.state == "failed")
            assert made.http.reason == f"cannot listen on 127.0.0.1:{port}: Address already in use"
            await until(lambda: made.tasks[0].state == "running")


def test_a_wrong_address_ends_the_program_with_one_sentence() -> None:
    done = captured(
        [sys.executable, "-I", "-m", "nvct.agent"], env={"NVCT_AGENT_LISTEN": "here"},
        cwd=REPOSITORY, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("nvct agent: address 'here' has no port")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("variable", "value"),
    [("NVCT_LOG_LEVEL", "loud"), ("NVCT_LOG_FORMAT", "xml"), ("DCGM_EXPORTER_LOG_FORMAT", "xml")],
)
def test_a_wrong_variable_of_the_log_is_named(variable: str, value: str) -> None:
    with pytest.raises(UsageError, match=f"{variable}='{value}'"):
        from_environment({variable: value})


def test_the_options_of_the_log_are_taken_from_any_programs_command_line() -> None:
    words = ["--mig-strategy", "none", "-log-level", "debug", "x", "--log-format=json"]

    rest, values = logs.from_command_line(words)

    assert rest == ["--mig-strategy", "none", "x"]
    assert values == {"NVCT_LOG_LEVEL": "debug", "NVCT_LOG_FORMAT": "json"}
    for wrong in (["--log-level=loud"], ["--log-level"], ["--log-format", ""]):
        with pytest.raises(UsageError, match="--log-"):
            logs.from_command_line(wrong)


@pytest.mark.parametrize(
    "words",
    [
        ["nvct.agent"],
        ["nvct.agent.core.program", "nvidia-device-plugin"],
        ["nvct.agent.nvml.worker"],
    ],
)
def test_a_signal_before_the_program_is_ready_ends_it_cleanly(
    words: list[str], folder: str
) -> None:
    """Also one that came while `nvct agent` became this program."""
    code = (
        "import os, signal, sys; from nvct.agent.core import program; program.block();"
        "os.kill(os.getpid(), signal.SIGTERM);"
        "os.execv(sys.executable, [sys.executable, '-m', *sys.argv[1:]])"
    )
    done = captured(
        [sys.executable, "-c", code, *words], cwd=REPOSITORY, timeout=30,
        env={"NVCT_AGENT_WORKER": f"{folder}/nvml.sock"},
    )  # fmt: skip

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("module", ["nvct.agent.__main__", "nvct.agent.core.program"])
def test_nvmls_process_is_forked_while_this_one_is_small(module: str) -> None:
    code = f"import sys, {module}, nvct.agent.nvml.supervisor; sys.exit('asyncio' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_first_list_loads_nothing_that_comes_after_it() -> None:
    """Values of GPUs and the HTTP server took 10 ms before the kubelet knew of any device."""
    code = (
        "import sys, nvct.agent.device_plugin.task, nvct.agent.device_plugin.registration\n"
        "print(*sorted(sys.modules.keys() & set(sys.argv)))"
    )
    later = ["nvct.agent.web.http", "nvct.host.nvml.sample_model", "nvct.agent.kubernetes.cluster"]
    command = [sys.executable, "-I", "-c", code, *later]
    done = captured(command, check=True)
    assert done.stdout.split() == []
