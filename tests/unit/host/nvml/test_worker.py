# SPDX-License-Identifier: Apache-2.0
"""The worker's loop, over a library in Python: in this process, at the other end of a socket."""

import contextlib
import socket
import subprocess
import sys
import threading
import time
from _socket import socket as _Socket  # noqa: N812 - socket is the module here
from collections.abc import Iterator

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvct.errors import NvctError, NvmlError, to_dict
from nvct.host.nvml import messages, worker
from nvct.host.nvml.messages import MalformedMessageError
from nvct.host.nvml.session import NvmlSession
from nvct.linux.deadline import Deadline
from nvct.oci.jsontext import Json
from tests.unit.host.nvml.library import PythonNvml, nvml_error

PATH = "/lib/libnvidia-ml.so.1"
GPU: dict[str, object] = {"minor": 0, "uuid": "GPU-1", "name": "X"}


@contextlib.contextmanager
def serving(library: PythonNvml) -> Iterator[socket.socket]:
    session_end, worker_end = socket.socketpair()
    thread = threading.Thread(target=worker.serve, args=(worker_end, PATH, lambda _path: library))
    thread.start()
    with session_end, worker_end:
        yield session_end
        session_end.shutdown(socket.SHUT_WR)
        thread.join(20)
        assert not thread.is_alive()


def ask(connection: socket.socket, verb: str) -> Json:
    messages.send(connection, {"id": 1, "verb": verb, "arguments": {}})
    return messages.value_of(messages.receive(connection), 1)


def test_the_library_is_initialized_once() -> None:
    library = PythonNvml(GPU)

    with serving(library) as connection:
        assert library.journal == []
        assert ask(connection, "check") is None
        report = ask(connection, "report")
        assert ask(connection, "report") == report
        assert library.journal == ["init"]

    assert isinstance(report, dict)
    assert report["driver_version"] == "580.159.04"
    assert library.journal == ["init"]  # the end of the process closes the handles


class NoCuda(PythonNvml):
    """A library that does not report its CUDA version while it is broken."""

    broken = True

    def nvmlSystemGetCudaDriverVersion(self) -> int:  # noqa: N802 - NVML's names
        if self.broken:
            raise nvml_error(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
        return super().nvmlSystemGetCudaDriverVersion()


def test_an_error_names_the_call_and_the_next_request_initializes_again() -> None:
    library = NoCuda(GPU)
    failed = f"nvmlSystemGetCudaDriverVersion of {PATH} failed: driver not loaded"

    with serving(library) as connection:
        with pytest.raises(NvmlError, match=failed) as caught:
            ask(connection, "report")
        assert caught.value.hint == "load the nvidia module: modprobe nvidia"
        library.broken = False
        ask(connection, "report")

    assert library.journal == ["init", "shutdown", "init"]


class Uninitialized(PythonNvml):
    """A library that cannot be initialized."""

    def nvmlInit(self) -> None:  # noqa: N802
        raise nvml_error(pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH)


def test_a_library_that_is_not_initialized_is_not_shut_down() -> None:
    library = Uninitialized()

    with serving(library) as connection, pytest.raises(NvmlError, match="nvmlInit of") as caught:
        ask(connection, "check")

    assert caught.value.hint == "reboot, or reload the nvidia modules"
    assert library.journal == []


def test_a_verb_of_another_version_is_an_error() -> None:
    with (
        serving(PythonNvml()) as connection,
        pytest.raises(NvmlError, match="has no verb 'reset'"),
    ):
        ask(connection, "reset")


def test_an_unexpected_exception_is_an_error_that_asks_for_a_report() -> None:
    library = PythonNvml({"minor": 0, "name": "X"})  # this one has no UUID at all

    with serving(library) as connection:
        with pytest.raises(NvctError, match="unexpected KeyError: 'uuid'") as caught:
            ask(connection, "report")
        assert ask(connection, "check") is None

    assert caught.value.code == "bug"
    assert not isinstance(caught.value, NvmlError)


def test_an_answer_that_is_no_json_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nvct.host.nvml.report.report", lambda _nvml: {"value": float("nan")})

    with serving(PythonNvml(GPU)) as connection:
        with pytest.raises(NvctError, match="unexpected TypeError: float is not valid JSON"):
            ask(connection, "report")
        assert ask(connection, "check") is None


def test_a_bug_has_a_traceback_with_debug(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NVCT_DEBUG", "1")

    def serve(connection: _Socket, path: str) -> None:
        worker.serve(connection, path, lambda _path: PythonNvml({"minor": 0, "name": "X"}))

    with (
        contextlib.closing(NvmlSession(PATH, serve=serve)) as session,
        pytest.raises(NvctError, match="unexpected KeyError"),
    ):
        session.report()

    assert "nvmlDeviceGetUUID" in capfd.readouterr().err


def test_a_malformed_request_ends_the_worker() -> None:
    library = PythonNvml(GPU)
    session_end, worker_end = socket.socketpair()
    with session_end, worker_end:
        messages.send(session_end, {"verb": "report"})
        with pytest.raises(messages.MalformedMessageError):
            worker.serve(worker_end, PATH, lambda _path: library)


def test_a_closed_session_ends_the_worker() -> None:
    library = PythonNvml(GPU)
    session_end, worker_end = socket.socketpair()
    with session_end, worker_end:
        messages.send(session_end, {"id": 1, "verb": "report", "arguments": {}})
        session_end.close()

        worker.serve(worker_end, PATH, lambda _path: library)

    assert library.journal == ["init"]  # nvmlShutdown would wait for the thread of the events


def test_each_verb_has_its_function() -> None:
    for verb in ("check", *worker.VERBS):
        assert callable(worker._function(verb))


AFTER_INIT = """
import ctypes, sys
from nvct.host.nvml import worker
from nvct.host.nvml.calls import Driver
from tests.unit.host.nvml.library import PythonNvml

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]

def used_kib():
    with open("/proc/self/smaps_rollup") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Rss:"))

class Library(PythonNvml):
    def nvmlInit(self):
        blocks = [libc.malloc(50_000) for _ in range(400)]
        for block in blocks:
            ctypes.memset(block, 1, 50_000)
        for block in blocks[:-1]:  # the last one keeps the end of the heap
            libc.free(block)

before = used_kib()
Driver("x", lambda _path: Library()).ask(worker.check, {})
print(used_kib() - before)
"""


def test_what_the_initialization_has_freed_goes_back_to_the_kernel() -> None:
    command = [sys.executable, "-c", AFTER_INIT]
    done = subprocess.run(command, capture_output=True, text=True, check=True)

    assert int(done.stdout) < 10_000  # of 20,000 KiB


# The protocol of session and worker: accepted and refused messages.


ERROR: dict[str, Json] = {**to_dict(NvmlError("gpu is lost", hint="see dmesg"))}


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    session_end, worker_end = socket.socketpair()
    with session_end, worker_end:
        yield session_end, worker_end


def framed(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def soon() -> Deadline:
    return Deadline(20)


def test_messages_come_in_their_order(ends: tuple[socket.socket, socket.socket]) -> None:
    session_end, worker_end = ends
    messages.send(session_end, {"id": 1, "name": "Grün \ud800"}, soon())
    messages.send(session_end, [None, True, -1])

    assert messages.receive(worker_end) == {"id": 1, "name": "Grün \ud800"}
    assert messages.receive(worker_end, soon()) == [None, True, -1]


def test_no_message_until_the_deadline_is_a_timeout(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    session_end, worker_end = ends
    worker_end.send(framed(b'"too long"')[:-1])

    before = time.monotonic()
    with pytest.raises(TimeoutError):
        messages.receive(session_end, Deadline(0.05))
    assert 0.04 < time.monotonic() - before < 10


def test_a_message_that_has_come_is_read_after_the_deadline(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    session_end, worker_end = ends
    messages.send(worker_end, {"id": 1, "value": 7}, soon())

    assert messages.receive(session_end, Deadline(0.0)) == {"id": 1, "value": 7}


def test_a_side_that_does_not_read_is_a_timeout(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    with pytest.raises(TimeoutError):
        messages.send(ends[0], "x" * 10_000_000, Deadline(0.05))


@pytest.mark.parametrize("sent", [b"", b"\0\0", framed(b"[1]")[:-1]])
def test_a_closed_connection_ends_the_messages(
    ends: tuple[socket.socket, socket.socket], sent: bytes
) -> None:
    session_end, worker_end = ends
    worker_end.sendall(sent)
    worker_end.close()

    with pytest.raises(EOFError):
        messages.receive(session_end, soon())
    with pytest.raises(EOFError):
        messages.send(session_end, {}, soon())


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"Segmentation fault\n", "a message of 1399154541 bytes"),
        (framed(b"hello"), "a message is not JSON"),
        (framed(b"{} {}"), "something follows its end"),
        (framed(b"[" * 100_000), "a message is"),
        (framed(b""), "a message is not JSON"),
        (framed(b'"\xff"'), "a message is not ASCII"),
    ],
)
def test_malformed_bytes_are_refused(
    ends: tuple[socket.socket, socket.socket], sent: bytes, reason: str
) -> None:
    session_end, worker_end = ends
    worker_end.sendall(sent)

    with pytest.raises(MalformedMessageError, match=reason):
        messages.receive(session_end, soon())


@given(st.binary(max_size=64))
def test_any_bytes_are_a_message_or_refused(data: bytes) -> None:
    session_end, worker_end = socket.socketpair()
    with session_end, worker_end:
        worker_end.sendall(framed(data))
        with contextlib.suppress(MalformedMessageError):
            messages.receive(session_end, soon())  # raises nothing else


def test_an_answer_has_a_value() -> None:
    assert messages.value_of({"id": 7, "value": None}, 7) is None
    assert messages.value_of({"id": 7, "value": {"a": 1}}, 7) == {"a": 1}


def test_an_error_comes_with_class_and_hint() -> None:
    with pytest.raises(NvmlError, match="gpu is lost") as caught:
        messages.value_of({"id": 7, "error": ERROR}, 7)
    assert (caught.value.hint, caught.value.code) == ("see dmesg", "nvml")


@pytest.mark.parametrize(
    "answer",
    [
        None, [], "x", {}, {"id": 7}, {"id": 6, "value": 1}, {"id": "7", "value": 1},
        {"id": True, "value": 1}, {"value": 1}, {"id": 7, "value": 1, "more": 2},
        {"id": 7, "value": 1, "error": ERROR}, {"id": 7, "error": None}, {"id": 7, "error": {}},
        {"id": 7, "error": {**ERROR, "hint": None}}, {"id": 7, "error": {**ERROR, "more": ""}},
    ],
)  # fmt: skip
def test_other_answers_are_refused(answer: Json) -> None:
    with pytest.raises(MalformedMessageError):
        messages.value_of(answer, 7)


def test_a_request_has_id_verb_and_arguments() -> None:
    request: Json = {"id": 1, "verb": "report", "arguments": {"gpu": 3}}

    assert messages.request_of(request) == (1, "report", {"gpu": 3})


@pytest.mark.parametrize(
    "request_",
    [
        None, [], {}, {"id": 1, "verb": "report"}, {"id": "1", "verb": "report", "arguments": {}},
        {"id": 1, "verb": 2, "arguments": {}}, {"id": 1, "verb": "report", "arguments": []},
        {"id": 1, "verb": "report", "arguments": {}, "more": 1},
    ],
)  # fmt: skip
def test_other_requests_are_refused(request_: Json) -> None:
    with pytest.raises(MalformedMessageError):
        messages.request_of(request_)
