# SPDX-License-Identifier: Apache-2.0
"""Unit tests for nvct.engine.running, against real sockets."""

import contextlib
import json
import socket
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from nvct.engine import running
from nvct.engine.command import Completed
from tests.support.memory import in_memory

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
        (answer("<html>"), "no list of runtimes"),
        (answer("[]"), "no list of runtimes"),
        (answer('{"Runtimes": 7}'), "no list of runtimes"),
        (b"\x15\x03\x01\x00\x02\r\n\r\n", "no answer that can be read"),
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
