# SPDX-License-Identifier: Apache-2.0
"""Parses command lines of runc and crun: command, bundle and log.

Hot. `nvct/launcher/launcher.c` has the same parser, and both are tested with the same table of
cases (tests/unit/oci/argv_cases.py). Sources: the help of runc, runc create and runc restore, 1.1
to 1.4, and `crun --help`, 1.8 to 1.28. A container id may be "create".
"""

from __future__ import annotations

from nvct.paths import FALSE

GLOBAL_VALUE = ("log", "log-format", "root", "criu", "rootless", "cgroup-manager", "log-level")
GLOBAL_SWITCH = ("debug", "systemd-cgroup", "help", "h", "version", "v")
CREATES = ("create", "run", "restore")  # Commands that make a container from a bundle
CREATE_VALUE = (
    "bundle", "b", "config", "f", "console-socket", "pidfd-socket", "pid-file", "preserve-fds",
    "image-path", "work-path", "manage-cgroups-mode", "empty-ns", "lsm-profile",
    "lsm-mount-context",
)  # fmt: skip
COMMANDS = (
    "create", "run", "start", "kill", "delete", "exec", "state", "list", "events", "spec", "ps",
    "pause", "resume", "update", "checkpoint", "restore", "features", "help", "mounts",
)  # fmt: skip


class Invocation:
    """The command line of a low-level runtime.

    Attributes:
        command: the first word that is neither a flag nor a value, or "".
        bundle, config, log, log_format, root: the last value of --bundle or -b, of crun's
            --config or -f, of --log, of --log-format and of --root; or "".
        sure: False after an unknown global flag, which may or may not have a value.
    """

    __slots__ = (
        "bundle", "command", "config", "debug", "help", "log", "log_format", "root", "sure",
        "version",
    )  # fmt: skip

    def __init__(self) -> None:
        self.command = self.bundle = self.config = ""
        self.log = self.log_format = self.root = ""
        self.debug = self.help = self.version = False
        self.sure = True

    @property
    def creates(self) -> bool:
        """Whether this creates a container; with --help or --version it does not."""
        return self.command in CREATES and not (self.help or self.version)


def parse(args: list[str]) -> Invocation:
    """Parse the arguments after the name of the program."""
    invocation = Invocation()
    i = parse_global(args, invocation)
    if i < len(args):
        invocation.command = args[i]
        if invocation.command in CREATES:
            _parse_create(args, i + 1, invocation)
    return invocation


def parse_global(args: list[str], invocation: Invocation) -> int:
    """Parse the flags before the command; return the index of the command."""
    i = 0
    while i < len(args):
        arg = args[i]
        i += 1
        if arg == "--":
            return i
        if len(arg) < 2 or arg[0] != "-":  # a lone "-" is a word
            return i - 1
        name, joined, value = split(arg)
        if name in GLOBAL_SWITCH:
            if name == "debug":
                invocation.debug = value not in FALSE
            elif name in ("version", "v"):
                invocation.version = value not in FALSE
            elif name in ("help", "h"):
                invocation.help = value not in FALSE
            continue
        if name not in GLOBAL_VALUE:
            invocation.sure = False
            if joined or i >= len(args) or args[i] in COMMANDS:
                continue
        if not joined:
            if i >= len(args):
                return i
            value = args[i]
            i += 1
        if name == "log":
            invocation.log = value
        elif name == "log-format":
            invocation.log_format = value
        elif name == "root":
            invocation.root = value
    return i


def _parse_create(args: list[str], i: int, invocation: Invocation) -> None:
    """Parse the flags of a command that creates; they can be before and after the container id."""
    while i < len(args):
        arg = args[i]
        i += 1
        if arg == "--":
            return
        if len(arg) < 2 or arg[0] != "-":
            continue
        name, joined, value = split(arg)
        if name not in CREATE_VALUE:
            if name in ("help", "h"):
                invocation.help = value not in FALSE
            if arg[1] not in "bf" or len(arg) == 2:
                continue
            name, joined, value = arg[1], True, arg[2:]  # crun takes -bDIR; runc -bundle DIR
        if not joined:
            if i >= len(args):
                return
            value = args[i]
            i += 1
        if name in ("bundle", "b"):
            invocation.bundle = value
        elif name in ("config", "f"):
            invocation.config = value


def split(arg: str) -> tuple[str, bool, str]:
    """Return the name of a flag, whether a value is joined by "=", and that value."""
    name = arg[2:] if arg[:2] == "--" else arg[1:]
    at = name.find("=")
    if at < 0:
        return name, False, ""
    return name[:at], True, name[at + 1 :]
