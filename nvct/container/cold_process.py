# SPDX-License-Identifier: Apache-2.0
"""Runs the cold side in its own process, with a time limit, for all of the hot side.

Hot, but loaded only when something must be compiled. The cold side runs under its own
interpreter (which has PyYAML, nvidia-ml-py and so on) and answers with one JSON object on stdout.
A process can be killed when NVML hangs: the create then fails after 20 s.
"""

from __future__ import annotations

import posix
import time

from nvct import errors, paths
from nvct.container.plan import fingerprints
from nvct.errors import HostError, NvctError, from_dict, to_dict
from nvct.linux.deadline import Deadline
from nvct.oci import jsontext

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import TypeVar

    from nvct.container.plan.store import Store

    T = TypeVar("T")


TIMEOUT_S = 20
LOCK_TIMEOUT_S = TIMEOUT_S + 10
"""Longer than TIMEOUT_S, so that a waiting create reports the error of the one with the lock."""
LAST_LOOK_S = 0.1
KILL_S, PAUSE_S = 2.0, 0.005
NOT_STARTED = 127
KEPT_VARIABLES = (
    "PATH", "HOME", "XDG_CONFIG_HOME", "XDG_DATA_DIRS", "XDG_RUNTIME_DIR", "NVCT_RUN_DIR",
    "NVCT_DEBUG",
    paths.SIM_DEV_ENV,  # only a simulated NVML reads it; a real one has a fixed /dev
)  # fmt: skip
ACTIVITIES = {
    "config": "reading config.toml",
    "registry": "reading the CDI specs",
    "own": "looking at the driver",
    "own-csv-all": "looking at the driver",
    "own-none": "looking at the driver",
    "free": "looking for a free GPU",
    "properties": "asking NVML about the GPUs",
}
OTHER_ACTIVITY = "looking for what the container asks for besides GPUs"
"""For all other plans: mode-gds and so on."""
FORMAT = 1
SUFFIX = ".failed"
SLOW_NS = 2_000_000_000
KEPT_NS = 5_000_000_000


def run(
    cold: str,
    args: list[str],
    env: Mapping[str, str],
    timeout_s: float = TIMEOUT_S,
    *,
    module: str = "nvct.compile",
) -> dict[str, jsontext.Json]:
    """Run a module with the cold interpreter and return its answer.

    Raises the NvctError in the answer, and HostError if the cold side crashed or did not answer in
    time.
    """
    cold_env = {k: v for k, v in env.items() if k in KEPT_VARIABLES or k.startswith("NVIDIA_CTK_")}
    cold_env.setdefault("PATH", ":".join(paths.DEFAULT_PATH_DIRS))
    activity = ACTIVITIES.get(args[0], OTHER_ACTIVITY)
    argv = [cold, "-I", "-m", module, *args]
    data, status = spawn(argv, cold_env, activity, timeout_s)
    try:
        answer = jsontext.parse(data.decode("utf-8", "surrogateescape"), "the cold side's answer")
    except NvctError as error:
        raise _crashed(argv, activity, status) from error
    if not isinstance(answer, dict):
        raise _crashed(argv, activity, status)
    failure = answer.get("error")
    if isinstance(failure, dict):
        raise errors.from_dict(failure)
    return answer


def _crashed(argv: list[str], activity: str, status: int) -> HostError:
    cold = argv[0]
    if status == NOT_STARTED << 8:
        return HostError(
            f"{activity} failed: {cold} cannot be started", hint="run nvct launchers install again"
        )
    if status & 0x7F:
        return HostError(
            f"{activity} failed: {cold} -m {argv[3]} died of signal {status & 0x7F}",
            hint="nvct refresh shows whether that happens again",
        )
    return HostError(
        f"{activity} failed: {cold} -m {argv[3]} gave no answer",
        hint=f"{' '.join(argv)} shows why",
    )


def spawn(
    argv: list[str], env: dict[str, str], activity: str, timeout_s: float
) -> tuple[bytes, int]:
    """Run a program; return its stdout and wait status.

    Its process group is killed after `timeout_s` seconds in which it did not wait for a processor.
    """
    from _signal import (
        ITIMER_REAL,
        SIG_IGN,
        SIG_UNBLOCK,
        SIGALRM,
        pthread_sigmask,
        setitimer,
        signal,
    )

    read_end, write_end = posix.pipe()
    pid = posix.fork()
    if pid == 0:
        _become(argv, env, write_end)
    posix.close(write_end)

    deadline = Deadline(timeout_s, pid)
    is_late = has_ended = False

    def look(_number: int, _frame: object) -> None:
        nonlocal is_late
        if has_ended:
            return
        left_s = deadline.left_s()
        if left_s or not is_late:
            is_late = not left_s  # what has come by now is read before the next look
            setitimer(ITIMER_REAL, left_s or LAST_LOOK_S)
            return
        raise HostError(
            f"{activity} took longer than {timeout_s:g} s and was stopped",
            hint="does nvidia-smi hang too? dmesg may say why",
        )

    # The parent may have blocked SIGALRM. No other code here uses the alarm, and exec follows.
    pthread_sigmask(SIG_UNBLOCK, [SIGALRM])
    previous_handler = signal(SIGALRM, look)
    setitimer(ITIMER_REAL, deadline.left_s() or LAST_LOOK_S)
    chunks = []
    try:
        while chunk := posix.read(read_end, 1 << 20):
            chunks.append(chunk)
        # Also limited: stdout can close long before the exit. It is not reaped yet: if an alarm
        # comes now, `_kill` must not find another process with its pid.
        posix.waitid(posix.P_PID, pid, posix.WEXITED | posix.WNOWAIT)
        has_ended = True
    finally:
        signal(SIGALRM, SIG_IGN)  # a look that is due would set the timer again
        setitimer(ITIMER_REAL, 0)
        signal(SIGALRM, previous_handler)
        posix.close(read_end)
        if not has_ended:
            _kill(pid)
    return b"".join(chunks), posix.waitpid(pid, 0)[1]


def _become(argv: list[str], env: dict[str, str], stdout: int) -> None:
    """Execute a program in a new session and process group; never return."""
    try:
        posix.setsid()
        null = posix.open("/dev/null", posix.O_RDWR)
        posix.dup2(null, 0)
        posix.dup2(stdout, 1)
        if "NVCT_DEBUG" not in env:
            posix.dup2(null, 2)
        posix.execve(argv[0], argv, env)
    finally:
        posix._exit(NOT_STARTED)


def _kill(pid: int) -> None:
    from _signal import SIGKILL

    try:
        posix.killpg(pid, SIGKILL)
    except OSError:  # the child has not called setsid yet
        posix.kill(pid, SIGKILL)
    left_s = KILL_S
    while not posix.waitpid(pid, posix.WNOHANG)[0] and left_s > 0:  # in state D it does not end
        time.sleep(PAUSE_S)
        left_s -= PAUSE_S


def under_lock(
    store: Store,
    look_up: Callable[[], T | None],
    make: Callable[[], T],
    timeout_s: float = LOCK_TIMEOUT_S,
    failures: Failures | None = None,
) -> T:
    """Return the result of `look_up` if another process has stored one, else that of `make`.

    One process at a time calls `make`; if the run directory cannot hold the lock, each process
    does. Raises HostError if the lock is not free in time, and NvctError if `make` fails or, with
    `failures`, has just failed in another process.
    """
    if store.fd < 0:
        return make()
    from nvct.linux.files import Lock

    if failures is not None:
        failures.check()
    lock = Lock(f"{store.path}/{paths.LOCK_FILE}", timeout_s)
    try:
        lock.__enter__()
    except OSError:  # full or read-only file system, or the lock is a directory
        return make()
    try:
        stored = look_up()
        if stored is not None:
            return stored
        if failures is None:
            return make()
        failures.check()
        return failures.watch(make)
    finally:
        lock.__exit__(None, None, None)


class Failures:
    """The last failure to make one plan, so that waiting creates do not repeat a slow attempt.

    A hanging NVML costs 20 s, and only one process at a time calls it: without this record the
    tenth create would wait for minutes, longer than engines do. A failure counts for each process
    that asked for the plan before the failure; for a later process only if the attempt was slow,
    and for KEPT_NS. In both cases the failure's fingerprints must match. After a fast failure
    each later create tries again.
    """

    __slots__ = ("_asked_at", "_config", "_name", "_proc", "_store")

    def __init__(self, store: Store, plan_name: str, config_path: str, proc_root: str) -> None:
        self._asked_at = time.monotonic_ns()
        self._store = store
        self._name = plan_name + SUFFIX
        self._config = config_path
        self._proc = proc_root

    def check(self) -> None:
        """Raise the last failure, an NvctError, if it counts for this process."""
        record = self._store.read_json(self._name)
        if record is None or record.get("nvct-failed") != FORMAT:
            return
        if record.get("config") != self._config:
            return
        began: int = record["began"]  # type: ignore[assignment]  # checksum verified: `watch` wrote it
        ended: int = record["ended"]  # type: ignore[assignment]
        now = time.monotonic_ns()
        if ended > now:  # from an earlier boot
            return
        was_slow = ended - began >= SLOW_NS and now - ended < KEPT_NS
        if (ended >= self._asked_at or was_slow) and not fingerprints.broken(record["facts"]):  # type: ignore[arg-type]
            raise from_dict(record["error"])

    def watch(self, make: Callable[[], T]) -> T:
        """Return the result of `make`; if it fails, record the error and raise it."""
        began = time.monotonic_ns()
        facts = self._facts()
        try:
            return make()
        except NvctError as error:
            document = {
                "nvct-failed": FORMAT,
                "config": self._config,
                "facts": facts,
                "began": began,
                "ended": time.monotonic_ns(),
                "error": to_dict(error),
            }
            self._store.write_json(self._name, document)
            raise

    def _facts(self) -> list[fingerprints.Fingerprint]:
        """Return fingerprints that change when the driver is loaded or config.toml is edited."""
        return [
            fingerprints.take_file(self._config, time.time_ns()),
            fingerprints.take("text", f"{self._proc}/driver/nvidia/version"),
            fingerprints.take("text", f"{self._proc}/devices"),
            fingerprints.take("list", f"{self._proc}/driver/nvidia/gpus"),
        ]
