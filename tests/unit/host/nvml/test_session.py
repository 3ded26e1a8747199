# SPDX-License-Identifier: Apache-2.0
"""Sessions with a library in Python, with files that are not NVML, and without the protocol."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from _socket import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from nvct.errors import NvmlError
from nvct.host.nvml import worker
from nvct.host.nvml.session import NvmlSession
from tests.support.cpu import starved
from tests.support.host_tree import elf_bytes
from tests.unit.host.nvml.library import PythonNvml
from tests.unit.host.nvml.sessions import (
    GPU,
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


class SlowNvml(PythonNvml):
    """A library that needs 20 ms of a processor for each call that names the driver's version."""

    def nvmlSystemGetDriverVersion(self) -> bytes:  # noqa: N802 - NVML's name
        end = time.process_time() + 0.02
        while time.process_time() < end:
            pass
        return super().nvmlSystemGetDriverVersion()


def test_a_worker_that_waits_for_a_processor_does_not_hang() -> None:
    def serve(connection: socket, path: str) -> None:
        os.setpriority(os.PRIO_PROCESS, 0, 19)
        worker.serve(connection, path, lambda _path: SlowNvml(GPU))

    session = NvmlSession(LIBRARY, limit_s=0.3, serve=serve)
    with contextlib.closing(session), starved():
        began = time.monotonic()
        session.report()
        assert time.monotonic() - began > 0.3 or os.nice(0) > 0


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

    assert caught.value.hint == "is it for this machine's architecture?"


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


# The worker's process: what it inherits, and when it ends.


def test_no_handler_of_this_process_runs_in_the_worker(session: NvmlSession, log: Path) -> None:
    def handler(_number: int, _frame: object) -> None:
        log.write_text(f"handled {os.getpid()}\n")

    before = signal.signal(signal.SIGTERM, handler)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    try:
        session.check()
        pid = pid_of(session)
        status = Path(f"/proc/{pid}/status").read_text()
        os.kill(pid, signal.SIGTERM)
        wait_until_gone(pid)
        assert signal.SIGUSR1 in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGTERM, before)

    assert "\nSigBlk:\t0000000000000000\n" in status
    assert entries(log) == [("init", pid)]


def test_the_worker_has_no_file_of_this_process(session: NvmlSession, tmp_path: Path) -> None:
    with (tmp_path / "ours").open("w") as file:
        os.set_inheritable(file.fileno(), True)  # noqa: FBT003 - positional only
        session.check()
    folder = Path(f"/proc/{pid_of(session)}/fd")

    targets = {int(link.name): os.readlink(link) for link in folder.iterdir()}

    assert [targets.pop(number) for number in (0, 1, 2)] == ["/dev/null"] * 3
    assert [text.partition(":")[0] for text in targets.values()] == ["socket"]


def test_the_worker_has_a_name_of_its_own(session: NvmlSession) -> None:
    session.check()

    assert Path(f"/proc/{pid_of(session)}/comm").read_text() == "nvct-nvml\n"


def test_a_concurrently_started_program_inherits_no_socket(
    session: NvmlSession,
) -> None:
    session.check()
    worker_ = session._worker
    assert worker_
    names = subprocess.run(
        ["ls", "/proc/self/fd"], close_fds=False, capture_output=True, text=True, check=True
    ).stdout.split()
    assert str(worker_.connection.fileno()) not in names


def test_a_fork_of_this_process_has_a_worker_of_its_own(session: NvmlSession, log: Path) -> None:
    session.check()
    pid = pid_of(session)

    child = os.fork()
    if not child:
        with contextlib.suppress(BaseException):
            session.check()
            session.close()
        os._exit(0)
    os.waitpid(child, 0)

    words = entries(log)
    assert [word for word, _ in words] == ["init", "init"]
    assert words[1][1] != pid
    session.check()
    assert pid_of(session) == pid


HUNG_PARENT = """
import threading, time
from nvct.host.nvml.session import NvmlSession
from tests.unit.host.nvml.sessions import hang
session = NvmlSession("/lib/libnvidia-ml.so.1", 600, hang)
threading.Timer(0.5, lambda: print(session._worker.pid, flush=True)).start()
session.check()
"""


def test_a_worker_that_hangs_ends_with_its_parent() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HUNG_PARENT], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout
        pid = int(parent.stdout.readline())
        assert is_running(pid)
        parent.kill()
        parent.wait(TIMEOUT_S)

    wait_until_gone(pid)


def test_the_worker_outlives_the_thread_that_started_it(session: NvmlSession) -> None:
    thread = threading.Thread(target=session.check)
    thread.start()
    thread.join()
    pid = pid_of(session)
    time.sleep(0.1)

    session.check()

    assert pid_of(session) == pid


def test_the_worker_ignores_the_terminals_interrupt(session: NvmlSession) -> None:
    session.check()
    pid = pid_of(session)
    os.kill(pid, signal.SIGINT)

    session.check()

    assert pid_of(session) == pid
