# SPDX-License-Identifier: Apache-2.0
"""Program nvidia-container-runtime (and .cdi, .legacy): the part that needs Python.

Hot: the launcher starts it with -I -S for every create and run that may request a GPU, and for
every command line that the launcher cannot classify. It decides, edits the bundle, and executes
the low-level runtime. A container that requests no GPU never fails here.
"""

from __future__ import annotations

import posix
import sys
import time

from nvct.config.model import CHECKED, without_choice
from nvct.errors import NvctError, RuntimeNotFoundError
from nvct.oci import argv
from nvct.paths import DEFAULT_PATH_DIRS, SHIM_PROGRAM

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

    from nvct.config.model import Config
    from nvct.container.decide import Decision
    from nvct.container.host import Host

MODES = {f"{SHIM_PROGRAM}.cdi": "cdi", f"{SHIM_PROGRAM}.legacy": "legacy"}


def main(cold: str) -> NoReturn:
    """Run the shim on sys.argv: the program's name, then the low-level runtime's arguments."""
    program = sys.argv[1]
    invocation = argv.parse(sys.argv[2:])
    env = {k.decode("utf-8", "surrogateescape"): v.decode("utf-8", "surrogateescape")
           for k, v in posix.environ.items()}  # fmt: skip
    env = without_choice(env)
    progress = Progress(invocation.log)
    try:
        _run(program, invocation, env, cold, progress)
    except Exception as error:
        from nvct.container.shim.log import report

        problem = report(program, error, invocation, progress.logs, debug="NVCT_DEBUG" in env)
        _record(program, invocation, env, problem, progress)
        posix._exit(problem.exit_status)  # skips finalisation: saves 1 ms


class Progress:
    """How far a run has come: `times` are its start and the end of each step (recorder.STEPS)."""

    __slots__ = ("decision", "logs", "times")

    def __init__(self, log: str) -> None:
        self.logs = [log]
        self.times = [time.monotonic()]
        self.decision: Decision | None = None

    def end_step(self) -> None:
        """Note that a step ends now."""
        self.times.append(time.monotonic())


def _record(
    program: str,
    invocation: argv.Invocation,
    env: dict[str, str],
    error: NvctError,
    progress: Progress,
) -> None:
    """Record why a container is not created or changed, because engines may show less."""
    if not (invocation.creates or invocation.bundle):
        return
    from nvct.container import recorder
    from nvct.container.plan.store import Store, run_dir

    store = Store(run_dir(env), create=True)
    recorder.refused(
        store, program, invocation.bundle, error, times=progress.times, decision=progress.decision,
        command="" if invocation.creates else invocation.command,
    )  # fmt: skip
    store.close()


def _run(
    program: str, invocation: argv.Invocation, env: dict[str, str], cold: str, progress: Progress
) -> NoReturn:
    from nvct.container import settings
    from nvct.container.plan.store import Store, run_dir

    args = sys.argv[2:]
    store = Store(run_dir(env), create=True)
    config, trouble = settings.load_or_default(store, env, cold)
    if invocation.version:
        from nvct import version

        posix.write(1, f"{version.text('NVIDIA Container Runtime')}\n".encode())
    if invocation.creates:
        from nvct.container.host import Host

        progress.end_step()
        progress.logs.append(config.debug)
        if program in MODES:
            config = config.replaced(mode=MODES[program])
        host = Host(store, env, cold, config.proc_root)
        decision = _create(invocation, config, host, trouble, progress)
        if decision.request is not None or decision.notes:
            from nvct.container import recorder

            recorder.given(store, program, invocation.bundle, decision, progress.times)
        if config.debug:
            from nvct.container.shim.log import note

            note(program, config, invocation, decision)
    elif config.engine_devices == CHECKED and invocation.command in ("exec", "update"):
        from nvct.container.host import Host
        from nvct.container.shim import running  # they change a container

        host = Host(store, env, cold, config.proc_root)
        args = running.check(args, invocation, config, host, trouble)
    path = find_runtime(config.runtimes, env.get("PATH", ""))
    store.close()
    become(path, args)


def _create(
    invocation: argv.Invocation,
    config: Config,
    host: Host,
    trouble: NvctError | None,
    progress: Progress,
) -> Decision:
    """Edit the bundle of a create or run command; return the decision."""
    from nvct.container.decide import decide
    from nvct.linux.kernel import KERNEL
    from nvct.oci import bundle as bundles

    bundle = bundles.load(bundles.config_path(invocation.bundle, invocation.config))
    decision = decide(bundle, config, host, folder=invocation.bundle, trouble=trouble)
    progress.decision = decision
    if decision.error is None:
        progress.end_step()
    decision.into(bundle, config, KERNEL)
    bundle.save(KERNEL)
    return decision


X_OK, S_IFMT, S_IFREG = 1, 0o170000, 0o100000


def find_runtime(candidates: Sequence[str], path: str) -> str:
    """Return the path of the first candidate that is executable; else RuntimeNotFoundError."""
    for name in candidates:
        if "/" in name:
            if _executable(name):
                return name
            continue
        for folder in (*path.split(":"), *DEFAULT_PATH_DIRS):
            if folder and _executable(f"{folder}/{name}"):
                return f"{folder}/{name}"
    raise RuntimeNotFoundError(
        f"none of the low-level runtimes {', '.join(candidates) or '(empty list)'} is installed",
        hint="install runc, or set nvidia-container-runtime.runtimes in config.toml",
    )


def _executable(path: str) -> bool:
    try:
        return posix.stat(path).st_mode & S_IFMT == S_IFREG and posix.access(path, X_OK)
    except OSError:
        return False


def become(path: str, args: list[str]) -> NoReturn:
    """Execute the low-level runtime with our arguments and environment.

    Raises RuntimeNotFoundError.
    """
    from _signal import SIG_DFL, SIGPIPE, SIGXFSZ, signal

    # Python ignores both signals; the runtime and the container would inherit that.
    signal(SIGPIPE, SIG_DFL)
    signal(SIGXFSZ, SIG_DFL)
    try:
        posix.execve(path, [path, *args], _environment())
    except OSError as error:
        raise RuntimeNotFoundError(
            f"cannot execute {path}: {error.strerror}",
            hint="is it a program for this machine? see runtimes in config.toml",
        ) from error


def _environment() -> dict[bytes, bytes]:
    """Return the environment that this process was started with.

    In the C locale Python sets LC_CTYPE (PEP 538, also with -I), and the low-level runtime would
    inherit it.
    """
    env = dict(posix.environ)
    if env.get(b"LC_CTYPE") != b"C.UTF-8":
        return env
    fd = posix.open("/proc/self/environ", posix.O_RDONLY | posix.O_CLOEXEC)
    try:
        data = b""
        while part := posix.read(fd, 1 << 17):
            data += part
    finally:
        posix.close(fd)
    del env[b"LC_CTYPE"]
    for entry in data.split(b"\0"):
        if entry.startswith(b"LC_CTYPE="):
            env[b"LC_CTYPE"] = entry[9:]
    return env
