# SPDX-License-Identifier: Apache-2.0
"""Program nvidia-cdi-hook: changes a container's root before its process starts.

Contract, as in the incumbent: for a missing or unknown hook name it warns and succeeds, with any
flags, so that a spec of another version does not break containers. A known hook with an
unknown flag fails. Errors are one line on stderr, which the OCI runtime quotes.
"""

from __future__ import annotations

import sys
import time

from nvct import errors
from nvct.container.plan import hook_command as flags
from nvct.errors import NvctError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from nvct.container.cdi_hook.context import Context
    from nvct.container.plan.hook_command import Kinds, Options

PROGRAM = "nvidia-cdi-hook"
GLOBAL: Kinds = {
    "debug": flags.SWITCH, "d": flags.SWITCH, "quiet": flags.SWITCH,
    "help": flags.SWITCH, "h": flags.SWITCH, "version": flags.SWITCH, "v": flags.SWITCH,
}  # fmt: skip
COMMON: Kinds = {
    "container-spec": flags.TEXT, "proc-root": flags.TEXT,
    "debug": flags.SWITCH, "d": flags.SWITCH, "quiet": flags.SWITCH,
    "help": flags.SWITCH, "h": flags.SWITCH,
}  # fmt: skip
LINK: Kinds = {"link": flags.LIST}
COMPAT: Kinds = {
    "host-driver-version": flags.TEXT,
    "host-cuda-version": flags.TEXT,
    "cuda-compat-container-root": flags.TEXT,
}
APPLY: Kinds = {
    "folder": flags.LIST,
    "mask-params": flags.SWITCH,
    "application-profile": flags.SWITCH,
}
VIEW: Kinds = {
    "view": flags.TEXT, "view-folder": flags.TEXT,
    "view-library": flags.LIST, "view-link": flags.LIST, "view-file": flags.LIST,
}  # fmt: skip
HOOKS: dict[str, Kinds] = {
    "apply": LINK | COMPAT | APPLY | VIEW,
    "chmod": {"path": flags.LIST, "mode": flags.TEXT},
    "create-symlinks": LINK,
    "disable-device-node-modification": {},
    "enable-cuda-compat": COMPAT,
    "keep-leases": {"folder": flags.TEXT, "holder": flags.TEXT, "count": flags.TEXT},
    "noop": {},
    "update-application-profile": {},
    "update-ldcache": {"folder": flags.LIST, "ldconfig-path": flags.TEXT},
}
"""Flags of each hook. --ldconfig-path is accepted but not used: no ldconfig runs."""
UNLISTED = ("keep-leases", "noop")
ELSEWHERE = {
    "create-symlinks": "apply",
    "enable-cuda-compat": "update_ldcache",
    "keep-leases": "apply",
    "noop": "apply",
}
"""The modules of hooks without one of their own; the function there has the hook's name."""


def main(argv: list[str], stdin_fd: int = 0, *, program: str = PROGRAM, run_dir: str = "") -> int:
    """Run the hook that `argv`, without the program's name, names; return the exit status.

    A failure is recorded in `run_dir` ("": nowhere) for `nvct log`, because crun does not show a
    hook's stderr. No variable can name another folder, because an engine may start hooks with an
    image's environment. Under a rootless engine the folder is `recorder.folder_of_hook`.
    """
    contexts: list[Context] = []
    began = time.monotonic()
    try:
        return _dispatch(argv, stdin_fd, program, contexts)
    except NvctError as error:
        problem = error
    except OSError as error:
        text = f"cannot use {error.filename}" if error.filename is not None else "system error"
        problem = NvctError(f"{text}: {error.strerror}")
    except Exception as error:
        if "--debug" in argv or "-d" in argv:
            raise
        text = f"{type(error).__name__}: {error}"
        problem = NvctError(text, hint="this is a defect of nvct; --debug shows where")
    _say(errors.line(program, problem))
    if run_dir:
        _record(run_dir, program, contexts, problem, began)
    return 1


def _record(
    run_dir: str, program: str, contexts: list[Context], problem: NvctError, began: float
) -> None:
    from nvct.container import recorder
    from nvct.container.plan.store import Store

    store = Store(recorder.folder_of_hook(run_dir), create=True)
    bundle = contexts[0].bundle if contexts else ""
    recorder.refused(store, program, bundle, problem, times=[began])
    store.close()


def _dispatch(argv: list[str], stdin_fd: int, program: str, contexts: list[Context]) -> int:
    name = next((word for word in argv if not word.startswith("-")), "")
    if name not in HOOKS:
        return _without_hook(argv, name, program)
    before = argv[: argv.index(name)]
    options = flags.read(before, GLOBAL)
    if (
        options.is_set("help")
        or options.is_set("h")
        or options.is_set("version")
        or options.is_set("v")
    ):
        return _without_hook(before, "", program)
    hook_options = flags.read(argv[len(before) + 1 :], HOOKS[name] | COMMON, surplus=True)
    if (
        hook_options.is_set("help")
        or hook_options.is_set("h")
        or hook_options.rest[:1] in (["help"], ["h"])
    ):
        print(usage(program, name))
        return 0
    quiet = options.is_set("quiet") or hook_options.is_set("quiet")
    _run(name, hook_options, stdin_fd, program, contexts, quiet=quiet)
    return 0


def _without_hook(argv: list[str], name: str, program: str) -> int:
    """Handle --help and --version; warn about anything else and succeed."""
    try:
        options = flags.read(argv, GLOBAL)
    except UsageError:
        options = flags.Options()
    if options.is_set("version") or options.is_set("v"):
        from nvct import version

        print(version.text("NVIDIA CDI Hook"), end="")
    elif options.is_set("help") or options.is_set("h") or name in ("help", "h"):
        print(usage(program))
    elif name:
        _say(f"{program}: warning: unsupported CDI hook: {errors.printable(name)}")
    else:
        _say(f"{program}: warning: no CDI hook specified")
    return 0


def usage(program: str, name: str = "") -> str:
    """Return the help text of the program or of a hook."""
    if not name:
        hooks = "\n".join(f"  {hook}" for hook in HOOKS if hook not in UNLISTED)
        return f"usage: {program} [--debug] [--quiet] HOOK [FLAGS]\n\nhooks:\n{hooks}"
    kinds = HOOKS[name]
    lines = [
        f"  --{flag}" + ("" if kind == flags.SWITCH else " VALUE") for flag, kind in kinds.items()
    ]
    return "\n".join([f"usage: {program} {name} [FLAGS] < STATE", "", *lines])


def _run(
    name: str,
    options: Options,
    stdin_fd: int,
    program: str,
    contexts: list[Context],
    *,
    quiet: bool,
) -> None:
    from nvct.container.cdi_hook.context import Context

    def warn(text: str) -> None:
        if not quiet:
            _say(f"{program}: warning: {errors.printable(text)}")

    context = Context(options, stdin_fd, warn)
    contexts.append(context)
    try:
        function(name)(context)
    finally:
        context.close()


def function(name: str) -> Callable[[Context], None]:
    """Return the function of a hook; only its module is imported."""
    plain = name.replace("-", "_")
    module, attribute = (ELSEWHERE[name], plain) if name in ELSEWHERE else (plain, "run")
    path = f"nvct.container.cdi_hook.{module}"
    __import__(path)
    found: Callable[[Context], None] = getattr(sys.modules[path], attribute)
    return found


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
