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

from nvct.errors import NvctError, unexpected
from nvct.oci import argv
from nvct.paths import SHIM_PROGRAM

TYPE_CHECKING = False
if TYPE_CHECKING:
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
    progress = Progress(invocation.log)
    try:
        _run(program, invocation, env, cold, progress)
    except NvctError as error:
        from nvct.container.shim.log import report

        report(program, error, invocation, progress.logs)
        _record(program, invocation, env, error, progress)
        posix._exit(error.exit_status)  # skips finalisation: saves 1 ms
    except Exception as error:
        from nvct.container.shim.log import report_crash

        report_crash(program, error, invocation, progress.logs, debug="NVCT_DEBUG" in env)
        _record(program, invocation, env, unexpected(error), progress)
        posix._exit(1)


class Progress:
    """How far a run has come, for reports of a failure.

    Attributes:
        logs: where an error is reported.
        times: of the begin and of the end of each step, see `recorder.STEPS`.
    """

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
    """Record why a container is not created, whatever it is: engines may show less."""
    if not invocation.creates:
        return
    from nvct.container import recorder
    from nvct.container.plan.store import Store, run_dir

    store = Store(run_dir(env), create=True)
    recorder.refused(
        store, program, invocation.bundle, error, times=progress.times, decision=progress.decision
    )
    store.close()


def _run(
    program: str,
    invocation: argv.Invocation,
    env: dict[str, str],
    cold: str,
    progress: Progress,
) -> NoReturn:
    from nvct.container import settings
    from nvct.container.plan.store import Store, run_dir
    from nvct.container.shim import lowlevel

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
    path = lowlevel.find(config.runtimes, env.get("PATH", ""))
    store.close()
    lowlevel.become(path, sys.argv[2:])


def _create(
    invocation: argv.Invocation,
    config: Config,
    host: Host,
    trouble: NvctError | None,
    progress: Progress,
) -> Decision:
    """Edit the bundle of a create or run command; return the decision.

    Raises:
        NvctError: the request is refused, and why.
    """
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
