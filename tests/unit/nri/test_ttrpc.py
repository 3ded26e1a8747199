# SPDX-License-Identifier: Apache-2.0
"""The wire: what an engine sends in any pieces is understood, and nothing else is."""

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvct.config.model import Config
from nvct.errors import DocumentError, HostError, NvctError, RequestError
from nvct.nri import nri_pb2 as api
from nvct.nri.plugin import Options, Plugin
from nvct.nri.ttrpc import (
    BUFFER,
    FRAME,
    FRAME_LIMIT,
    HEADER,
    MESSAGE_LIMIT,
    PACKAGE,
    PLUGIN,
    REQUEST,
    RESPONSE,
    RUNTIME,
    Connection,
)
from tests.unit.nri.fake_engine import RefusedError, connected


def plugin() -> Plugin:
    options = Options(record="/dev/null/nvct-nri")  # which cannot be made
    return Plugin(lambda: (Config(), None), "/nonexistent/config.toml", options, lambda _: None)


def received(data: bytes, methods: object = None) -> bytes:
    """Return what a connection answers to bytes."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(data)
        ours.shutdown(socket.SHUT_WR)
        Connection(theirs, methods or {}).serve()  # type: ignore[arg-type]
        theirs.shutdown(socket.SHUT_WR)
        parts = []
        while part := ours.recv(1 << 20):
            parts.append(part)
        return b"".join(parts)


def request(method: str, *, service: str = "Plugin", payload: bytes = b"") -> bytes:
    call = api.Call(service=f"{PACKAGE}.{service}", method=method, payload=payload)
    content = call.SerializeToString()
    message = HEADER.pack(len(content), 1, REQUEST, 0) + content
    return FRAME.pack(PLUGIN, len(message)) + message


def answer_of(data: bytes) -> api.Answer:
    content = b""
    while data:
        connection, size = FRAME.unpack_from(data)
        assert connection == PLUGIN
        content += data[FRAME.size : FRAME.size + size]
        data = data[FRAME.size + size :]
    length, stream, kind, _ = HEADER.unpack_from(content)
    assert (stream, kind, length) == (1, RESPONSE, len(content) - HEADER.size)
    return api.Answer.FromString(content[HEADER.size :])


def test_a_plugin_registers_and_is_configured_before_its_call_returns() -> None:
    with connected(plugin()) as engine:
        engine.start()
        assert engine.registered.plugin_name == "nvct"
        assert engine.registered.plugin_idx == "10"


@pytest.mark.parametrize("size", [10, BUFFER, BUFFER * 3])
def test_the_first_frame_of_an_answer_fits_go_s_reader(size: int) -> None:
    data = received(request("Echo", payload=b"x" * size), {"Echo": lambda payload: payload})

    assert FRAME.unpack_from(data)[1] <= BUFFER
    assert answer_of(data).payload == b"x" * size


def test_an_error_becomes_a_status_and_the_connection_stays() -> None:
    def fail(_: bytes) -> bytes:
        raise RequestError("no such thing", hint="ask for another")

    said = answer_of(received(request("Fail"), {"Fail": fail})).status
    assert said.message == "nvct: no such thing; ask for another [bad-request]"
    unknown = answer_of(received(request("Other"), {})).status
    assert unknown.message == f"{PACKAGE}.Plugin/Other is not implemented"
    elsewhere = answer_of(received(request("Fail", service="Runtime"), {"Fail": fail})).status
    assert elsewhere.message == f"{PACKAGE}.Runtime/Fail is not implemented"


def test_a_malformed_request_is_refused_and_the_next_one_answered() -> None:
    with connected(plugin()) as engine:
        engine.start()
        with pytest.raises(RefusedError, match="cannot be decoded"):
            engine.ask("CreateContainer", api.Call(service="\0" * 9), api.CreateContainerResponse)
        empty = api.CreateContainerRequest()
        answer = engine.ask("CreateContainer", empty, api.CreateContainerResponse)
        assert not answer.adjust.CDI_devices


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (FRAME.pack(PLUGIN, FRAME_LIMIT + 1), "longer than NRI allows"),
        (FRAME.pack(PLUGIN, 10) + HEADER.pack(MESSAGE_LIMIT + 1, 1, REQUEST, 0), "ttrpc allows"),
        (FRAME.pack(PLUGIN, 10) + HEADER.pack(0, 1, RESPONSE, 0), "type 2 on connection 1"),
        (FRAME.pack(RUNTIME, 10) + HEADER.pack(0, 1, RESPONSE, 0), "type 2 on connection 2"),
        (FRAME.pack(PLUGIN, 12) + HEADER.pack(2, 1, REQUEST, 0) + b"\xff\xff", "decoded"),
    ],
)
def test_what_is_no_message_ends_the_connection(data: bytes, problem: str) -> None:
    with pytest.raises(DocumentError, match=problem):
        received(data)


def test_the_end_in_the_middle_of_a_frame_is_the_end() -> None:
    whole = FRAME.pack(7, 3) + b"abc" + request("Echo")  # a frame of another connection first
    echo = {"Echo": lambda payload: payload}
    assert answer_of(received(whole, echo)).payload == b""
    for end in range(len(whole)):
        assert received(whole[:end], echo) == b""


@given(st.binary(max_size=200))
def test_no_bytes_are_too_strange(data: bytes) -> None:
    try:
        received(data, plugin().methods)
    except NvctError:
        pass


@pytest.mark.parametrize("is_refused", [False, True])
def test_a_registration_that_fails_is_told(*, is_refused: bool) -> None:
    problems: list[NvctError] = []
    with connected(plugin(), problems) as engine:
        if is_refused:
            refusal = api.Answer(status=api.Status(code=2, message="invalid plugin index"))
            engine.answer_registration(refusal)
        else:
            engine.sock.close()
    assert isinstance(problems[0], HostError) or is_refused
    message = problems[0].message
    told = ("invalid plugin index",) if is_refused else ("RegisterPlugin", "broke")
    assert any(words in message for words in told)
