# SPDX-License-Identifier: Apache-2.0
"""The one door from the shim to the cold side: a process of its own, with a time limit.

Hot, but opened only when something has to be compiled. The cold side runs under its own
interpreter (which has PyYAML, nvidia-ml-py and so on) and answers with one JSON object on stdout.
A process, because an NVML that hangs can then be killed: it costs one create 20 s and a sentence.
"""

from __future__ import annotations

import posix

from nvct import errors, paths
from nvct.errors import HostError, NvctError
from nvct.oci import jsontext

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import TypeVar

    from nvct.plan.store import Store

    T = TypeVar("T")

TIMEOUT_S = 20
KEPT = ("PATH", "HOME", "XDG_CONFIG_HOME", "XDG_DATA_DIRS", "XDG_RUNTIME_DIR", "NVCT_RUN_DIR")


def run(cold: str, args: list[str], env: Mapping[str, str]) -> dict[str, jsontext.Json]:
    """Run `nvct.refresh` with the cold interpreter and return its answer.

    Raises:
        NvctError: the error that the cold side answered with.
        HostError: it crashed, could not be started or did not answer in time.
    """
    kept = {k: v for k, v in env.items() if k in KEPT or k.startswith("NVIDIA_CTK_")}
    kept.setdefault("PATH", ":".join(paths.DEFAULT_PATH_DIRS))
    data = _spawn([cold, "-I", "-m", "nvct.refresh", *args], kept)
    try:
        answer = jsontext.parse(data.decode("utf-8", "surrogateescape"), "the cold side's answer")
    except NvctError as error:
        raise HostError(
            f"{cold} -m nvct.refresh failed", hint=f"run nvct refresh {args[0]} to see why"
        ) from error
    if not isinstance(answer, dict):
        raise HostError("the cold side answered with no object")
    failed = answer.get("error")
    if isinstance(failed, dict):
        raise _rebuild(failed)
    return answer


def _rebuild(failed: dict[str, jsontext.Json]) -> NvctError:
    """Make the cold side's error again, of the same class."""
    made = getattr(errors, str(failed.get("class")), NvctError)
    error: NvctError = made(str(failed.get("message")), hint=str(failed.get("hint", "")))
    return error


def _spawn(argv: list[str], env: dict[str, str]) -> bytes:
    """Run a program and return its stdout; kill its process group after TIMEOUT_S."""
    from _signal import ITIMER_REAL, SIG_DFL, SIGALRM, SIGKILL, setitimer, signal

    read_end, write_end = posix.pipe()
    pid = posix.fork()
    if pid == 0:
        try:
            posix.setsid()
            null = posix.open("/dev/null", posix.O_RDWR)
            posix.dup2(null, 0)
            posix.dup2(write_end, 1)
            if "NVCT_DEBUG" not in env:
                posix.dup2(null, 2)
            posix.execve(argv[0], argv, env)
        finally:
            posix._exit(127)
    posix.close(write_end)

    def too_late(_number: int, _frame: object) -> None:
        posix.kill(pid, SIGKILL)
        raise HostError(
            f"looking at the driver took longer than {TIMEOUT_S} s and was stopped",
            hint="nvidia-smi may hang too; see dmesg",
        )

    signal(SIGALRM, too_late)
    setitimer(ITIMER_REAL, TIMEOUT_S)
    parts = []
    try:
        while True:
            part = posix.read(read_end, 1 << 20)
            if not part:
                break
            parts.append(part)
    finally:
        setitimer(ITIMER_REAL, 0)
        signal(SIGALRM, SIG_DFL)
        posix.close(read_end)
        posix.waitpid(pid, 0)
    return b"".join(parts)


def under_lock(store: Store, again: Callable[[], T | None], make: Callable[[], T]) -> T:
    """Return what another process has made meanwhile, else make it, one process at a time.

    Where there is no run directory to hold the lock, everybody makes their own.

    Raises:
        HostError: the lock was not free within TIMEOUT_S.
    """
    if store.fd < 0:
        return make()
    from nvct.linux.files import Lock

    with Lock(f"{store.path}/{paths.LOCK_FILE}", TIMEOUT_S):
        found = again()
        return make() if found is None else found
