# SPDX-License-Identifier: Apache-2.0
"""The agent's answers on its Unix socket: GET /status, /healthz and /metrics, POST /yield.

One request a connection, HTTP/1.0, so that `curl --unix-socket` works. Root alone can connect.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os

from nvct.agent import exposition
from nvct.version import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from nvct.agent.tasks import Task

TIMEOUT_S = 5.0
GONE = (OSError, asyncio.TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError)
REASONS = {200: "OK", 404: "Not Found", 503: "Service Unavailable"}


class Status:
    """Serves the state of the agent's tasks."""

    def __init__(self, tasks: Sequence[Task], stop: Callable[[], None]) -> None:
        """Keep the arguments.

        Args:
            tasks: of the agent.
            stop: called when another instance asks this one to yield.
        """
        self._tasks = tasks
        self._stop = stop
        self._server: asyncio.Server | None = None

    async def start(self, path: str) -> None:
        """Serve on a socket, in place of one that a dead agent left."""
        temporary = f"{path}.{os.getpid()}"
        self._server = await asyncio.start_unix_server(self._serve, temporary)
        os.chmod(temporary, 0o600)
        os.rename(temporary, path)

    async def close(self) -> None:
        """End the server; the socket stays, for the next instance may have it already."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    def answer(self, method: str, path: str) -> tuple[int, str]:
        """Return status and body of the answer to a request."""
        failed = [task.name for task in self._tasks if task.state == "failed"]
        if (method, path) == ("GET", "/healthz"):
            return (503, f"failed: {', '.join(failed)}\n") if failed else (200, "ok\n")
        if (method, path) == ("GET", "/status"):
            return 200, json.dumps(self.document(), indent=2) + "\n"
        if (method, path) == ("GET", "/metrics"):
            return 200, exposition.text(each for task in self._tasks for each in task.metrics())
        if (method, path) == ("POST", "/yield"):
            self._stop()
            return 200, "it yields\n"
        return 404, "there are GET /status, /healthz and /metrics, and POST /yield\n"

    def document(self) -> dict[str, object]:
        """Return what /status shows."""
        return {
            "version": __version__,
            "host": os.uname().nodename,
            "tasks": [
                {
                    "name": task.name,
                    "state": task.state,
                    "reason": task.reason,
                    "restarts": task.restarts,
                    "detail": task.describe(),
                }
                for task in self._tasks
            ],
        }

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), TIMEOUT_S)
            method, _, rest = request.decode("latin-1").partition(" ")
            number, body = self.answer(method, rest.partition(" ")[0])
            content = body.encode()
            head = f"HTTP/1.0 {number} {REASONS[number]}\r\nContent-Length: {len(content)}\r\n\r\n"
            writer.write(head.encode("ascii") + content)
            await writer.drain()
        except GONE:
            pass  # whoever asked does not want an answer
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


def why_not_ready(document: Any, host: str) -> str:  # noqa: ANN401  JSON data
    """Return why the agent on a host does not serve its node yet, "" if it does.

    Args:
        document: /status of the instance that serves.
        host: name of this host; each pod has its own.
    """
    if document["host"] != host:
        return f"{document['host']} serves this node"
    for task in document["tasks"]:
        if task["state"] == "failed":
            return f"{task['name']} has failed: {task['reason']}"
        for part in task["detail"] or ():
            if part["state"] != "listed":
                return f"{part['resource']} is {part['state']}"
    return ""


async def ask(path: str, method: str, target: str) -> tuple[int, str]:
    """Return status and body of the answer of an agent.

    Raises:
        OSError: no agent answers on the socket.
    """
    reader, writer = await asyncio.open_unix_connection(path)
    try:
        writer.write(f"{method} {target} HTTP/1.0\r\n\r\n".encode())
        await writer.drain()
        try:
            answer = await asyncio.wait_for(reader.read(), TIMEOUT_S)
        except asyncio.TimeoutError as error:
            raise OSError(f"{path} does not answer") from error
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    head, _, body = answer.decode().partition("\r\n\r\n")
    return int(head.split(" ")[1]), body
