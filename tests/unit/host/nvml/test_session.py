# SPDX-License-Identifier: Apache-2.0
"""Sessions with a library in Python, with files that are not NVML, and without the protocol."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from _socket import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from nvct.errors import NvmlError
from nvct.host.nvml.session import NvmlSession
from tests.support.host_tree import elf_bytes
from tests.unit.host.nvml.sessions import (
    LIBRARY,
    TIMEOUT_S,
    entries,
    hang,
    is_running,
    pid_of,
    wait_until_gone,
)


def test_two_calls_are_one_process_and_one_initialization(session: NvmlSession, log: Path) -> None:
    first = session.report()
    session.check()

    assert session.report() == first
    assert [gpu.uuid for gpu in first.gpus] == ["GPU-1"]
    pid = pid_of(session)
    assert entries(log) == [("init", pid), ("version", pid), ("version", pid)]
    assert pid != os.getpid()


def test_closing_reaps_and_the_next_call_starts_a_new_worker(session: NvmlSession) -> None:
    session.check()
    pid = pid_of(session)

    session.close()

    with pytest.raises(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    session.close()
    session.check()
    assert pid_of(session) != pid


def test_nothing_is_started_before_the_first_call(session: NvmlSession, log: Path) -> None:
    session.close()

    assert session._worker is None
    assert not log.exists()


def test_a_worker_that_was_killed_between_calls_is_replaced(session: NvmlSession) -> None:
    session.check()
    pid = pid_of(session)
    os.kill(pid, signal.SIGKILL)
    wait_until_gone(pid)

    session.check()

    assert pid_of(session) != pid


def test_an_interrupted_call_ends_the_worker() -> None:
    class Stop(Exception):  # noqa: N818 - a signal's
        pass

    def stop(_number: int, _frame: object) -> None:
        raise Stop

    session = NvmlSession(LIBRARY, TIMEOUT_S, interrupt_and_hang)
    before = signal.signal(signal.SIGALRM, stop)
    try:
        with pytest.raises(Stop):
            session.check()
    finally:
        signal.signal(signal.SIGALRM, before)

    assert session._worker is None
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def interrupt_and_hang(connection: socket, path: str) -> None:
    connection.recv(1 << 16)  # then the caller waits for an answer
    os.kill(os.getppid(), signal.SIGALRM)
    hang(connection, path)


def answer_once_and_hang(connection: socket, path: str) -> None:
    connection.recv(1 << 16)
    text = b'{"id":1,"value":null}'
    connection.send(len(text).to_bytes(4, "big") + text)
    time.sleep(600)


def test_a_worker_that_hangs_while_it_shuts_down_is_killed() -> None:
    session = NvmlSession(LIBRARY, TIMEOUT_S, answer_once_and_hang)
    session.check()
    pid = pid_of(session)
    session.limit_s = 0.2

    began = time.monotonic()
    session.close()

    assert 0.2 <= time.monotonic() - began < TIMEOUT_S
    assert not is_running(pid)
    assert session._worker is None


def say_garbage(connection: socket, path: str) -> None:
    connection.send(b"Segmentation fault\n")
    connection.recv(1 << 16)
    time.sleep(600)


def answer_another_request(connection: socket, path: str) -> None:
    text = b'{"id":0,"value":null}'
    connection.send(len(text).to_bytes(4, "big") + text)
    time.sleep(600)


def answer_without_gpus(connection: socket, path: str) -> None:
    text = b'{"id":1,"value":{"driver_version":"580"}}'
    connection.send(len(text).to_bytes(4, "big") + text)
    time.sleep(600)


@pytest.mark.parametrize(
    ("serve", "reason"),
    [
        (say_garbage, "a message of 1399154541 bytes, more than 16777216"),
        (answer_another_request, "it answers request 0, not request 1"),
        (
            answer_without_gpus,
            "report: it lacks cuda_version",
        ),
    ],
)
def test_a_malformed_answer_is_an_error_and_ends_the_worker(
    serve: Callable[..., None], reason: str
) -> None:
    session = NvmlSession(LIBRARY, TIMEOUT_S, serve)

    with pytest.raises(NvmlError) as caught:
        session.report()

    assert caught.value.message == (
        f"NVML's worker process gives a malformed answer: {reason}: {LIBRARY}"
    )
    assert session._worker is None


@pytest.mark.parametrize(
    ("end", "how"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGSEGV), "SIGSEGV"),
        (lambda: os.kill(os.getpid(), signal.SIGRTMIN + 1), f"signal {signal.SIGRTMIN + 1}"),
        (lambda: os._exit(3), "exit status 3"),
    ],
)
def test_a_crash_is_an_error_that_says_how(end: Callable[[], None], how: str) -> None:
    def serve(connection: socket, path: str) -> None:
        connection.recv(1)
        end()

    session = NvmlSession(LIBRARY, TIMEOUT_S, serve)

    with pytest.raises(NvmlError) as caught:
        session.check()

    assert caught.value.message == f"NVML crashed with {how}: {LIBRARY}"
    assert caught.value.hint == "install the driver again"
    assert session._worker is None


def test_the_status_of_a_worker_that_the_kernel_reaped_is_unknown() -> None:
    def serve(connection: socket, path: str) -> None:
        os._exit(3)

    session = NvmlSession(LIBRARY, TIMEOUT_S, serve)
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with pytest.raises(NvmlError, match="NVML crashed with an unknown status"):
            session.check()
    finally:
        signal.signal(signal.SIGCHLD, before)


@pytest.mark.parametrize("content", [b"not a library", elf_bytes("x", "aarch64"), None])
def test_file_that_is_no_nvml_is_an_error_with_its_path(
    tmp_path: Path, content: bytes | None
) -> None:
    library = tmp_path / "libnvidia-ml.so.1"
    if content is not None:
        library.write_bytes(content)

    with (
        contextlib.closing(NvmlSession(str(library))) as session,
        pytest.raises(NvmlError, match=str(library)) as caught,
    ):
        session.report()

    assert caught.value.hint == "is it of this machine's kind?"


def test_library_of_another_program_is_refused() -> None:
    with (
        contextlib.closing(NvmlSession("libc.so.6")) as session,
        pytest.raises(NvmlError, match=r"nvmlInit of libc\.so\.6 failed: function not found"),
    ):
        session.report()


PARTS = ("messages", "model", "process", "session")
LOADED = """
import sys
from nvct.errors import NvmlError
from nvct.host.nvml.session import NvmlSession
try:
    NvmlSession("libc.so.6").check()
except NvmlError as error:
    print(error.message)
print(*sorted({"pynvml", "ctypes", "json", "pickle", "socket", "grpc"} & set(sys.modules)))
print(*sorted(name for name in sys.modules if name.startswith("nvct.host.nvml.")))
"""


def test_the_sessions_side_does_not_load_the_workers() -> None:
    rows = subprocess.run(
        [sys.executable, "-c", LOADED], capture_output=True, text=True, check=True
    ).stdout.splitlines()

    assert rows == [
        "nvmlInit of libc.so.6 failed: function not found",
        "",
        " ".join(f"nvct.host.nvml.{name}" for name in PARTS),
    ]
