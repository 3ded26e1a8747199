# SPDX-License-Identifier: Apache-2.0
"""The supervisor: the process that starts NVML's workers. It has no threads and no gRPC.

A process with threads must not fork, and gRPC starts threads; so the agent forks the supervisor
first. It passes requests on to a session, which enforces the deadline and kills a worker that
hangs.

The protocol is that of `nvct.host.nvml.messages`, with these arguments of a request::

    request  {"id": 1, "verb": "report",
              "arguments": {"library": "/usr/lib/...", "limit_s": 60, "call": {}}}

`CALLS` has the type of each verb's `call`. The whole request is checked before anything is done; a
malformed one is answered by an error. A supervisor that serves another container chooses the
library itself, and has the verbs of `nvct.agent.nvml.mig_verbs` and `nvct.agent.nvml.host_verbs`
for what that container has no right to do.
"""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import dataclass
from functools import partial
from typing import cast

from nvct import errors, typed
from nvct.agent.mps.daemons import Wanted
from nvct.agent.nvml import host_verbs, mig_verbs
from nvct.agent.nvml.host_verbs import CLOSE, ENGINE, MPS
from nvct.agent.nvml.last_gpus import LastGpus
from nvct.errors import DriverNotFoundError, NvctError, NvmlError
from nvct.host.nvml import messages
from nvct.host.nvml.model import NvmlReport
from nvct.host.nvml.process import WorkerProcess
from nvct.host.nvml.session import NvmlSession
from nvct.oci.jsontext import Json
from nvct.typed import MalformedError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket
    from collections.abc import Callable, Mapping
    from typing import TypeVar

    from nvct.agent.host_side import HostSide
    from nvct.agent.mps.keeper import KeeperProcess
    from nvct.host.nvml.library import Library
    from nvct.host.roots import Roots

    T = TypeVar("T")

HELLO = "hello"
"""The first verb of an agent in another container; answered by `Hello`. Its form never changes."""
PROTOCOL = 3  # To be raised with each change of what the verbs take and answer
CALLS: Mapping[str, type] = {
    **dict.fromkeys(
        (
            "attributes", "check", "conditions", "events", "mig", "preflight", "properties",
            "report", "samples", "topology", CLOSE, ENGINE, HELLO,
        ),
        mig_verbs.Nothing,
    ),
    **mig_verbs.CALLS,
    **host_verbs.CALLS,
    MPS: Wanted,
}  # fmt: skip
"""The type of each verb's arguments."""
LIMIT_S = 60  # The longest deadline that a request may give a call, in seconds


def start() -> WorkerProcess:
    """Start the supervisor; call this before the process has any other thread."""
    return WorkerProcess(serve)


def serve(connection: socket) -> None:
    """Answer requests until the connection is closed; MalformedMessageError for a bad message."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # meant for the agent: `pkill -HUP` finds both
    supervisor = Supervisor(ask_engine=partial(ask_engine, os.environ))
    try:
        while True:
            messages.send(connection, supervisor.answer(messages.receive(connection)))
    except EOFError:
        pass
    finally:
        supervisor.end()


def ask_engine(env: Mapping[str, str]) -> Json:
    """Return the answers of the container engines on the host that an environment describes."""
    from nvct.agent.nvml import engine_question  # few nodes need it

    return engine_question.ask(engine_question.roots(env))


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """The arguments of a request; `call` has those of its verb."""

    library: str
    limit_s: int
    call: object


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """The worker's protocol, and the release it was installed with, see `RELEASE_ENV`."""

    protocol: int
    release: str


class Supervisor:
    """Answers requests, by one session with NVML.

    `find_library`: returns the library, which only root can change, or raises DriverNotFoundError;
    None takes the library that a request names. Only if requests come from another container:
    `find_roots` returns this machine's roots, and `host` reads and writes its files.
    """

    def __init__(
        self,
        find_library: Callable[[], Library] | None = None,
        ask_engine: Callable[[], Json] = dict,
        find_roots: Callable[[], Roots] | None = None,
        host: HostSide | None = None,
        release: str = "",
    ) -> None:
        self._ask_engine = ask_engine
        self._find_library = find_library
        self._find_roots = find_roots
        self._host = host
        self.hello = Hello(protocol=PROTOCOL, release=release)
        if host is not None:
            host.pids = frozenset()  # none until NVML has named some
        self._gpus = LastGpus()
        self._session: NvmlSession | None = None
        self._library_of_session: tuple[str, str | None] | None = None
        self._keeper: KeeperProcess | None = None

    def answer(self, message: Json) -> Json:
        """Return the answer to a request, with id 0 if the request is malformed."""
        number = 0
        try:
            number, verb, arguments = messages.request_of(message)
            return {"id": number, "value": self._call(verb, arguments)}
        except NvctError as error:
            failure = error
        except MalformedError as error:
            failure = NvmlError(f"NVML's worker refuses a malformed request: {error}")
        except Exception as error:  # the last resort of this process: the agent raises it
            failure = errors.unexpected(error)
        return {"id": number, "error": {**errors.to_dict(failure)}}

    def close(self) -> None:
        """End the worker; one that hangs in the kernel stays until it returns, or a reboot."""
        if self._session is not None:
            with contextlib.suppress(NvmlError):
                self._session.close()

    def end(self) -> None:
        """End the worker, and the MPS control daemons."""
        if self._keeper is not None:
            self._keeper.close()
        self.close()

    def _call(self, verb: str, arguments: dict[str, Json]) -> Json:
        given, call = call_of(verb, arguments)
        if isinstance(call, Wanted):
            return self._mps(call)
        if verb == ENGINE:
            return self._ask_engine()
        if verb == HELLO:
            return cast("Json", typed.dump(self.hello))
        if verb == mig_verbs.NODES:
            mig_verbs.make_nodes(self._roots(verb))
            return None
        if isinstance(call, host_verbs.Call):
            report = partial(self._report, given.limit_s)
            return _allowed(self._host, verb).answer(call, report)
        if verb == CLOSE and self._session is None:
            return None
        session = self._with_library(self._library(verb, given.library))
        session.limit_s = given.limit_s
        if verb == CLOSE:
            session.close()
            return None
        if isinstance(call, mig_verbs.Holders):
            return mig_verbs.holders(session, self._roots(verb), call)
        if isinstance(call, mig_verbs.Reset):
            mig_verbs.reset(session, self._roots(verb), call)
            return None
        value = cast("Json", session.ask(verb, object, typed.dump(call)))
        if verb == "samples" and self._host is not None:
            self._host.pids = _pids(value)
        return value

    def _report(self, limit_s: int) -> NvmlReport:
        """Return what NVML reports; a GPU that hangs is in the report as it was before."""
        session = self._with_library(self._library("report", ""))
        session.limit_s = limit_s
        return self._gpus.in_report(session.ask("report", NvmlReport))

    def _roots(self, verb: str) -> Roots:
        """Return this machine's roots; refuse the verb if the agent is in the same container."""
        return _allowed(self._find_roots, verb)()

    def _mps(self, wanted: Wanted) -> Json:
        if self._keeper is None:
            from nvct.agent.mps.keeper import KeeperProcess

            self._keeper = KeeperProcess()
        return {**self._keeper.exchange(wanted)}

    def _library(self, verb: str, named: str) -> tuple[str, str | None]:
        """Return path and root of the library; `report` looks for it again."""
        if self._find_library is None:
            return named, None
        if self._library_of_session is not None and verb != "report":
            return self._library_of_session
        try:
            return self._find_library()
        except DriverNotFoundError as error:
            if verb == "report":
                raise
            raise NvmlError(error.message, hint=error.hint) from error

    def _with_library(self, library: tuple[str, str | None]) -> NvmlSession:
        """Return the session with a library; end a session with another one."""
        if self._session is not None and self._library_of_session != library:
            self._session.close()
            self._session = None
        if self._session is None:
            path, root = library
            self._session, self._library_of_session = NvmlSession(path, root=root), library
        return self._session


def _allowed(service: T | None, verb: str) -> T:
    if service is None:
        raise NvmlError(f"NVML's supervisor does not answer {verb!r} in the agent's container")
    return service


def call_of(verb: str, arguments: Json) -> tuple[Arguments, object]:
    """Return the arguments of a request, and those of its verb, whose type `CALLS` has.

    MalformedError if the verb is unknown, or an argument is wrong.
    """
    kind = CALLS.get(verb)
    if kind is None:
        raise MalformedError(f"the verb {verb[:40]!a} is unknown")
    given = typed.load(Arguments, arguments, "arguments")
    longest_s = mig_verbs.RESET_LIMIT_S if verb == mig_verbs.RESET else LIMIT_S
    if not 0 < given.limit_s <= longest_s:
        raise MalformedError(f"the limit of {verb} is out of range")
    call: object = typed.load(kind, given.call, verb)
    return given, call


def _pids(samples: Json) -> frozenset[int]:
    """Return the pids of the processes that have a GPU, from the samples of NVML's process."""
    from nvct.host.nvml.sample_model import NvmlSamples  # one task needs it

    known = typed.load(NvmlSamples, samples, "samples")
    return frozenset(process.pid for gpu in known.gpus for process in gpu.processes)
