# SPDX-License-Identifier: Apache-2.0
"""Serves small documents over HTTP/1.0: one request a connection, no body, no state.

Clients may be slow or hostile, so their cost is bounded. A request has at most REQUEST_LIMIT
bytes, its exchange takes at most TIMEOUT_S, and at most CONNECTIONS are open: one more ends the
oldest connection of the client that has the most. On a TCP address, an answer is made once in
REPEAT_S, and sent again until then. No answer waits for another: in a crowd, waiting connections
would be ended before their turn, also those of the kubelet's probes. A server with a guard has
TLS, passwords and so on. It has the same limits, and clients take turns for HANDSHAKES.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from nvct.agent.core.waiting import within
from nvct.agent.web.turns import Turns, client_of, greediest
from nvct.errors import UnsafePathError, UsageError
from nvct.kernel.shared_folder import SharedFolder
from nvct.linux.files import split

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.agent.web.guard import WebGuard

REQUEST_LIMIT = 8192
ANSWER_LIMIT = 4 << 20
"""Bytes that `ask` reads. The /status of 16 GPUs with 7 instances each has 100 KB."""
TIMEOUT_S = 5.0
CONNECTIONS = 64
REPEAT_S = 0.2
HANDSHAKES = 50  # TLS handshakes a second: they take the most CPU
REASONS = {
    200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found",
    429: "Too Many Requests", 503: "Service Unavailable",
}  # fmt: skip
GONE = (OSError, asyncio.TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError)
TEXT = "text/plain; charset=utf-8"
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'",
    "X-Content-Type-Options": "nosniff",
}


@dataclass(frozen=True, slots=True)
class Request:
    """What a client asks for."""

    method: str
    path: str  # without the part from `?` on
    accepts_html: bool = False
    authorization: str = ""  # the header of that name; "" if there is none


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer: its status, text, media type, and more headers."""

    status: int
    body: str
    kind: str = TEXT
    headers: tuple[tuple[str, str], ...] = ()


END = b"\r\n\r\n"  # Of a request without a body
MALFORMED = Answer(400, "not an HTTP request\n")


class Server:
    """Answers requests on one Unix socket or TCP address."""

    def __init__(self, answer: Callable[[Request], Answer], guard: WebGuard | None = None) -> None:
        self._answer, self._guard = answer, guard
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.StreamWriter, str] = {}
        self._has_limits = False
        self._made: dict[Request, tuple[float, Answer]] = {}
        self._handshakes = Turns()

    async def listen_unix(self, path: str) -> None:
        """Serve root on a Unix socket, and replace one that a dead process left.

        OSError if the socket cannot be made; UnsafePathError if its folder is a link or a file.
        """
        folder, name = split(path)
        with SharedFolder.open(folder) as opened:
            listener = opened.listen(name)
        self._server = await asyncio.start_unix_server(
            self._serve, sock=listener, limit=REQUEST_LIMIT
        )

    async def listen(self, host: str, port: int) -> int:
        """Serve everybody who can connect; return the port.

        OSError if the address is in use, or not this machine's. `host`: a name or address of this
        machine; "" is all addresses. `port`: 0 takes a free one.
        """
        self._has_limits = True
        self._server = await asyncio.start_server(
            self._serve, host or None, port, limit=REQUEST_LIMIT
        )
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """End the server and its connections.

        The file of a Unix socket stays, because another server may already have replaced it.
        """
        if self._server is not None:
            self._server.close()
            for writer in list(self._open):
                writer.transport.abort()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open[writer] = client_of(writer.get_extra_info("peername"))
        if len(self._open) > CONNECTIONS:
            oldest = greediest(self._open)
            del self._open[oldest]
            oldest.transport.abort()
        try:
            with contextlib.suppress(*GONE):  # the client has gone
                await within(TIMEOUT_S, self._exchange(reader, writer))
        finally:
            self._open.pop(writer, None)
            writer.transport.abort()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._guard is not None:
            await self._guarded(self._guard, reader, writer)
        else:
            request = parse(await reader.readuntil(END))
            writer.write(encoded(self._answered(request) if request else MALFORMED))
        writer.close()
        await writer.wait_closed()  # until the answer is sent

    async def _guarded(
        self, guard: WebGuard, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        config = guard.config()
        client = client_of(writer.get_extra_info("peername"))
        if config.tls is None:
            request = parse(await reader.readuntil(END))
            answer = await self._permitted(guard, request, client)
            writer.write(encoded(answer, config.headers))
            return
        from nvct.agent.web.guard import TlsStream

        hello = await reader.read(REQUEST_LIMIT)
        if not hello:
            return
        await self._handshakes.take(client)
        self._handshakes.end_later(1 / HANDSHAKES)
        stream = TlsStream(reader, writer, config.tls, hello)
        if guard.is_allowed_name(await stream.handshake()):
            request = parse(await stream.readuntil(END, REQUEST_LIMIT))
            answer = await self._permitted(guard, request, client)
            await stream.write(encoded(answer, config.headers))

    async def _permitted(self, guard: WebGuard, request: Request | None, client: str) -> Answer:
        """Return the answer, or why the client gets none."""
        if request is None:
            return MALFORMED
        # First, so that clients without a password do not use up the limit of requests.
        if not await guard.is_user(request.authorization, client):
            return Answer(401, "a user and a password are needed\n")
        if not guard.has_room():
            return Answer(429, "too many requests\n")
        return self._answered(request)

    def _answered(self, request: Request) -> Answer:
        """Return the answer; on TCP, the last one again if it is younger than REPEAT_S."""
        if not self._has_limits:
            return self._answer(request)
        question = replace(request, authorization="")
        until, answer = self._made.get(question, (0.0, MALFORMED))
        if time.monotonic() >= until:
            answer = self._answer(request)
            if answer.status in (200, 503):  # few different answers have these
                self._made[question] = (time.monotonic() + REPEAT_S, answer)
        return answer


def encoded(answer: Answer, headers: Mapping[str, str] | None = None) -> bytes:
    """Return the bytes of an answer; `headers` are added to HEADERS or replace them."""
    body = answer.body.encode()
    fields = {**HEADERS, **dict(answer.headers), **(headers or {}), "Content-Type": answer.kind}
    if answer.status == 401:
        fields["WWW-Authenticate"] = "Basic"
    fields["Content-Length"] = str(len(body))
    head = f"HTTP/1.0 {answer.status} {REASONS[answer.status]}\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"{head}\r\n".encode("ascii") + body


def parse(data: bytes) -> Request | None:
    """Return the request in some bytes, None if it is malformed."""
    first, *headers = data.decode("latin-1").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/"):  # method, target, version
        return None
    accept = [h for h in headers if h.lower().startswith("accept:")]
    authorization = [h[14:].strip() for h in headers if h.lower().startswith("authorization:")]
    return Request(
        words[0], words[1].partition("?")[0], any("text/html" in h for h in accept),
        authorization[0] if len(authorization) == 1 else "",
    )  # fmt: skip


def address(text: str) -> tuple[str, int]:
    """Return host and port of HOST:PORT, [HOST]:PORT or :PORT; UsageError for any other text."""
    host, colon, port = text.rpartition(":")
    if not (colon and port.isascii() and port.isdigit() and int(port) < 1 << 16):
        raise UsageError(f"address {text!r} has no port", hint="such as :9400 or 127.0.0.1:9400")
    is_bracketed = host.startswith("[") and host.endswith("]")
    if ":" in host and not is_bracketed:
        raise UsageError(f"address {text!r} is ambiguous", hint="use brackets, as in [::1]:9400")
    return (host[1:-1] if is_bracketed else host), int(port)


async def ask(path: str, method: str, target: str) -> tuple[int, str]:
    """Return status and body of a Unix socket's answer; OSError if nobody answers there."""
    folder, name = split(path)
    try:
        with SharedFolder.open(folder) as opened, opened.socket_path(name) as file:
            reader, writer = await asyncio.open_unix_connection(file)
    except UnsafePathError as error:
        raise OSError(error.message) from error
    try:
        writer.write(f"{method} {target} HTTP/1.0\r\n\r\n".encode())
        data = await within(TIMEOUT_S, _read(reader))
    except asyncio.TimeoutError as error:
        raise OSError(f"{path} does not answer") from error
    finally:
        writer.transport.abort()
    head, _, body = data.decode(errors="replace").partition("\r\n\r\n")
    answer = re.match(r"HTTP/1\.[01] (\d{3})\b", head)
    if answer is None or len(data) > ANSWER_LIMIT:
        raise OSError(f"{path} does not answer as an agent does")
    return int(answer[1]), body


async def _read(reader: asyncio.StreamReader) -> bytes:
    """Return the bytes of an answer; of one that is too long, only its beginning."""
    data = b""
    while len(data) <= ANSWER_LIMIT and (part := await reader.read(ANSWER_LIMIT)):
        data += part
    return data
