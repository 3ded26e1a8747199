# SPDX-License-Identifier: Apache-2.0
"""The client of `nvct agent worker`: NVML in another container, which may end and start again.

A connection begins with the verb `hello`: a worker of another protocol gets no further request.
Agent and worker may be separate pods, and an upgrade replaces one before the other. So an agent
that starts waits for the worker of its own release; one that serves accepts any release.
"""

from __future__ import annotations

import asyncio
import socket

from nvct import typed
from nvct.agent.core.waiting import within
from nvct.agent.nvml.client import CALL_S, START_S, NvmlClient
from nvct.agent.nvml.supervisor import HELLO, PROTOCOL, Hello
from nvct.errors import NvctError, NvmlError
from nvct.host.nvml import messages
from nvct.oci.jsontext import Json

SLACK_S = 10
"""Added to a call's limit: time for the worker to kill a process of NVML that hangs."""


class NvmlWorkerClient(NvmlClient):
    """Asks NVML through a worker's socket; the worker chooses the library."""

    chooses_library = False

    def __init__(self, path: str) -> None:
        super().__init__(None)
        self._path = path
        self._release = ""
        self._ends = 0

    async def why_apart(self, release: str) -> str:
        """Return why the worker is not of this agent's release, "" if it is."""
        async with self._lock:
            reason = await self._why_apart(release)
            self.problem = reason or None  # None: NVML was not asked
            if reason:
                self._disconnect()  # the right one will listen on the same path
            return reason

    async def _why_apart(self, release: str) -> str:
        try:
            await within(START_S + SLACK_S, self._connection())
        except NvctError as error:
            return error.message
        except (OSError, EOFError, asyncio.TimeoutError) as error:
            return self._failure(str(error) or "no answer").message
        if self._release == release:
            return ""
        return (
            f"NVML's worker on {self._path} was installed with {self._release or 'nothing'}, "
            f"this agent with {release}: it waits for its own worker"
        )

    async def _answer(self, request: bytes, limit_s: float) -> Json:
        """Return the answer; close the connection if none comes in time."""
        limit_s += SLACK_S
        try:
            return await within(limit_s, self._of_living(request, limit_s))
        except asyncio.TimeoutError as error:
            self._disconnect()
            raise TimeoutError(f"no answer within {limit_s:g} s") from error
        except (OSError, EOFError):
            self._ends += self._socket is not None
            self._disconnect()
            raise
        except BaseException:
            self._disconnect()
            raise

    async def _of_living(self, request: bytes, limit_s: float) -> Json:
        """Return the worker's answer, or the next worker's if this one ended before reading."""
        try:
            return await super()._answer(request, limit_s)
        except (BrokenPipeError, ConnectionResetError):
            self._ends += 1
            self._disconnect()
            return await super()._answer(request, limit_s)

    async def _connection(self) -> socket.socket:
        if self._socket is None:
            connection = socket.socket(socket.AF_UNIX)
            connection.settimeout(0)
            try:
                await asyncio.get_running_loop().sock_connect(connection, self._path)
                self._release = await self._hello(connection)
            except BaseException:
                connection.close()
                self._received.clear()
                raise
            self._socket, self._has_answered = connection, False
        return self._socket

    async def _hello(self, connection: socket.socket) -> str:
        """Return the release of the worker."""
        arguments: Json = {"library": "", "limit_s": CALL_S, "call": {}}
        request = messages.encode({"id": 0, "verb": HELLO, "arguments": arguments})
        await asyncio.get_running_loop().sock_sendall(connection, request)
        answer = messages.decode(await self._message(connection))
        try:
            hello = typed.load(Hello, messages.value_of(answer, 0), HELLO)
        except (NvctError, typed.MalformedError):
            hello = Hello(protocol=0, release="")
        if hello.protocol != PROTOCOL:
            raise NvmlError(
                f"NVML's worker on {self._path} speaks protocol {hello.protocol or 'unknown'}, "
                f"this agent {PROTOCOL}",
                hint="agent and worker must be of one version of nvct: upgrade the older one",
            )
        return hello.release

    def _failure(self, reason: str) -> NvmlError:
        times = "once" if self._ends == 1 else f"{self._ends} times"
        ends = f"; it has ended {times} since this agent began" if self._ends else ""
        return NvmlError(
            f"{messages.WORKER_AWAY} does not answer on {self._path}: {reason}{ends}",
            hint="`kubectl logs --previous` of that container says why it ended",
        )

    def _disconnect(self) -> None:
        self.disconnect()
        self._socket = None
        self._received.clear()
