# SPDX-License-Identifier: Apache-2.0
"""Program nvidia-container-runtime-hook (and nvidia-container-toolkit): the command line.

Contract, as the incumbent's: `prestart` delivers, `poststart` and `poststop` do nothing and
succeed, any other command is a usage error with status 2. All other errors are one line on stderr
and status 1, and the OCI runtime then fails the container. A container that requests no GPU is
not changed and never fails here.
"""

from __future__ import annotations

import posix
import sys
import time

from nvct import errors, paths
from nvct.config.model import CHECKED
from nvct.container.plan import hook_command as flags
from nvct.errors import (
    ConfigError,
    NotPermittedError,
    NvctError,
    RequestError,
    UsageError,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from nvct.config.model import Config
    from nvct.container.decide import Decision
    from nvct.container.host import Host
    from nvct.container.plan.hook_command import Kinds
    from nvct.container.prestart.container import Process
    from nvct.container.request.model import Request
    from nvct.oci.bundle import Bundle


PROGRAM = paths.RUNTIME_HOOK_PROGRAM
FLAGS: Kinds = {
    "config": flags.TEXT, "debug": flags.SWITCH, "version": flags.SWITCH,
    "help": flags.SWITCH, "h": flags.SWITCH,
}  # fmt: skip
NOTHING_TO_DO = ("poststart", "poststop")
USAGE = """\
usage: {program} [-config FILE] [-debug] [-version] COMMAND

commands:
  prestart    give a container what it asks for; its state is read from stdin
  poststart   nothing
  poststop    nothing"""
HANDLED = ("auto", "legacy")
"""The configured modes in which the hook delivers; all modes if skip-mode-detection is set."""
VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"
INJECTED = "void"
"""The value of NVIDIA_VISIBLE_DEVICES in containers that a CDI spec or the shim has edited."""
HOST = "1"


def main(
    argv: list[str], env: dict[str, str], cold: str, stdin_fd: int = 0, *, program: str = PROGRAM
) -> int:
    """Run the hook and return the exit status."""
    try:
        return _dispatch(argv, env, cold, stdin_fd, program)
    except NvctError as error:
        _say(errors.line(program, error))
        return error.exit_status
    except OSError as error:
        problem = f"cannot use {error.filename}" if error.filename is not None else "system error"
        _say(errors.line(program, NvctError(f"{problem}: {error.strerror}")))
    except Exception as error:
        if "NVCT_DEBUG" in env:
            raise
        _say(errors.line(program, errors.unexpected(error)))
    return 1


def _dispatch(argv: list[str], env: dict[str, str], cold: str, stdin_fd: int, program: str) -> int:
    options = flags.read(argv, FLAGS)
    if options.is_set("version"):
        from nvct import version

        print(version.text("NVIDIA Container Runtime Hook"), end="")
        return 0
    command = options.rest[0] if options.rest else ""
    if options.is_set("help") or options.is_set("h") or command == "help":
        print(USAGE.format(program=program))
        return 0
    if command in NOTHING_TO_DO:
        return 0
    if command != "prestart":
        problem = f"no command {command!r}" if command else "no command is given"
        raise UsageError(problem, hint=f"{program} prestart < STATE")
    if options.text("config"):
        env = {**env, paths.CONFIG_ENV: options.text("config")}
    prestart(env, cold, stdin_fd, program)
    return 0


def prestart(env: dict[str, str], cold: str, stdin_fd: int, program: str = PROGRAM) -> None:
    """Deliver what a container asks for; `stdin_fd` has its state. Raises NvctError."""
    from nvct.container import recorder, settings
    from nvct.container.host import Host
    from nvct.container.plan.store import Store, run_dir
    from nvct.oci import bundle as bundles

    times = [time.monotonic()]
    decisions: list[Decision] = []

    def decided(decision: Decision) -> None:
        times.append(time.monotonic())
        decisions.append(decision)

    pid, folder = read_state(stdin_fd)
    if is_inside(pid):
        env = {}  # inside, the variables are the image's
    bundle = bundles.load(bundles.config_path(folder))
    store = Store(run_dir(env), create=True)
    try:
        config, trouble = settings.load_or_default(store, env, cold)
        if is_served(bundle) and config.engine_devices != CHECKED:
            return
        times.append(time.monotonic())
        host = Host(store, env, cold, config.proc_root)
        _deliver(
            bundle, pid, config, host, decided, folder=folder, trouble=trouble, program=program
        )
        (decision,) = decisions
        if decision.request is not None or decision.notes:
            recorder.given(store, program, folder, decision, times)
    except Exception as error:
        known = error if isinstance(error, NvctError) else errors.unexpected(error)
        last = decisions[-1] if decisions else None
        recorder.refused(store, program, folder, known, times=times, decision=last)
        raise
    finally:
        store.close()


def is_served(bundle: Bundle) -> bool:
    """Report whether the shim or a CDI spec has already delivered the GPUs."""
    values = [entry for entry in bundle.env if entry.startswith(f"{VISIBLE_DEVICES}=")]
    return values[-1:] == [f"{VISIBLE_DEVICES}={INJECTED}"]


def refuse(request: Request, config: Config) -> None:
    """Refuse CDI device names (RequestError), and modes without hooks (ConfigError)."""
    if config.mode not in HANDLED and not config.skip_mode_detection:
        raise ConfigError(
            f"{config.path or 'the configuration'}: in mode {config.mode} a prestart hook gives"
            " no GPU",
            hint="use --runtime=nvidia or CDI devices, or mode auto",
        )
    if request.qualified:
        raise RequestError(
            f"{request.source} names the CDI device {request.ids[0]}, which a hook cannot give",
            hint="use --runtime=nvidia, or CDI devices of the engine",
        )


def _deliver(
    bundle: Bundle,
    pid: int,
    config: Config,
    host: Host,
    decided: Callable[[Decision], None],
    *,
    folder: str,
    trouble: NvctError | None,
    program: str,
) -> None:
    from nvct.container.decide import decide

    processes: list[Process] = []

    def warn(text: str) -> None:
        _say(f"{program}: warning: {errors.printable(text)}")

    def accept(request: Request) -> None:
        from nvct.container.prestart.container import Process

        refuse(request, config)
        processes.append(Process(pid))  # before plans are compiled, which can take seconds
        processes[0].hold()

    host.keeper = pid
    # Mode legacy ignores annotations, which are for engines and the shim.
    legacy = config.replaced(mode="legacy")
    try:
        decision = decide(bundle, legacy, host, trouble=trouble, accept=accept)
        decided(decision)
        if decision.error is not None:
            raise decision.error
        if decision.removal is not None:
            raise NotPermittedError(
                "the policy ignores devices that the engine gave, and a hook cannot take them out",
                hint="start the container with nvidia-container-runtime",
            )
        if decision.request is not None:
            from nvct.container.prestart.container import Container, rootfs_of
            from nvct.container.prestart.deliver import deliver

            container = Container(pid, rootfs_of(bundle, folder), process=processes[0])
            try:
                deliver(container, bundle, config, host.env, decision.edits, warn=warn)
            finally:
                container.close()
    finally:
        for process in processes:
            process.close()


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")


def read_state(fd: int) -> tuple[int, str]:
    """Return PID and bundle of the container's state; BundleError if the input is not one."""
    from nvct.container.cdi_hook.context import process_of, read_object

    return process_of(read_object(fd, "state"))


def is_inside(pid: int, proc: str = "/proc") -> bool:
    """Report whether this process is in the container's mount namespace, not in the host's.

    It is if an engine starts it as a createContainer hook, with the image's environment. If /proc
    belongs to another PID namespace than this process, `pid` has no meaning, and the result is
    true: this PID namespace may be the container's.
    """
    try:
        if posix.readlink(f"{proc}/self") != str(posix.getpid()):
            return True
        own_namespace, container_namespace = [
            posix.stat(f"{proc}/{process}/ns/mnt").st_ino for process in ("self", str(pid))
        ]
    except OSError:
        return False
    try:
        return own_namespace == container_namespace != posix.stat(f"{proc}/{HOST}/ns/mnt").st_ino
    except OSError:
        from nvct.container.prestart.container import is_rootless

        # Process 1 is outside of our user namespace.
        return own_namespace == container_namespace and is_rootless(proc)
