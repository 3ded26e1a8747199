# SPDX-License-Identifier: Apache-2.0
"""Starts an MPS control daemon, sets and reads its limits, and stops it; sets time slices.

The program nvidia-cuda-mps-control is the daemon if started with -f. Without -f, it sends the
commands of its standard input to the daemon of CUDA_MPS_PIPE_DIRECTORY.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import shutil
import subprocess
import time

from nvct.agent.mps import shm
from nvct.agent.mps.daemons import Daemon
from nvct.agent.mps.place import Place
from nvct.errors import HostError, OSErrorsAs

PROGRAM, SMI = "nvidia-cuda-mps-control", "nvidia-smi"
GPU = "GPU-"
MULTI_USER = "-M"
EXCLUSIVE, DEFAULT = "EXCLUSIVE_PROCESS", "DEFAULT"
CALL_S = 5.0
ANSWER = 4096
"""The most seconds and bytes of an answer: a client can replace the daemon's socket by its own."""
START_S = 5.0  # Until a daemon answers
POLL_S = 0.05
PERCENTAGE = "default_active_thread_percentage"
LIMIT = "default_device_pinned_mem_limit"
PERCENTAGE_OF, LIMIT_OF = "active_thread_percentage", "device_pinned_mem_limit"  # Of one server
AMOUNT = re.compile(r"(\d+)\s*([GM])")
MIB = {"M": 1, "G": 1024}  # By the unit of an answer
SELINUX = "/sys/fs/selinux"
CONTAINERS = b"system_u:object_r:container_file_t:s0"
"""The SELinux context of files that containers can use."""


class Control:
    """The daemon of one resource, in a folder of that name; HostError if it does not answer."""

    def __init__(self, daemon: Daemon, place: Place) -> None:
        self.daemon = daemon
        self._place = place
        self._child: subprocess.Popen[bytes] | None = None

    def is_alive(self) -> bool:
        """Return whether a daemon answers, this process's child or another one's."""
        try:
            return bool(self._say(f"get_{PERCENTAGE}"))
        except HostError:
            return False

    def has_child(self) -> bool:
        """Return whether a daemon runs that this process has started."""
        return self._child is not None and self._child.poll() is None

    def start(self) -> None:
        """Start the daemon, and wait until it answers."""
        self.end_child()
        own = shm.make_folders(self._place, self.daemon)
        self._set_compute_mode(EXCLUSIVE)
        pipe, log = self._place.folders(self.daemon.resource)
        with OSErrorsAs(HostError, f"{PROGRAM} cannot be started"):
            if os.path.isdir(SELINUX):
                os.setxattr(pipe, "security.selinux", CONTAINERS)
            # An older program, without the option, ends at once.
            is_ready = self.daemon.multi_user and not self._run_daemon("-f", MULTI_USER, shm=own)
            status = 0 if is_ready else self._run_daemon("-f", shm=own)
        if status:
            raise HostError(f"{PROGRAM} has ended with status {status}; see {log}/control.log")

    def _run_daemon(self, *options: str, shm: str) -> int:
        """Start the daemon and wait until it answers; return the status if it has ended."""
        self._child = child = subprocess.Popen(
            self._place.command(PROGRAM, *options, shm=shm),
            env=self._environment(),
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        until = time.monotonic() + START_S
        while not self.is_alive():
            status = child.poll()
            if status is not None:
                return status or 1
            if time.monotonic() > until:
                raise HostError(f"{PROGRAM} does not answer within {START_S:g} s of its start")
            time.sleep(POLL_S)
        return 0

    def set_limits(self) -> None:
        """Set the limits of future clients, also on servers that already run."""
        for index, mib in self.daemon.limits.items():
            self._say(f"set_{LIMIT} {index} {mib}M")
        if self.daemon.percentage:
            self._say(f"set_{PERCENTAGE} {self.daemon.percentage}")
        # After the defaults: a server that starts now has them.
        for server in filter(str.isdecimal, self._say("get_server_list").split()):
            for index, mib in self.daemon.limits.items():
                self._say(f"set_{LIMIT_OF} {server} {index} {mib}M")
            if self.daemon.percentage:
                self._say(f"set_{PERCENTAGE_OF} {server} {self.daemon.percentage}")

    def difference(self, *, thorough: bool) -> str:
        """Return how the limits differ from the wanted ones, "" if they do not.

        A new daemon has no limits: the percentage is enough to see that it was started again.
        `thorough`: whether to compare the memory of each GPU, too.
        """
        wanted = self.daemon.percentage
        answer = self._say(f"get_{PERCENTAGE}")
        if wanted and not _is_percentage(answer, wanted):
            return f"its default active thread percentage is {answer or 'unknown'}, not {wanted}"
        for index, mib in self.daemon.limits.items() if thorough else ():
            answer = self._say(f"get_{LIMIT} {index}")
            if not _is_amount(answer, mib):
                return f"the memory limit of GPU {index} is {answer or 'unknown'}, not {mib}M"
        return ""

    def stop(self) -> None:
        """End the daemon, and let any number of processes use its GPUs."""
        # First: once this daemon is silent, another keeper can start one.
        with contextlib.suppress(HostError):  # a GPU may be gone
            self._set_compute_mode(DEFAULT)
        try:
            self._say("quit")
        except HostError:  # it does not read commands, so waiting is useless
            self.kill()
        self.end_child()

    def end(self) -> None:
        """Stop the daemon for good."""
        self.stop()
        self.remove()

    def remove(self) -> None:
        """Remove the folder of a claim, also while running pods have it mounted."""
        if self.daemon.is_of_claim:
            folder = f"{self._place.folder}/{self.daemon.resource}"
            with contextlib.suppress(OSError):  # an earlier version has mounted nothing
                shm.unmount(folder)
            # Without the mount, pods could write to the folder itself, in folders of any depth.
            with contextlib.suppress(RecursionError):
                shutil.rmtree(folder, ignore_errors=True)

    def end_child(self) -> None:
        """Wait for the end of a daemon that this process has started; kill it if it lives on."""
        if self._child is None:
            return
        try:
            self._child.wait(CALL_S if self._child.poll() is None else 0)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._child = None

    def kill(self) -> None:
        """Kill a child that no longer answers."""
        if self._child is not None:
            self._child.kill()
            self.end_child()

    def _say(self, command: str) -> str:
        return self._run(PROGRAM, command=command)

    def _environment(self) -> dict[str, str]:
        """Return the variables of the daemon; the daemon of a claim sees only the claim's GPUs."""
        found = self._place.environment(self.daemon.resource)
        if self.daemon.is_of_claim:
            found["CUDA_VISIBLE_DEVICES"] = ",".join(self.daemon.uuids)
        return found

    def _set_compute_mode(self, mode: str) -> None:
        for uuid in self.daemon.uuids:
            if uuid.startswith(GPU):  # a MIG device has no mode
                self._run(SMI, "-i", uuid, "-c", mode)

    def _run(self, program: str, *words: str, command: str = "") -> str:
        with OSErrorsAs(HostError, f"{program} cannot be started"):
            child = subprocess.Popen(
                self._place.command(program, *words),
                env=self._place.environment(self.daemon.resource),
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )  # fmt: skip
        try:
            data = _told(child, f"{command}\n".encode(), time.monotonic() + CALL_S)
        except subprocess.TimeoutExpired as error:
            raise HostError(f"{program} does not answer within {CALL_S:g} s") from error
        finally:
            child.kill()
            child.wait()
            if child.stdout is not None:
                child.stdout.close()
        if len(data) > ANSWER:
            raise HostError(f"{program} answers with more than {ANSWER} bytes")
        answer = data.decode(errors="replace").strip()
        if child.returncode:
            raise HostError(f"{program} has failed: {answer or f'status {child.returncode}'}")
        return answer


class TimeSlice(Control):
    """The time slice of a claim's GPUs, which nvidia-smi sets, and sets back at the end.

    The keeper treats it like a daemon. Only a claim that has the GPUs alone asks for one.
    """

    _is_set = False

    def is_alive(self) -> bool:
        """Return whether this process has set the time slice."""
        return self._is_set

    def start(self) -> None:
        """Set the time slice of each GPU."""
        shm.make_folders(self._place, self.daemon)  # the program runs where a daemon would
        self._set(self.daemon.time_slice)
        self._is_set = True

    def set_limits(self) -> None:
        """Do nothing: there are no clients."""

    def difference(self, *, thorough: bool) -> str:  # noqa: ARG002
        """Return "": nvidia-smi has no output of one GPU's time slice that can be parsed."""
        return ""

    def stop(self) -> None:
        """Set the default again."""
        with contextlib.suppress(HostError):  # a GPU may be gone
            self._set(0)
        self._is_set = False

    def _set(self, number: int) -> None:
        for uuid in self.daemon.uuids:
            self._run(SMI, "compute-policy", "-i", uuid, "--set-timeslice", str(number))


def _told(child: subprocess.Popen[bytes], command: bytes, end: float) -> bytes:
    """Return a program's answer to a command, cut after ANSWER + 1 bytes."""
    if child.stdin is None or child.stdout is None:
        return b""
    with contextlib.suppress(BrokenPipeError), child.stdin as pipe:
        pipe.write(command)
    data = b""
    output = select.poll()
    output.register(child.stdout, select.POLLIN)
    while len(data) <= ANSWER:
        rest_s = end - time.monotonic()
        if rest_s < 0 or not output.poll(rest_s * 1000):
            raise subprocess.TimeoutExpired(child.args, CALL_S)
        chunk = os.read(child.stdout.fileno(), ANSWER + 1 - len(data))
        if not chunk:
            child.wait(max(0.0, end - time.monotonic()))
            break
        data += chunk
    return data


def _is_percentage(answer: str, wanted: int) -> bool:
    try:
        return abs(float(answer) - wanted) < 1
    except ValueError:
        return False


def _is_amount(answer: str, mib: int) -> bool:
    """Return whether an answer is this amount of memory, in whole units: 3840M is shown as 3G.

    An answer of another form counts as equal: some drivers give one after the limit is set.
    """
    amounts = AMOUNT.findall(answer)
    if not amounts:
        return bool(answer)
    number, unit = amounts[-1]
    return bool(int(number) == mib // MIB[unit])
