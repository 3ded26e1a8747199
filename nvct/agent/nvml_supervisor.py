# SPDX-License-Identifier: Apache-2.0
"""The process from which NVML's workers are started: it has no threads and no gRPC.

A process with threads must not fork, and gRPC starts threads; so the agent forks this process
first. It passes requests on to a session, which has the deadline and kills a worker that hangs.

The protocol is that of `nvct.host.nvml.messages`; the arguments of a request are its own::

    request  {"id": 1, "verb": "report", "arguments": {"library": "/usr/lib/...", "limit_s": 60}}
"""

from __future__ import annotations

from nvct import errors
from nvct.errors import NvctError, NvmlError
from nvct.host.nvml import messages
from nvct.host.nvml.process import WorkerProcess
from nvct.host.nvml.session import NvmlSession

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket

    from nvct.oci.jsontext import Json

CLOSE = "close"
"""The verb that ends the worker, which closes NVML's handles."""


def start() -> WorkerProcess:
    """Start the supervisor. To be called before this process has any thread."""
    return WorkerProcess(serve)


def serve(connection: socket) -> None:
    """Answer requests until the agent closes the connection, or ends.

    Raises:
        MalformedMessageError: the agent does not speak the protocol.
    """
    session: NvmlSession | None = None
    try:
        while True:
            number, verb, arguments = messages.request_of(messages.receive(connection))
            answer: dict[str, Json]
            try:
                session = _session(session, arguments)
                answer = {"value": _call(session, verb)}
            except NvctError as error:
                answer = {"error": {**errors.to_dict(error)}}
            messages.send(connection, {"id": number, **answer})
    except EOFError:
        pass
    finally:
        if session is not None:
            _close(session)


def _session(session: NvmlSession | None, arguments: dict[str, Json]) -> NvmlSession:
    """Return the session with a library, which ends that with another one.

    Raises:
        NvmlError: the other session's worker does not end.
    """
    library, limit_s = arguments.get("library"), arguments.get("limit_s")
    if not isinstance(library, str) or not isinstance(limit_s, int):
        raise NvmlError("a request to NVML's supervisor has malformed arguments")
    if session is not None and session.path != library:
        session.close()
        session = None
    session = session or NvmlSession(library)
    session.limit_s = limit_s
    return session


def _call(session: NvmlSession, verb: str) -> Json:
    if verb == CLOSE:
        session.close()
        return None
    return session.call(verb)


def _close(session: NvmlSession) -> None:
    try:
        session.close()
    except NvmlError:  # it waits in the kernel, and ends with a reboot
        pass
