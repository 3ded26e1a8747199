# SPDX-License-Identifier: Apache-2.0
"""Program nvidia-cdi-hook: does a container's work before its own process starts.

Contract, as the incumbent's, so that a spec from another version doesn't break containers: no
hook's name, or one unknown here, is a warning and success, whatever flags come with it. A known
hook with an unknown flag fails. Errors are one line on stderr, which the OCI runtime quotes.
"""

from __future__ import annotations

import sys

from nvct import errors
from nvct.container.cdi_hook import options as flags
from nvct.errors import NvctError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

    from nvct.container.cdi_hook.options import Kinds, Options

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
HOOKS: dict[str, Kinds] = {
    "apply": LINK | COMPAT | APPLY,
    "chmod": {"path": flags.LIST, "mode": flags.TEXT},
    "create-symlinks": LINK,
    "disable-device-node-modification": {},
    "enable-cuda-compat": COMPAT,
    "noop": {},
    "update-application-profile": {},
    "update-ldcache": {"folder": flags.LIST, "ldconfig-path": flags.TEXT},
}
"""Flags of each hook. --ldconfig-path is taken and not used: no ldconfig runs."""


def main(argv: list[str], stdin_fd: int = 0, *, program: str = PROGRAM) -> int:
    """Run the hook that the arguments, without the program's name, ask for.

    Returns:
        The exit status: 0 done or nothing to do, 1 failed.
    """
    try:
        return _dispatch(argv, stdin_fd, program)
    except NvctError as error:
        _say(errors.line(program, error))
    except OSError as error:
        what = f"cannot use {error.filename}" if error.filename is not None else "system error"
        _say(errors.line(program, NvctError(f"{what}: {error.strerror}")))
    except Exception as error:
        if "--debug" in argv or "-d" in argv:
            raise
        text = f"{type(error).__name__}: {error}"
        _say(errors.line(program, NvctError(text, hint="a defect; --debug shows where")))
    return 1


def _dispatch(argv: list[str], stdin_fd: int, program: str) -> int:
    name = _hook_name(argv)
    if name not in HOOKS:
        return _without_hook(argv, name, program)
    before = argv[: argv.index(name)]
    found = flags.read(before, GLOBAL)
    if found.is_set("help") or found.is_set("h") or found.is_set("version") or found.is_set("v"):
        return _without_hook(before, "", program)
    given = flags.read(argv[len(before) + 1 :], HOOKS[name] | COMMON, surplus=True)
    if given.is_set("help") or given.is_set("h") or given.rest[:1] in (["help"], ["h"]):
        print(usage(program, name))
        return 0
    quiet = found.is_set("quiet") or given.is_set("quiet")
    _run(name, given, stdin_fd, program, quiet=quiet)
    return 0


def _hook_name(argv: list[str]) -> str:
    """Return the first word that is no flag."""
    return next((word for word in argv if not word.startswith("-")), "")


def _without_hook(argv: list[str], name: str, program: str) -> int:
    """Answer --help and --version; warn of anything else, and succeed."""
    try:
        found = flags.read(argv, GLOBAL)
    except UsageError:
        found = flags.Options()
    if found.is_set("version") or found.is_set("v"):
        from nvct import version

        print(version.text("NVIDIA CDI Hook"), end="")
    elif found.is_set("help") or found.is_set("h") or name in ("help", "h"):
        print(usage(program))
    elif name:
        _say(f"{program}: warning: unsupported CDI hook: {errors.printable(name)}")
    else:
        _say(f"{program}: warning: no CDI hook specified")
    return 0


def usage(program: str, name: str = "") -> str:
    """Return how the program or one of its hooks is used."""
    if not name:
        hooks = "\n".join(f"  {hook}" for hook in HOOKS if hook != "noop")
        return f"usage: {program} [--debug] [--quiet] HOOK [FLAGS]\n\nhooks:\n{hooks}"
    known = HOOKS[name]
    lines = [
        f"  --{flag}" + ("" if kind == flags.SWITCH else " VALUE") for flag, kind in known.items()
    ]
    return "\n".join([f"usage: {program} {name} [FLAGS] < STATE", "", *lines])


def _run(name: str, options: Options, stdin_fd: int, program: str, *, quiet: bool) -> None:
    from nvct.container.cdi_hook.context import Context

    def warn(text: str) -> None:
        if not quiet:
            _say(f"{program}: warning: {errors.printable(text)}")

    context = Context(options, stdin_fd, warn)
    try:
        module(name).run(context)
    finally:
        context.close()


def module(name: str) -> ModuleType:
    """Import a hook's module; a hook pays for no other's."""
    module = f"nvct.container.cdi_hook.{name.replace('-', '_')}"
    __import__(module)
    return sys.modules[module]


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
