# SPDX-License-Identifier: Apache-2.0
"""The process that keeps the MPS control daemons: it starts them, sets their limits, watches them.

It is a fork of NVML's supervisor, so that a start, which takes a second, delays no call of NVML.
Both sides send messages of `nvct.host.nvml.messages` when something changes::

    to the keeper    {"daemons": [...], "starts": true, "owner": ""}, see `daemons.Wanted`
    from the keeper  {"requests": 1, "state": {"nvidia.com/gpu": ""}}: how many requests it has
                     read; why the daemon of each resource is not ready, "" if it is

Level-triggered: a daemon that another process has started stays, with its limits corrected; a
daemon that has ended is started again.
"""

from __future__ import annotations

import os
import select
import signal
import time
from _socket import socket
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial

from nvct import typed
from nvct.agent.mps.control import Control, TimeSlice
from nvct.agent.mps.daemons import Daemon, Wanted
from nvct.agent.mps.place import Place, of_environment
from nvct.errors import HostError
from nvct.host.nvml import messages
from nvct.host.nvml.process import PR_SET_PDEATHSIG, WorkerProcess
from nvct.linux.deadline import Deadline

PERIOD_S, SOON_S = 2.0, 0.5  # How often the daemons are looked at; and when one has just ended
DELAYS_S = (0.0, 2.0, 5.0, 10.0, 30.0)  # Until the next start, by the failures before it
AGAIN_S = 10.0  # How often all limits are set: root in a container can send the daemon commands
HANGS = 5  # How many looks without an answer before a running daemon is killed
NOT_YET = "the MPS control daemon has not been started yet"
ENDED = "the MPS control daemon has ended"
ENDING = "the MPS control daemon is being stopped"
NO_DAEMON = "no MPS control daemon answers; mps-control-daemon must run on this node"


class Keeper:
    """The daemons that are wanted, and their state.

    Each daemon has a thread, so that one that does not answer delays no other: pods can write to
    the folder of its sockets.
    """

    def __init__(self, place: Place, changed: Callable[[], None] = lambda: None) -> None:
        self._place = place
        self._changed = changed  # called in any thread when the state may have changed
        self._kept: dict[str, Kept] = {}
        self._threads: dict[str, ThreadPoolExecutor] = {}
        self._last: dict[str, Future[None]] = {}
        self.starts = False

    @property
    def state(self) -> dict[str, str]:
        """Return why each daemon is not ready, "" if it is, by resource."""
        ending = {name: ENDING for name, last in self._last.items() if not last.done()}
        return ending | {name: kept.problem for name, kept in self._kept.items()}

    def want(self, wanted: Iterable[Daemon], *, starts: bool) -> None:
        """Keep these daemons, and no others; `starts`: whether to start and stop them."""
        self.starts = starts
        by_name = _by_name(wanted)
        for name, kept in list(self._kept.items()):
            if by_name.get(name) != kept.control.daemon:
                del self._kept[name]
                if starts:
                    self._in_turn(name, kept.control.end)
        for name, daemon in by_name.items():
            if name not in self._kept:
                control = TimeSlice if daemon.time_slice else Control
                self._kept[name] = Kept(control(daemon, self._place))

    def stop(self) -> None:
        """Stop the daemons; another keeper can start them in the same folders."""
        for name, kept in self._kept.items():
            self._in_turn(name, kept.control.stop)
        self.settle()

    def look(self) -> None:
        """Start daemons that have ended and correct limits that differ, without waiting."""
        for name in [name for name, last in self._last.items() if last.done()]:
            self._last.pop(name).result()
            if name not in self._kept:
                self._threads.pop(name).shutdown(wait=False)
        for name, kept in self._kept.items():
            if name not in self._last:
                self._in_turn(name, partial(kept.look, starts=self.starts))

    def settle(self) -> None:
        """Wait until all threads have done their work."""
        wait(self._last.values())

    def _in_turn(self, name: str, work: Callable[[], None]) -> None:
        """Do some work in the thread of a daemon, after its earlier work."""
        if name not in self._threads:
            self._threads[name] = ThreadPoolExecutor(1)
        self._last[name] = self._threads[name].submit(work)
        self._last[name].add_done_callback(lambda _: self._changed())


class Kept:
    """One daemon, and why it is not ready; "" if it is."""

    def __init__(self, control: Control) -> None:
        self.control = control
        self.problem = NOT_YET
        self._failures = 0
        self._silent = 0
        self._next_start = self._next_limits = 0.0

    def look(self, *, starts: bool) -> None:
        """Start the daemon or correct its limits if needed, and set `problem`."""
        try:
            if not self.control.is_alive():
                if not starts:
                    self.problem = NO_DAEMON
                    return
                if self.control.has_child() and self._silent < HANGS:
                    self._silent += 1
                    self.problem = "the MPS control daemon does not answer"
                    return
                if not self.problem:  # reported before the next start, because its clients ended
                    self.problem = ENDED
                    return
                if not self._start():
                    return
            self._silent = 0
            self._check(starts=starts)
        except HostError as error:
            self.problem = error.message

    def _start(self) -> bool:
        """Start the daemon if it is time; return whether it runs now."""
        if time.monotonic() < self._next_start:
            return False
        delay_s = DELAYS_S[min(self._failures, len(DELAYS_S) - 1)]
        self._next_start = time.monotonic() + delay_s
        self._failures += 1
        self.control.kill()
        self.control.start()
        return True

    def _check(self, *, starts: bool) -> None:
        difference = self.control.difference(thorough=bool(self.problem))
        if starts and (difference or time.monotonic() >= self._next_limits):
            self._next_limits = time.monotonic() + AGAIN_S
            self.control.set_limits()
            difference = self.control.difference(thorough=True)
        self.problem = difference
        if not difference:
            self._failures = 0


def serve(connection: socket) -> None:
    """Keep daemons until the other side closes the connection, and then stop them."""
    _outlive_others()
    wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    keeper = Keeper(of_environment(os.environ), lambda: os.eventfd_write(wake, 1))
    requests, due = 0, 0.0
    sent: State | None = None
    try:
        while True:
            state = State(requests=requests, state=keeper.state)
            if requests and state != sent:
                messages.send(connection, typed.dump(state))
                sent = state
                due = min(due, time.monotonic() + SOON_S) if ENDED in state.state.values() else due
            pause_s = max(0.0, due - time.monotonic()) if requests else None
            readable, _, _ = select.select([connection.fileno(), wake], [], [], pause_s)
            if connection.fileno() in readable:
                wanted = typed.load(Wanted, messages.receive(connection))
                requests += 1
                keeper.want(wanted.daemons, starts=wanted.starts)
                due = time.monotonic()
            if wake in readable:
                os.eventfd_read(wake)
            if time.monotonic() >= due:
                keeper.look()
                due = time.monotonic() + PERIOD_S
    except EOFError:
        pass
    finally:
        if keeper.starts:
            keeper.stop()


def _outlive_others() -> None:
    """Do not end by a signal to all processes of a service, nor with NVML's supervisor.

    This process ends when the connection does, after it has stopped the daemons and reset the
    compute mode of the GPUs.
    """
    import ctypes

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, 0)
    # Not SIG_IGN, which the daemons would inherit.
    signal.signal(signal.SIGTERM, lambda *_: None)


def _by_name(daemons: Iterable[Daemon]) -> dict[str, Daemon]:
    return {daemon.resource: daemon for daemon in daemons}


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What the keeper sends: how many requests it has read, and `Keeper.state`."""

    requests: int
    state: Mapping[str, str]


class KeeperProcess:
    """The keeper, for the process that starts it; `exchange` does not wait for it."""

    STOP_S = 10.0

    def __init__(self) -> None:
        self._process: WorkerProcess | None = None
        self._of_owners: dict[str, tuple[Daemon, ...]] = {}
        self._sent: Wanted | None = None
        self._requests = 0
        self._state: dict[str, str] = {}

    @property
    def pid(self) -> int | None:
        """Return its process id, None if it does not run."""
        return self._process.pid if self._process else None

    def exchange(self, wanted: Wanted) -> dict[str, str]:
        """Tell the keeper what an owner wants, and return the last state that it has sent.

        The keeper gets one list of all owners' daemons: those of other owners stay, even if an
        earlier agent has asked for them. HostError if the keeper cannot be started, or owners want
        too many daemons.
        """
        every = self._joined(wanted)
        if self._process is not None and self._process.has_ended():
            self._process.connection.close()
            self._process, self._sent, self._requests = None, None, 0
        if self._process is None:
            if not every.daemons:
                return {}
            self._process = WorkerProcess(serve)
        if every != self._sent:
            self._send(self._process, every)
        self._receive(self._process)
        others = {
            daemon.resource
            for owner, daemons in self._of_owners.items()
            if owner != wanted.owner
            for daemon in daemons
        }
        return {name: text for name, text in self._state.items() if name not in others}

    def _joined(self, wanted: Wanted) -> Wanted:
        of_owners = {**self._of_owners, wanted.owner: wanted.daemons}
        every = tuple(daemon for daemons in of_owners.values() for daemon in daemons)
        try:
            joined = Wanted(daemons=every, starts=wanted.starts)
        except ValueError as error:
            raise HostError(f"MPS control daemons cannot be kept: {error}") from error
        self._of_owners = of_owners
        return joined

    def close(self) -> None:
        """End the keeper, which stops its daemons."""
        process, self._process = self._process, None
        if process is not None:
            process.connection.close()
            if not process.wait(self.STOP_S):
                process.kill()

    def _send(self, process: WorkerProcess, wanted: Wanted) -> None:
        """Send the wanted daemons; until the keeper answers, changed ones are not ready."""
        daemons = _by_name(wanted.daemons)
        before = _by_name(self._sent.daemons if self._sent else ())
        kept = {name for name, daemon in daemons.items() if daemon == before.get(name)}
        self._state = {
            name: self._state.get(name, NOT_YET) if name in kept else NOT_YET
            for name in (*self._state, *daemons)
        }
        try:
            messages.send(process.connection, typed.dump(wanted), Deadline(1))
            self._sent = wanted
            self._requests += 1
        except (EOFError, TimeoutError, OSError) as error:
            raise HostError("the keeper of MPS control daemons does not answer") from error

    def _receive(self, process: WorkerProcess) -> None:
        while select.select([process.connection], [], [], 0)[0]:
            try:
                message = messages.receive(process.connection, Deadline(1))
                told = typed.load(State, message)
            except (EOFError, TimeoutError, typed.MalformedError):
                return
            if told.requests == self._requests:  # else it has not read the last request yet
                self._state = {**told.state}
