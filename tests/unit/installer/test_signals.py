# SPDX-License-Identifier: Apache-2.0
"""The engine behind a socket is found by what answers there, and nothing else is signaled."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvct.errors import EngineError
from nvct.installer.host import Patience, hang_up, peer

SERVER = f"""\
#!{sys.executable} -IS
import signal, socket, sys
def again(*_):
    print("told", flush=True)
if "docker" in sys.argv[0]:
    signal.signal(signal.SIGHUP, again)
else:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
server = socket.socket(socket.AF_UNIX)
server.bind(sys.argv[1])
server.listen()
print("listens", flush=True)
while True:
    connection, _ = server.accept()
    asked = connection.recv(100)
    connection.send(b"HTTP/1.0 200 OK" if asked.startswith(b"GET") else b"\\0\\0\\0\\4")
    connection.close()
"""
ONCE = Patience(attempts=1, end_s=5)


class Server:
    def __init__(self, folder: Path, name: str) -> None:
        program = folder / name
        program.write_text(SERVER, encoding="utf-8")
        program.chmod(0o755)
        self.socket = str(folder / f"{name}.sock")
        self.process = subprocess.Popen(
            [str(program), self.socket], stdout=subprocess.PIPE, text=True
        )
        assert self.line() == "listens\n"

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()


@pytest.fixture
def server(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Server]:
    new_server = Server(tmp_path, request.param)
    yield new_server
    new_server.process.kill()
    new_server.process.communicate()


@pytest.mark.parametrize("server", ["containerd"], indirect=True)
def test_containerd_ends_and_is_waited_for(server: Server) -> None:
    assert peer("containerd", server.socket) == server.process.pid
    hang_up("containerd", server.socket, ONCE)
    assert server.process.wait(5) == -1, "SIGHUP"


@pytest.mark.parametrize("server", ["dockerd"], indirect=True)
def test_docker_is_signaled_and_keeps_running(server: Server) -> None:
    hang_up("docker", server.socket, ONCE)
    assert server.line() == "told\n"
    assert server.process.poll() is None


@pytest.mark.parametrize("server", ["otherd"], indirect=True)
def test_other_programs_are_not_signaled(server: Server) -> None:
    with pytest.raises(EngineError, match=r"otherd \(process .* answers on"):
        hang_up("containerd", server.socket, ONCE)
    assert server.process.poll() is None


def test_an_engine_that_is_late_is_waited_for(tmp_path: Path) -> None:
    servers: list[Server] = []

    def sleep(seconds: float) -> None:
        assert seconds == 3
        if not servers:
            servers.append(Server(tmp_path, "containerd"))

    path = str(tmp_path / "containerd.sock")
    hang_up("containerd", path, Patience(attempts=3, pause_s=3, end_s=5, sleep=sleep))
    assert servers[0].process.wait(5) == -1
    servers[0].process.communicate()


def test_an_engine_that_never_answers_is_named(tmp_path: Path) -> None:
    slept: list[float] = []
    patience = Patience(attempts=6, pause_s=5, sleep=slept.append)
    with pytest.raises(EngineError, match=r"none\.sock: No such file"):
        hang_up("containerd", str(tmp_path / "none.sock"), patience)
    assert slept == [5] * 5
