# SPDX-License-Identifier: Apache-2.0
"""The protocol of session and worker: accepted and refused messages."""

import contextlib
import socket
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvct.errors import NvmlError, to_dict
from nvct.host.nvml import messages
from nvct.host.nvml.messages import MalformedMessageError
from nvct.oci.jsontext import Json

ERROR: dict[str, Json] = {**to_dict(NvmlError("gpu is lost", hint="see dmesg"))}


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    session_end, worker_end = socket.socketpair()
    with session_end, worker_end:
        yield session_end, worker_end


def framed(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def soon() -> float:
    return time.monotonic() + 20


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
        messages.receive(session_end, before + 0.05)
    assert 0.04 < time.monotonic() - before < 10


def test_a_side_that_does_not_read_is_a_timeout(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    with pytest.raises(TimeoutError):
        messages.send(ends[0], "x" * 10_000_000, time.monotonic() + 0.05)


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
