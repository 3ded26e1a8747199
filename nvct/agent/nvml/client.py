# SPDX-License-Identifier: Apache-2.0
"""NVML for the agent's tasks: requests to the supervisor that do not block the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import socket
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import replace
from types import NoneType

from nvct import typed
from nvct.agent.mps.daemons import Daemon, Wanted
from nvct.agent.nvml import host_verbs, mig_verbs
from nvct.agent.nvml.host_verbs import CLOSE, ENGINE, MPS
from nvct.agent.nvml.last_gpus import LastGpus
from nvct.errors import HostError, NvmlError
from nvct.host.nvml import messages
from nvct.host.nvml.model import GpuAttributes, GpuProperties, NvmlEvents, NvmlReport, NvmlTopology
from nvct.oci.jsontext import Json

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket
    from typing import Literal, TypeVar

    from nvct.host.nvml.mig_model import MigState
    from nvct.host.nvml.sample_model import NvmlConditions, NvmlPreflight, NvmlSamples

    T = TypeVar("T")

START_S = 60  # Eight GPUs that nothing else uses take some twenty seconds to start
CALL_S = 5  # Limit for a worker that has answered before: a longer wait is a hang
LIMITS_S = {"topology": 30, "mig": 30, mig_verbs.NODES: 30, mig_verbs.RESET: 300}
"""Limits for slower verbs: the NVLinks of one pair of GPUs took 0.6 s on a machine of 8 GPUs
(github.com/NVIDIA/k8s-device-plugin/issues/774)."""
CHANGE_S = 60  # Limit for one change of MIG
WITHOUT_NVML = frozenset({ENGINE, MPS, mig_verbs.NODES}) | host_verbs.WITHOUT_NVML
"""Verbs that do not use NVML: if one fails, NVML may still work."""
STOP_S, STOP_LOOK_S = 8.0, 0.2
"""How long MPS control daemons may take to end, and the time between two looks."""
CHUNK = 1 << 16
_ends = contextvars.ContextVar("ends", default=False)
"""Whether this task may ask NVML although the driver is let go, see `NvmlClient.ending`."""


class SupervisorEndedError(Exception):
    """The supervisor has ended. Only a restart of the agent starts another, so every task ends."""


class ReleasedError(NvmlError):
    """NVML must not be asked, because the driver is being replaced."""


class NvmlClient:
    """Asks one NVML library, one request at a time; every question raises NvmlError as `report`.

    A GPU that hangs stays in the answers as it was reported last.

    Attributes:
        problem: why the last request failed, "" if it did not, None before the first one.
        busy_s: the limit of the request in progress, in seconds; 0 if there is none.
        refusal: why no task may use the driver now, "" if all may.
        is_let_go: whether this agent has closed all files of the driver.
    """

    problem: str | None = None
    busy_s = 0
    refusal = ""
    is_let_go = _was_asked = False
    chooses_library = True  # Whether this process, not a worker, chooses the library

    def __init__(self, connection: _socket.socket | None, library: str = "") -> None:
        self.library = library
        self._socket = socket.socket(fileno=connection.detach()) if connection else None
        if self._socket:
            self._socket.settimeout(0)
        self._received = bytearray()
        """Bytes that have been read, but are not a whole answer yet."""
        self._lock = asyncio.Lock()
        self._requests = 0
        self._has_answered = False
        self._first: asyncio.Future[NvmlReport] | None = None
        self._last = LastGpus()
        self._attributes: dict[str, GpuAttributes] = {}
        self._properties: dict[str, GpuProperties] = {}

    def check(self) -> None:
        """Raise ReleasedError while the driver is being replaced."""
        if self.refusal and not _ends.get():
            raise ReleasedError(
                self.refusal,
                hint="a release ends by `nvct agent resume`, a label's pause by itself",
            )

    @contextlib.contextmanager
    def ending(self) -> Iterator[None]:
        """Allow questions to NVML although the driver is let go; `Release` closes it again."""
        token = _ends.set(True)
        try:
            yield
        finally:
            _ends.reset(token)
            self.is_let_go, self._was_asked = False, True

    async def let_go(self, reason: str) -> None:
        """Refuse questions from now on; close NVML, and end MPS control daemons without a claim.

        NvctError if the worker or a daemon does not end.
        """
        self.refusal, self._was_asked = reason, False
        async with self._lock:
            await self._request(CLOSE, {}, CALL_S)
        end = time.monotonic() + STOP_S
        while left := await self.mps((), starts=True):
            if time.monotonic() > end:
                raise HostError(f"the MPS control daemon of {min(left)} does not end")
            await asyncio.sleep(STOP_LOOK_S)
        self.problem, self.is_let_go = None, bool(self.refusal) and not self._was_asked

    async def why_apart(self, release: str) -> str:
        """Return "", because NVML's process is of this agent's own release."""
        del release
        return ""

    async def report(self) -> NvmlReport:
        """Return what NVML reports about this machine.

        Callers that ask before NVML has answered anything share one report. NvmlError if NVML
        cannot be loaded or initialized, hangs or crashes.
        """
        first = self._first
        if first is None or first.done() or self._has_answered:
            first = self._first = asyncio.ensure_future(self._report())
        return await asyncio.shield(first)

    async def _report(self) -> NvmlReport:
        report = await self._ask("report", NvmlReport)
        if not self._last.is_of(report):
            self._attributes, self._properties = {}, {}
        return self._last.in_report(report)

    async def topology(self) -> NvmlTopology:
        """Return how the GPUs are connected."""
        return await self._ask("topology", NvmlTopology)

    async def attributes(self) -> dict[str, GpuAttributes]:
        """Return memory, compute capability, ECC and so on of each GPU, by its UUID."""
        self._attributes |= await self._ask("attributes", dict[str, GpuAttributes])
        return self._of_reported(self._attributes)

    async def properties(self) -> dict[str, GpuProperties]:
        """Return brand and architecture of each GPU, by its UUID."""
        self._properties |= await self._ask("properties", dict[str, GpuProperties])
        return self._of_reported(self._properties)

    async def events(self) -> NvmlEvents:
        """Return the XID errors since the last call."""
        events = await self._ask("events", NvmlEvents)
        named = {
            gpu.uuid: events.unanswered[index]
            for index, gpu in self._last.gpus.items()
            if index in events.unanswered
        }
        return replace(events, unanswered=named)

    async def conditions(self) -> NvmlConditions:
        """Return what shows whether each GPU works well; a GPU that hangs is missing."""
        from nvct.host.nvml.sample_model import NvmlConditions  # not before the first list

        return await self._ask("conditions", NvmlConditions)

    async def preflight(self) -> NvmlPreflight:
        """Return what shows whether each GPU is as fast as it can be."""
        from nvct.host.nvml.sample_model import NvmlPreflight  # few nodes ask

        return await self._ask("preflight", NvmlPreflight)

    async def samples(self) -> NvmlSamples:
        """Return what all GPUs report now, for monitoring."""
        from nvct.host.nvml.sample_model import NvmlSamples  # one task needs it

        return await self._ask("samples", NvmlSamples)

    async def mig(self) -> MigState:
        """Return modes, profiles and instances of all GPUs."""
        from nvct.host.nvml.mig_model import MigState  # one task needs it

        return await self._ask("mig", MigState)

    async def call(self, verb: str, kind: type[T], arguments: Mapping[str, Json]) -> T:
        """Make one change, of MIG or of specifications; return its answer, checked against a type.

        NvctError as `report`, or if the change is refused.
        """
        # A refused change does not mean that NVML fails: `problem` stays as it is.
        return self._loaded(kind, await asyncio.shield(self._exchange(verb, arguments)), verb)

    @contextlib.asynccontextmanager
    async def released(self, limit_s: int) -> AsyncIterator[None]:
        """Keep NVML's handles closed while the context lasts; all other requests wait.

        NvmlError if the worker does not end. `limit_s`: how long the context may last; the callers
        that wait see it as `busy_s`.
        """
        async with self._lock:
            self.busy_s = limit_s
            try:
                await self._request(CLOSE, {}, CALL_S)
                yield
            finally:
                self.busy_s = 0

    async def mps(
        self, daemons: Iterable[Daemon], *, starts: bool, owner: Literal["", "dra"] = ""
    ) -> dict[str, str]:
        """Return why each MPS control daemon is not ready, "" if it is, by its resource.

        This does not need NVML, and does not wait for the daemons. NvctError if the supervisor
        does not answer, or cannot keep daemons.

        Args:
            daemons: those that a task wants; those of other tasks stay, and are not returned.
            starts: whether to start these daemons, and stop the task's other ones.
            owner: the task; "" is the device plugin.
        """
        try:
            wanted = Wanted(daemons=tuple(daemons), starts=starts, owner=owner)
        except ValueError as error:
            raise HostError(f"MPS control daemons cannot be kept: {error}") from error
        state = await asyncio.shield(self._exchange(MPS, typed.dump(wanted)))
        return self._loaded(dict[str, str], state, MPS)

    async def engine(self) -> Json:
        """Return the answers of the container engines, see `engine_question.ask`."""
        return await asyncio.shield(self._exchange(ENGINE))

    async def close(self) -> None:
        """End the worker, and with it NVML's handles; the next call starts another one."""
        await self._ask(CLOSE, NoneType)
        self.problem = None

    def disconnect(self) -> None:
        """End the connection, and with it the supervisor."""
        if self._socket is not None:
            self._socket.close()

    def _of_reported(self, known: dict[str, T]) -> dict[str, T]:
        """Return the known values of the GPUs that were reported last, by UUID."""
        uuids = [gpu.uuid for gpu in self._last.gpus.values()]
        return {uuid: known[uuid] for uuid in uuids if uuid in known} if uuids else known

    async def _ask(self, verb: str, kind: type[T]) -> T:
        # Shielded from the caller's cancellation: the answer shows whether NVML still works.
        try:
            value = await asyncio.shield(self._exchange(verb))
        except ReleasedError:
            raise
        except NvmlError as error:
            self.problem = error.message
            raise
        self.problem = ""
        return self._loaded(kind, value, verb)

    def _loaded(self, kind: type[T], value: Json, verb: str) -> T:
        try:
            return typed.load(kind, value, verb)
        except typed.MalformedError as error:
            raise self._failure(str(error)) from error

    async def _exchange(self, verb: str, call: Mapping[str, Json] | None = None) -> Json:
        async with self._lock:
            if verb not in WITHOUT_NVML:
                self.check()
            is_change = call and verb not in WITHOUT_NVML and verb not in host_verbs.CALLS
            usual_s = LIMITS_S.get(verb, CHANGE_S if is_change else CALL_S)
            limit_s = usual_s if self._has_answered else max(START_S, usual_s)
            self.busy_s = limit_s
            try:
                return await self._request(verb, call or {}, limit_s)
            finally:
                self.busy_s = 0

    async def _request(self, verb: str, call: Mapping[str, Json], limit_s: int) -> Json:
        """Send a request and return the value of its answer; the caller holds the lock."""
        self._requests += 1
        arguments: Json = {"library": self.library, "limit_s": limit_s, "call": {**call}}
        request: Json = {"id": self._requests, "verb": verb, "arguments": arguments}
        try:
            message = await self._answer(messages.encode(request), limit_s)
            if verb in WITHOUT_NVML:
                return messages.value_of(message, self._requests)
            self._has_answered = False
            value = messages.value_of(message, self._requests)
            self._has_answered = verb not in (CLOSE, mig_verbs.RESET)
            return value
        except (OSError, EOFError, messages.MalformedMessageError) as error:
            raise self._failure(str(error) or "no answer") from error

    async def _answer(self, request: bytes, limit_s: float) -> Json:
        """Return the answer to a request; the supervisor enforces the limit."""
        del limit_s
        connection = await self._connection()
        await asyncio.get_running_loop().sock_sendall(connection, request)
        while True:
            answer = messages.decode(await self._message(connection))
            if not messages.answers_before(answer, self._requests):
                return answer

    async def _message(self, connection: socket.socket) -> bytes:
        """Return the next answer; if this is canceled, the next call reads on."""
        while len(self._received) < messages.HEADER:
            await self._receive(connection)
        size = messages.HEADER + messages.length_of(bytes(self._received[: messages.HEADER]))
        while len(self._received) < size:
            await self._receive(connection)
        answer = bytes(self._received[messages.HEADER : size])
        del self._received[:size]
        return answer

    async def _receive(self, connection: socket.socket) -> None:
        """Read bytes, or wait until there are some.

        There is no await between reading and keeping the bytes: `sock_recv` loses what it has read
        if it is canceled in that moment.
        """
        try:
            chunk = connection.recv(CHUNK)
        except BlockingIOError:
            await _until_readable(connection)
            return
        if not chunk:
            raise EOFError
        self._received += chunk

    async def _connection(self) -> socket.socket:
        if self._socket is None:
            raise EOFError
        return self._socket

    def _failure(self, reason: str) -> Exception:
        return SupervisorEndedError(f"NVML's supervisor has ended: {reason}")


async def _until_readable(connection: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    is_readable = asyncio.Event()
    loop.add_reader(connection, is_readable.set)
    try:
        await is_readable.wait()
    finally:
        loop.remove_reader(connection)
