# SPDX-License-Identifier: Apache-2.0
"""The agent's port: what it shows, and clients that are slow or hostile."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from nvct.agent.core.instance import HAND_OVER, YIELD
from nvct.agent.core.status import HTML, Status, with_yield
from nvct.agent.core.task import KeptTask
from nvct.agent.web import http
from nvct.agent.web.http import Answer, Request, Server
from nvct.errors import UsageError

TIMEOUT_S = 20.0
EVIL = "<script>alert('x')</script>"


async def forever() -> None:
    await asyncio.Event().wait()


@contextlib.asynccontextmanager
async def serving(body: str = "ok\n") -> AsyncIterator[int]:
    server = Server(lambda _: Answer(200, body))
    port = await server.listen("127.0.0.1", 0)
    try:
        yield port
    finally:
        await server.close()


async def send(port: int, data: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        return await asyncio.wait_for(reader.read(), TIMEOUT_S)
    except ConnectionError:
        return b""
    finally:
        writer.transport.abort()


async def answers(port: int) -> bool:
    return (await send(port, b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")).endswith(
        b"\r\n\r\nok\n"
    )


@pytest.mark.parametrize(
    "line", [b"", b"GET", b"GET /", b"\x16\x03\x01\x02\x00", b"GET  / HTTP/1.1"]
)
async def test_what_is_no_request_is_refused(line: bytes) -> None:
    async with serving() as port:
        answer = await send(port, line + b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.0 400 Bad Request\r\n")
        assert await answers(port)


async def test_an_answer_is_not_made_for_each_client() -> None:
    statuses = {"/metrics": 200, "/healthz": 503}
    made: list[Request] = []

    def answer(request: Request) -> Answer:
        made.append(request)
        return Answer(statuses.get(request.path, 404), f"{len(made)}\n")

    server = Server(answer)
    port = await server.listen("127.0.0.1", 0)
    try:
        ask = b"GET /metrics HTTP/1.1\r\n%s\r\n"
        bodies = {await send(port, ask % b"Authorization: x\r\n") for _ in range(3)}
        bodies |= {await send(port, ask % b"") for _ in range(3)}
        assert len(bodies) == len(made) == 1
        await send(port, ask % b"Accept: text/html\r\n")  # is another question
        assert len(made) == 2
        for _ in range(2):
            await send(port, b"GET /healthz HTTP/1.1\r\n\r\n")
        assert len(made) == 3
        for _ in range(2):  # strangers choose these names: they are not kept
            await send(port, b"GET /x HTTP/1.1\r\n\r\n")
        assert len(made) == 5
        await asyncio.sleep(http.REPEAT_S)
        assert await send(port, ask % b"") not in bodies
    finally:
        await server.close()


@pytest.mark.parametrize("line", [b"GET /healthz", b"POST /healthz", b"GET /x"])
async def test_a_crowd_does_not_keep_a_probe_from_its_answer(line: bytes) -> None:
    async with serving() as port:
        crowd, probes = [], []
        for number in range(200):
            crowd.append(await asyncio.open_connection("127.0.0.1", port))
            crowd[-1][1].write(line + b" HTTP/1.1\r\n\r\n")
            if number % 50 == 49:
                probes.append(asyncio.ensure_future(answers(port)))
        assert all(await asyncio.gather(*probes))
        for _, writer in crowd:
            writer.transport.abort()


async def test_a_request_without_end_is_cut_at_its_limit() -> None:
    async with serving() as port:
        header = b"X: " + b"x" * 100 + b"\r\n"
        data = b"GET / HTTP/1.1\r\n" + header * 20_000
        assert await send(port, data) == b""
        assert await send(port, b"x" * 4_000_000) == b""
        assert await answers(port)


async def test_a_thousand_half_open_connections_leave_room_for_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http, "TIMEOUT_S", 600.0)
    async with serving() as port:
        opened = []
        for _ in range(1000):
            opened.append(await asyncio.open_connection("127.0.0.1", port))
            opened[-1][1].write(b"GET / HTTP/1.1\r\n")
            if len(opened) > 200:  # this process has its own limit of files
                _, oldest = opened.pop(0)  # warns if nothing holds it when it is aborted
                oldest.transport.abort()
        assert await answers(port)
        for _, writer in opened:
            writer.transport.abort()


async def test_a_client_that_says_or_reads_nothing_is_cut_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http, "TIMEOUT_S", 0.3)

    async with serving("x" * 50_000_000) as port:
        assert await send(port, b"") == b""
        _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        writer.write(b"GET / HTTP/1.1\r\n\r\n")  # the answer is not read
        began = time.monotonic()
        while writer.transport.is_closing() is False:
            assert time.monotonic() - began < TIMEOUT_S
            await asyncio.sleep(0.05)
            with contextlib.suppress(ConnectionError):
                writer.write(b"x" * 1000)
                await writer.drain()


@pytest.mark.parametrize(
    ("text", "result"),
    [
        (":9400", ("", 9400)), ("127.0.0.1:0", ("127.0.0.1", 0)),
        ("[::1]:65535", ("::1", 65535)), ("localhost:80", ("localhost", 80)),
    ],
)  # fmt: skip
def test_an_address_is_host_and_port(text: str, result: tuple[str, int]) -> None:
    assert http.address(text) == result


@pytest.mark.parametrize(
    "text", ["9400", ":", "x:", ":x", ":65536", ":-1", ":٣", "localhost", "::1:9400"]
)
def test_an_address_without_a_port_is_refused(text: str) -> None:
    says = "is ambiguous" if text == "::1:9400" else "has no port"
    with pytest.raises(UsageError, match=says):
        http.address(text)


def test_a_browser_gets_a_page_in_which_nothing_is_a_script() -> None:
    work: Any = SimpleNamespace(
        describe=lambda: [{"resource": EVIL, "unhealthy": {EVIL: EVIL}}], metrics=tuple
    )
    task = KeptTask("x", forever, lambda: work)
    task.reason = EVIL
    status = Status([task])
    browser = http.parse(b"GET /status?x HTTP/1.1\r\nAccept: text/html,*/*;q=0.8\r\n\r\n")
    assert browser == Request("GET", "/status", accepts_html=True)

    answer = status.answer(browser)

    assert answer.kind == HTML
    assert "<script" not in answer.body
    assert answer.body.count("&lt;script&gt;") == 4
    assert json.loads(status.answer(Request("GET", "/status")).body)["tasks"][0]["reason"] == EVIL


@pytest.mark.parametrize("path", [YIELD, HAND_OVER])
def test_only_the_agents_own_socket_takes_the_request_to_yield(path: str) -> None:
    request, asked = Request("POST", path), list[int]()
    status = Status(())
    own = with_yield(status, {path: lambda: asked.append(1)})

    assert status.answer(request).status == 404
    assert not asked
    assert own._answer(request).status == 200
    assert asked
