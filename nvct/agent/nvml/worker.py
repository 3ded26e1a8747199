# SPDX-License-Identifier: Apache-2.0
"""`nvct agent worker`: NVML for an agent in another container, over a Unix socket.

The agent's container then needs no device and no privilege, and in a pod of its own it sees no
process of the host. The worker needs no token and no network, and leaves its network namespace.
Its protocol and verbs are those of `nvct.agent.nvml.supervisor`. It chooses the library itself: no
request names a file, and only root can change what the worker loads.

The worker has one thread, because it forks NVML's process. It serves only root.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import struct
import sys

from nvct import typed
from nvct.agent import host_side
from nvct.agent.core import logs, program
from nvct.agent.core.program import GRACE_S, RELEASE_ENV, WORKER_ENV, grace_s
from nvct.agent.host_side import HostSide
from nvct.agent.machine import driver_root
from nvct.agent.nvml.supervisor import HELLO, Hello, Supervisor, ask_engine
from nvct.errors import NvctError, line
from nvct.host.nvml import messages
from nvct.kernel.shared_folder import SharedFolder
from nvct.linux.deadline import Deadline
from nvct.linux.files import split
from nvct.oci.jsontext import Json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from nvct.agent.core.logs import Log
    from nvct.host.nvml.library import Library

CONNECTIONS = 8  # Open at once; one more ends the oldest. An agent has only one
MESSAGE_S = 1.0
"""How long a client may take to send the rest of a request, or to take its answer."""
MARGIN_S = 3
"""The worker ends so long before its pod must have ended. That is after an agent that serves on,
see `nvct.agent.core.instance`."""
SUCCESSOR_S = 10
"""How long a worker in a pod of its own waits until the worker that replaces it has started."""
LOOK_S = 1  # Between two looks for that worker, which may take as long to name its release
PEER = struct.Struct("3i")  # pid, uid, gid: struct ucred (unix(7), SO_PEERCRED)


class Worker:
    """Serves the agent's requests, one after another."""

    def __init__(
        self,
        listener: socket.socket,
        supervisor: Supervisor,
        log: Log,
        grace_s: int = GRACE_S,
        own_path: str = "",
    ) -> None:
        # grace_s: how long the pod may take to end. own_path: path of the socket if the agent is
        # in another pod, else "".
        self._own_path = own_path
        self._file = _file(own_path)
        self._end_s = max(1, grace_s - MARGIN_S)
        self._listener, self._supervisor, self._log = listener, supervisor, log
        self._clients: list[socket.socket] = []
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._is_ending = self._is_answering = self._ends_next = False
        self._looks = SUCCESSOR_S // LOOK_S

    def end(self) -> None:
        """Raise SystemExit now, or in `serve` when the last agent has disconnected.

        Both containers of a pod get a signal at once, and an agent may serve on for a while. In a
        pod of its own, the worker ends when a newer worker of the same release runs. It stays for
        the agent if the newer one is of another release, because then the agent is replaced, too.
        If there is no newer one it ends, because a deleted pod is replaced only after its end.
        """
        self._is_ending = True
        if not self._clients:
            sys.exit(0)
        signal.alarm(LOOK_S if self._own_path else self._end_s)

    def on_alarm(self) -> None:
        """Raise SystemExit, now or after the answer in progress, unless the worker has to stay."""
        self._looks -= 1
        if not self._own_path or self._looks < 0:
            sys.exit(0)
        has_successor = _file(self._own_path) not in (None, self._file)
        release = _release_of(self._own_path) if has_successor else None
        if release == self._supervisor.hello.release or (not self._looks and release is None):
            self._ends_next = True
            if not self._is_answering:
                sys.exit(0)
        elif release is None:
            signal.alarm(LOOK_S)
        else:
            self._looks = 0  # the next alarm is the last one
            signal.alarm(max(1, self._end_s - SUCCESSOR_S))

    def serve(self) -> None:
        """Serve until `end` raises SystemExit, or the handler of a signal raises."""
        try:
            while True:
                for key, _ in self._selector.select():
                    if key.fileobj is self._listener:
                        self._accept()
                    elif key.fileobj in self._clients:  # this loop may have closed it
                        self._answer(key.fileobj)
        finally:
            self._supervisor.end()

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        data = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size)
        pid, uid, _gid = PEER.unpack(data)
        if uid != os.geteuid():
            self._log.warning(f"process {pid} of user {uid} is refused: only root is served")
            client.close()
            return
        if len(self._clients) == CONNECTIONS:
            self._end(self._clients[0], "there are too many connections")
        self._clients.append(client)
        self._selector.register(client, selectors.EVENT_READ)
        self._log.info(f"process {pid} is connected")

    def _answer(self, client: socket.socket) -> None:
        self._is_answering = True
        try:
            message = messages.receive(client, Deadline(MESSAGE_S))
            answer = self._supervisor.answer(message)
            messages.send(client, answer, Deadline(MESSAGE_S))
        except EOFError:
            self._end(client, "it has closed its connection")
        except TimeoutError:
            self._end(client, "it takes too long")
        except messages.MalformedMessageError as error:
            self._end(client, str(error))
        except Exception as error:  # whatever one client does, the others are served
            self._end(client, f"unexpected {type(error).__name__}: {error}")
        self._is_answering = False
        if self._ends_next:
            sys.exit(0)

    def _end(self, client: socket.socket, reason: str) -> None:
        """End a connection; close NVML's handles with the last one."""
        self._log.info(f"a connection ends: {reason}")
        self._selector.unregister(client)
        self._clients.remove(client)
        client.close()
        if not self._clients:
            self._supervisor.close()
            if self._is_ending:
                sys.exit(0)


def listen(path: str) -> socket.socket:
    """Return a listening socket for this user only; replace one that a dead process left.

    The agent, which has fewer rights, can change the folder. OSError if the socket cannot be made;
    UnsafePathError if the folder is a link or a file.
    """
    folder, name = split(path)
    with SharedFolder.open(folder, create=0o700) as opened:
        return opened.listen(name)


def _file(path: str) -> tuple[int, int] | None:
    """Return device and inode of a path, None if it does not exist."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _release_of(path: str) -> str | None:
    """Return the release of the worker that listens on a path.

    None if it does not answer, "" if it speaks another protocol.
    """
    with socket.socket(socket.AF_UNIX) as connection:
        deadline = Deadline(LOOK_S)
        try:
            connection.connect(path)
            arguments: Json = {"library": "", "limit_s": LOOK_S, "call": {}}
            messages.send(connection, {"id": 1, "verb": HELLO, "arguments": arguments}, deadline)
            answer = messages.value_of(messages.receive(connection, deadline), 1)
            return typed.load(Hello, answer, HELLO).release
        except (OSError, EOFError):
            return None
        except (NvctError, typed.MalformedError):
            return ""


def main() -> None:
    """Run the worker with the environment that `nvct agent worker` has made."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # else PID 1 of a container ignores it
    signal.signal(signal.SIGINT, lambda *_: sys.exit(0))
    program.unblock()
    try:
        _run(os.environ)
    except (NvctError, OSError) as failure:
        error = failure if isinstance(failure, NvctError) else NvctError(str(failure))
        sys.stderr.write(f"{line('nvct agent worker', error)}\n")
        sys.exit(error.exit_status)


def _run(env: Mapping[str, str]) -> None:
    journal = logs.from_environment(env)
    path, release = env[WORKER_ENV], env.get(RELEASE_ENV, "")
    listener = listen(path)
    _leave_network(journal)
    journal.info(f"NVML's worker listens on {path}")
    supervisor = Supervisor(
        lambda: _library(env),
        lambda: ask_engine(env),
        lambda: driver_root.machine_roots(env),
        HostSide(lambda: host_side.of_environment(env), host_side.in_child),
        release,
    )
    worker = Worker(listener, supervisor, journal, grace_s(env), path if release else "")
    signal.signal(signal.SIGALRM, lambda *_: worker.on_alarm())
    signal.signal(signal.SIGTERM, lambda *_: worker.end())
    worker.serve()


def _leave_network(journal: Log) -> None:
    """Move to a network namespace without an interface; Unix sockets in folders still work."""
    from nvct.linux.constants import CLONE_NEWNET
    from nvct.linux.kernel import KERNEL

    try:
        KERNEL.unshare(CLONE_NEWNET)
    except OSError as error:
        journal.warning(f"this process keeps its network: {error.strerror}")


def _library(env: Mapping[str, str]) -> Library:
    """Return the driver's NVML.

    DriverNotFoundError if it is missing; HostError if the installer's file names another root than
    the environment.
    """
    from nvct.host.nvml import library

    return library.find(driver_root.machine_roots(env))


if __name__ == "__main__":
    main()
