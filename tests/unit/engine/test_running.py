# SPDX-License-Identifier: Apache-2.0
"""Unit tests for nvct.engine.running: what an engine has in force against what its files say."""

import contextlib
import json
import os
import socket
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from nvct.doctor.docker import command_of
from nvct.engine import running, status
from nvct.engine.command import Completed
from nvct.engine.model import Engine, Files, State
from tests.support.memory import in_memory
from tests.unit.engine.docker_lab import working

SHIM = "/usr/bin/nvidia-container-runtime"
DOCKER = Engine(
    engine="docker", pid=7, version="28.5.2", unit="docker.service", socket="/run/docker.sock",
    config="/etc/docker/daemon.json",
)  # fmt: skip
CONTAINERD = Engine(
    engine="containerd", pid=8, version="2.1.9", unit="containerd.service",
    socket="/run/containerd/containerd.sock", config="/etc/containerd/config.toml",
)  # fmt: skip
CRIO = Engine(engine="crio", pid=9, version="1.31.0", socket="/run/crio/crio.sock")
FILE_STATE = State(handlers={"nvidia": SHIM, "runc": ""}, default="nvidia", cdi=True)
IN_FORCE = '[crio.runtime]\ndefault_runtime = "crun"\n[crio.runtime.runtimes.crun]\n'

UNKNOWN = "does not know nvidia, which its files name: nvct runtime configure, or SIGHUP"
OTHER_DEFAULT = "has runc as the default runtime, its files nvidia: systemctl restart docker"


def report_of(engine: Engine, answer: str, code: int = 200) -> running.Running:
    def ask(socket: str, target: str) -> tuple[int, bytes]:
        assert socket == engine.socket
        assert target == ("/info" if engine.engine == "docker" else "/config")
        return code, answer.encode()

    reported = running.of(engine, FILE_STATE, ask)
    assert reported
    return reported


def test_a_dockerd_that_has_not_read_its_file_is_recognized_by_its_info() -> None:
    info = {"Runtimes": {"runc": {"path": "runc"}}, "DefaultRuntime": "runc", "CDISpecDirs": []}

    reported = report_of(DOCKER, json.dumps(info))

    assert running.differences(DOCKER, FILE_STATE, reported, ["nvidia"]) == [
        f"the running docker {UNKNOWN}",
        f"the running docker {OTHER_DEFAULT}",
        "CDI is off in the running docker and on by its files: systemctl restart docker",
    ]


def test_a_dockerd_that_has_read_its_file_has_no_differences() -> None:
    info = {
        "Runtimes": {"nvidia": {"path": SHIM}}, "DefaultRuntime": "nvidia",
        "CDISpecDirs": ["/etc/cdi"], "DiscoveredDevices": [{"ID": "nvidia.com/gpu=0"}],
    }  # fmt: skip

    reported = report_of(DOCKER, json.dumps(info))

    assert (reported.by, reported.devices) == ("GET /info", ("nvidia.com/gpu=0",))
    assert running.differences(DOCKER, FILE_STATE, reported, ["nvidia"]) == []
    old = replace(DOCKER, version="20.10.24")
    reported = report_of(old, json.dumps({"Runtimes": {}, "DefaultRuntime": "runc"}))
    assert reported.state
    assert reported.state.cdi is None


def test_crio_reports_its_configuration_in_force() -> None:
    reported = report_of(CRIO, IN_FORCE)

    assert reported.by == "GET /config"
    assert [
        text.split(",")[0] for text in running.differences(CRIO, FILE_STATE, reported, ["nvidia"])
    ] == [
        "the running crio does not know nvidia",
        "the running crio has crun as the default runtime",
    ]


@pytest.mark.parametrize(
    ("engine", "answer", "code"),
    [(DOCKER, "no", 200), (DOCKER, "[]", 200), (DOCKER, "{}", 500), (CRIO, "[", 200),
     (DOCKER, '{"Runtimes": 7}', 200), (CRIO, "", 404)],
)  # fmt: skip
def test_a_malformed_answer_is_a_problem_and_no_error(
    engine: Engine, answer: str, code: int
) -> None:
    reported = report_of(engine, answer, code)

    assert reported.state is None
    assert reported.problem.startswith(f"the running {engine.engine} ")
    assert running.differences(engine, FILE_STATE, reported, ["nvidia"]) == []


def test_stopped_and_foreign_engines_are_not_asked() -> None:
    def never(*arguments: str) -> tuple[int, bytes]:
        raise AssertionError(arguments)

    for engine in (replace(DOCKER, pid=0), replace(DOCKER, foreign=True)):
        assert running.of(engine, FILE_STATE, never) is None


def test_containerd_has_read_its_files_unless_one_is_younger(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text("version = 2\n", encoding="utf-8")
    engine = replace(CONTAINERD, config=str(path))
    file_state = replace(FILE_STATE, files=(str(path),))
    changed = os.stat(path).st_ctime
    starts = {"before": changed - 5, "after": changed + 5}

    new = running.of(engine, file_state, started=lambda *_: starts["after"])
    old = running.of(engine, file_state, started=lambda *_: starts["before"])
    unknown = running.of(engine, file_state, started=lambda *_: None)

    reason = "after containerd started: it has not read that; systemctl restart containerd"
    assert new
    assert old
    assert unknown
    assert (new.state, new.by) == (file_state, "its files")
    assert running.differences(engine, file_state, new, ["nvidia"]) == []
    assert running.differences(engine, file_state, old, ["nvidia"]) == [f"{path} changed {reason}"]
    assert "is unknown" in unknown.problem


def test_status_asks_the_engine_and_keeps_the_files_apart(tmp_path: Path) -> None:
    config = tmp_path / "daemon.json"
    config.write_text(json.dumps({"runtimes": {"nvidia": {"path": SHIM}},
                                  "default-runtime": "nvidia"}))  # fmt: skip
    engine = replace(DOCKER, config=str(config))
    info = {"Runtimes": {"runc": {}}, "DefaultRuntime": "runc", "CDISpecDirs": ["/etc/cdi"]}

    engine_status = status.of(engine, Files(), lambda *_: (200, json.dumps(info).encode()))

    assert engine_status.registered == ("nvidia",)
    assert not engine_status.is_default
    assert len(engine_status.differences) == 2
    silent = status.of(engine, Files(), lambda *_: (500, b""))
    assert silent.is_default
    assert silent.running
    assert "answers 500" in silent.running.problem


def test_explain_compares_the_daemon_with_its_file(tmp_path: Path) -> None:
    lab = working(tmp_path)
    lab.tree.write(
        "etc/docker/daemon.json",
        json.dumps({"runtimes": {"nvidia": {"path": SHIM}}, "features": {"cdi": True}}),
    )
    assert lab.cause() == ""
    lab.info = {"Runtimes": {"nvidia": {}}, "DefaultRuntime": "runc", "CDISpecDirs": []}
    findings = lab.findings()
    assert lab.cause() == "not-reloaded"
    assert command_of(findings["not-reloaded"]) == "docker run --device"  # --runtime works
    assert findings["not-reloaded"].remedy == "systemctl restart docker"
    assert "has CDI off" in findings["cdi"].evidence
    lab.info = {"Runtimes": {}, "DefaultRuntime": "runc", "CDISpecDirs": ["/etc/cdi"]}
    assert lab.findings()["not-reloaded"].remedy == "kill -HUP 812"
    assert command_of(lab.findings()["not-reloaded"]) == "docker run --runtime"


# Unit tests for nvct.engine.running, against real sockets.


OK = "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{body}"
PLUGINS = """\
TYPE                            ID                       PLATFORMS      STATUS
io.containerd.content.v1        content                  -              ok
io.containerd.snapshotter.v1    btrfs                    linux/amd64    skip
io.containerd.snapshotter.v1    zfs                      linux/amd64    error
{cri}
"""


def never(argv: Sequence[str], _timeout_s: float = 0) -> Completed:
    raise AssertionError(argv)


@contextlib.contextmanager
def serving(path: Path, *answers: bytes) -> Iterator[str]:
    """Answer one connection after the other, and then no more."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.bind(str(path))
    server.listen()

    def serve() -> None:
        for answer in answers:
            connection, _ = server.accept()
            with connection:
                if answer:
                    connection.recv(4096)
                    connection.sendall(answer)
        server.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield str(path)
    finally:
        thread.join(20)


def answer(body: str, status: int = 200) -> bytes:
    text = OK.format(length=len(body), body=body)
    return text.replace("200 OK", f"{status} X").encode()


def info(*names: str) -> bytes:
    return answer(json.dumps({"Runtimes": {name: {"path": "x"} for name in names}}))


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    with in_memory(tmp_path) as folder:  # a socket's path has 107 bytes
        yield folder / "sock"


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (answer("{}", 500), "answers 500"),
        (answer("<html>"), "without a list of runtimes"),
        (answer("[]"), "without a list of runtimes"),
        (answer('{"Runtimes": 7}'), "without a list of runtimes"),
        (b"\x15\x03\x01\x00\x02\r\n\r\n", "malformed answer"),
    ],
    ids=["500", "html", "list", "number", "tls"],
)
def test_a_malformed_answer_is_reported(path: Path, reply: bytes, message: str) -> None:
    with serving(path, reply) as name:
        assert message in running.find_problem("docker", name, ["nvidia"], never, "")


def test_an_unanswered_socket_is_reported(path: Path) -> None:
    assert "No such file" in running.find_problem("docker", str(path), [], never, "")


def test_crio_is_well_when_it_answers(path: Path) -> None:
    with serving(path, answer("{}"), answer("", 503)) as name:
        assert running.find_problem("crio", name, ["nvidia"], never, "") == ""
        assert running.find_problem("crio", name, ["nvidia"], never, "") == f"{name} answers 503"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("io.containerd.grpc.v1           cri                      linux/amd64    ok", ""),
        ("io.containerd.grpc.v1           cri                      linux/amd64    error",
         "its plugin io.containerd.grpc.v1.cri fails to load"),
        ("io.containerd.cri.v1            runtime                  linux/amd64    error",
         "its plugin io.containerd.cri.v1.runtime fails to load"),
        ("", ""),
    ],
    ids=["ok", "1.x", "2.x", "none"],
)  # fmt: skip
def test_only_a_failed_cri_plugin_is_reported(line: str, message: str) -> None:
    assert running.failed_plugin(PLUGINS.format(cri=line)) == message


def test_containerd_is_asked_by_ctr(path: Path) -> None:
    def run(argv: Sequence[str], _timeout_s: float) -> Completed:
        assert argv == ["ctr", f"--address={path}", "plugins", "ls"]
        return Completed(status=0, out=PLUGINS.format(cri="io.containerd.grpc.v1 cri - error"))

    with serving(path, b"", b"", b"", b"") as name:
        assert "cri fails to load" in running.find_problem("containerd", name, [], run, name)
        absent, refused = Completed(status=127), Completed(status=1, err="ctr: refused\n")
        for completed, problem in ((absent, ""), (refused, "ctr: refused")):
            found = running.find_problem("containerd", name, [], lambda *_, c=completed: c, name)
            assert found == problem
        assert running.find_problem("containerd", name, [], never, "") == ""  # its path is unknown


def test_a_reload_is_seen_by_its_event(path: Path) -> None:
    with serving(path, answer(""), answer("", 500), answer('{"Action":"reload"}')) as name:
        assert [running.reloaded(name, 1.5) for _ in range(3)] == [False, False, True]
