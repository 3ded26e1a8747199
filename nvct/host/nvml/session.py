# SPDX-License-Identifier: Apache-2.0
"""One session with NVML, initialized once in a worker process that is killed if a call hangs.

NVML has a process of its own because it can hang with the driver, or crash. The end of the process
closes NVML's handles, which a change of the MIG mode or a reset of a GPU requires.

Contract: for one thread at a time. `shared_session` returns this process's session for a library,
which is closed when the process ends. A long-lived process does not use it: open handles keep the
driver's modules from being unloaded.
"""

from __future__ import annotations

import atexit
import os
import time
from _socket import socket
from collections.abc import Callable, Mapping
from functools import partial
from types import NoneType
from typing import Any, TypeAlias, TypeVar

from nvct import typed
from nvct.errors import NvctError, NvmlError
from nvct.host.nvml import messages
from nvct.host.nvml.messages import HANG
from nvct.host.nvml.model import GpuProperties, NvmlReport
from nvct.host.nvml.process import KILL_S, WorkerProcess
from nvct.linux.deadline import Deadline

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.host.nvml.mig_model import MigChange, MigState  # few callers change MIG
    from nvct.oci.jsontext import Json

T = TypeVar("T")
Serve: TypeAlias = Callable[[socket, str], None]

LIMIT_S = 60.0  # eight GPUs that nothing else uses take some twenty seconds to start
DMESG = "dmesg tells which GPU hangs"


class NvmlSession:
    """NVML through nvidia-ml-py and one library file, in a worker process.

    Each call raises NvmlError as `report` does.

    The worker starts with the first call, and again with the first call after a crash or a
    missed deadline. A worker that does not answer is killed. A killed worker that survives waits
    in the kernel and keeps its handles: until it has ended, no other starts and calls fail.

    A call has `limit_s` seconds, in which the worker's waits for a processor do not count. `serve`
    runs in the worker, by default `worker.serve`. With `root`, the library below that folder is
    loaded only if no other user than root can change it, see `trusted_file`.
    """

    def __init__(
        self,
        library: str,
        limit_s: float = LIMIT_S,
        serve: Serve | None = None,
        root: str | None = None,
    ) -> None:
        self.path = library
        self.limit_s = limit_s
        self._serve = serve or partial(_serve, root=root)
        self._worker: WorkerProcess | None = None
        self._requests = 0
        # how long the first answer took, in seconds: the start of the worker, of NVML, and of each
        # GPU that nothing else uses; None before that
        self.first_answer_s: float | None = None

    def report(self) -> NvmlReport:
        """Return a complete report about this machine.

        NvmlError if the library cannot be loaded or initialized, hangs or crashes, or a GPU hangs.
        """
        return self._ask_complete("report", NvmlReport)

    def check(self) -> None:
        """Load and initialize the library."""
        self.ask("check", NoneType)

    def properties(self) -> dict[str, GpuProperties]:
        """Return brand, architecture and addressing mode of each GPU, by its UUID."""
        return self._ask_complete("properties", dict[str, GpuProperties])

    def mig(self) -> MigState:
        """Return modes, profiles and instances of all GPUs."""
        from nvct.host.nvml.mig_model import MigState

        return self.ask("mig", MigState)

    def change_mig(self, change: MigChange) -> Any:  # noqa: ANN401 - of the type in CHANGES
        """Make one change of MIG, and return the answer; NvmlError also if NVML refuses it."""
        from nvct.host.nvml.mig_model import CHANGES

        verb, answer = CHANGES[type(change)]
        return self.ask(verb, answer, typed.dump(change))

    @property
    def pid(self) -> int | None:
        """The worker's process id, None if there is no worker."""
        worker = self._own_worker()
        return worker.pid if worker else None

    def close(self) -> None:
        """End the worker, and with it NVML's handles; the next call starts another one.

        NvmlError if the worker does not end: it waits in the kernel.
        """
        worker = self._own_worker()
        if worker is None:
            return
        if not worker.killed:
            worker.connection.close()
            if worker.wait(self.limit_s) or worker.kill():
                self._worker = None
                return
        raise self._stuck(worker)

    @property
    def is_stuck(self) -> bool:
        """Return whether the worker was killed and has not ended: it waits in the kernel."""
        worker = self._own_worker()
        return worker is not None and worker.killed

    def _ask_complete(self, verb: str, kind: type[T]) -> T:
        """Return the answer of all GPUs to a verb.

        NvmlError as `ask`; also if a GPU hangs: then the worker is killed.
        """
        try:
            return self.ask(verb, kind, {"complete": True})
        except NvmlError as error:
            if is_hang(error.message) and self._worker and not self._worker.killed:
                self._kill(self._worker)
            raise

    def ask(self, verb: str, kind: type[T], arguments: Mapping[str, Json] | None = None) -> T:
        """Send a request to the worker and return its answer as `kind` (`object`: any JSON data).

        NvmlError if NVML refuses, or the worker does not answer and is killed; NvctError if the
        worker itself fails.
        """
        worker = self._own_worker()
        if worker is None:
            worker = self._worker = WorkerProcess(lambda end: self._serve(end, self.path))
        if worker.killed:
            raise self._stuck(worker)
        since = time.monotonic()
        try:
            answer = self._exchange(worker, verb, arguments or {})
            if self.first_answer_s is None:
                self.first_answer_s = time.monotonic() - since
            return typed.load(kind, answer, verb)
        except NvctError:  # an answer of the worker
            raise
        except TimeoutError as error:
            self._kill(worker)
            raise NvmlError(
                f"{HANG} within {self.limit_s:g} s: {self.path}", hint=DMESG
            ) from error
        except EOFError as error:
            worker.wait(KILL_S)
            self._kill(worker)
            raise NvmlError(
                f"NVML crashed with {worker.ending()}: {self.path}",
                hint="install the driver again",
            ) from error
        except typed.MalformedError as error:
            self._kill(worker)
            raise NvmlError(
                f"NVML's worker process gives a malformed answer: {error}: {self.path}",
                hint="please report it",
            ) from error
        except BaseException:
            self._kill(worker)
            raise

    def _exchange(self, worker: WorkerProcess, verb: str, arguments: Mapping[str, Json]) -> Json:
        connection = worker.connection
        deadline = Deadline(self.limit_s, worker.pid)
        self._requests += 1
        words: dict[str, Json] = {**arguments, messages.CALL_LIMIT: self.limit_s}
        request: Json = {"id": self._requests, "verb": verb, "arguments": words}
        messages.send(connection, request, deadline)
        return messages.value_of(messages.receive(connection, deadline), self._requests)

    def _own_worker(self) -> WorkerProcess | None:
        worker = self._worker
        if worker and (worker.parent != os.getpid() or worker.has_ended()):
            worker.connection.close()
            self._worker = None
        return self._worker

    def _kill(self, worker: WorkerProcess) -> None:
        """Kill the worker and forget it, unless it survives."""
        if worker.kill():
            self._worker = None

    def _stuck(self, worker: WorkerProcess) -> NvmlError:
        return NvmlError(
            f"NVML hangs: process {worker.pid} waits in the driver and cannot be killed: "
            f"{self.path}",
            hint=f"{DMESG}; a reboot ends it",
        )


def is_hang(message: str) -> bool:
    """Return whether an error's message says that NVML does not answer."""
    return message.startswith((HANG, "NVML hangs"))


def _serve(connection: socket, path: str, root: str | None) -> None:
    """Run the worker; only its own process imports the module."""
    from nvct.host.nvml import worker

    worker.serve(connection, path, root=root)


Identity: TypeAlias = tuple[int, int] | None

_SESSIONS: dict[str, tuple[Identity, NvmlSession]] = {}


def shared_session(library: str) -> NvmlSession:
    """Return this process's session with a library; a new one if the file was replaced.

    While a worker is stuck, its session is returned for every library: another worker would wait
    for the same driver.
    """
    for _, open_session in _SESSIONS.values():
        if open_session.is_stuck:
            return open_session
    identity = _identity(library)
    previous, current = _SESSIONS.get(library, (identity, None))
    if current is not None and previous != identity:
        current.close()
        current = None
    if current is None:
        if not _SESSIONS:
            atexit.register(close_shared)
        current = NvmlSession(library)
        _SESSIONS[library] = (identity, current)
    return current


def close_shared() -> None:
    """Close all sessions; a worker that does not end is left alone."""
    atexit.unregister(close_shared)
    while _SESSIONS:
        _, (_, current) = _SESSIONS.popitem()
        try:
            current.close()
        except NvmlError:
            pass


def _identity(path: str) -> Identity:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino
