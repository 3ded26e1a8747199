# SPDX-License-Identifier: Apache-2.0
"""Program nvidia-container-cli, as enroot, Apptainer, Charliecloud and scripts call it.

Command line and output are libnvidia-container's; discovery is nvct's. Contract: only the result
goes to stdout; an error, also in the command line, is one line on stderr and status 1. Warnings
about the host go to the file of --debug.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from types import ModuleType
from typing import IO, NoReturn

from nvct import errors, paths
from nvct.cli.container import arguments as args
from nvct.cli.container.arguments import Option, Parsed
from nvct.errors import HostError, NvctError, OSErrorsAs, UsageError
from nvct.host.discovery_options import DiscoveryOptions
from nvct.host.model import Inventory
from nvct.host.nvml.session import NvmlSession
from nvct.host.roots import Roots
from nvct.linux.files import open_log
from nvct.version import TOOLKIT_VERSION, __version__

PROGRAM = paths.CONTAINER_CLI_PROGRAM
OPTIONS = (
    Option("debug", "d", "FILE", "Append a log to FILE"),
    Option("load-kmods", "k", "", "Load the driver's kernel modules first, if possible"),
    Option("no-pivot", "n", "", "No effect: nvct never changes its root"),
    Option("user", "u", "UID[:GID]", "No effect: NVML runs in a process of its own",
           value_may_be_missing=True),
    Option("root", "r", "PATH", "The driver's root folder"),
    Option("ldcache", "l", "FILE", "The linker's cache in that root, for info and list"),
    Option("no-create-imex-channels", "", "", "No effect: nvct makes no channels"),
)  # fmt: skip
COMMANDS = {
    "info": "Print the driver's version and the GPUs",
    "list": "List what a container needs",
    "configure": "Give a container what it needs",
}
MODULES = {"info": "info", "list": "list_files", "configure": "configure"}
TEXT = "Show what containers need of NVIDIA's driver, or give it to one."
USER = re.compile(r"\d{1,10}(:\d{1,10})?")


STREAMS = {"/dev/stdout": 1, "/dev/stderr": 2}
"""Opening these names can fail if the stream belongs to another user (enroot)."""
TERMINAL = "/dev/tty"


class Log:
    """The log of --debug: a regular file, a stream or the terminal.

    UsageError if the file cannot be written; DocumentError if the path is not a regular file.
    """

    def __init__(self, path: str) -> None:
        self._file: IO[str] | None = None
        if not path:
            return
        with OSErrorsAs(UsageError, f"cannot write to {path}"):
            if path in STREAMS:
                fd = os.dup(STREAMS[path])
            elif path == TERMINAL:
                fd = os.open(path, os.O_WRONLY | os.O_NOCTTY)
            else:
                fd = open_log(path)
        self._file = open(fd, "a", encoding="utf-8")  # noqa: SIM115  for the whole run

    def __call__(self, text: str) -> None:
        """Write a line."""
        if self._file is not None:
            timestamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            self._file.write(f"{timestamp} {errors.printable(text)}\n")
            self._file.flush()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


def main(argv: Sequence[str], env: Mapping[str, str]) -> int:
    """Run the program and return its exit status."""
    try:
        _run(argv, env)
        sys.stdout.flush()
    except BrokenPipeError:
        sys.stderr.close()
        return 141
    except NvctError as error:
        _complain(error)
        return 1
    except OSError as error:
        problem = f"cannot use {error.filename}" if error.filename is not None else "system error"
        _complain(NvctError(f"{problem}: {error.strerror}"))
        return 1
    except Exception as error:
        if "NVCT_DEBUG" in env:
            raise
        _complain(errors.unexpected(error))
        return 1
    return 0


def _complain(error: NvctError) -> None:
    sys.stderr.write(errors.line(PROGRAM, error) + "\n")


def _run(argv: Sequence[str], env: Mapping[str, str]) -> None:
    global_options = args.parse(argv, OPTIONS, in_order=True)
    if _printed_help(global_options, ""):
        return
    if not global_options.arguments or global_options.arguments[0] not in COMMANDS:
        problem = (
            f"no command {global_options.arguments[0]!r}"
            if global_options.arguments
            else "no command is given"
        )
        raise UsageError(problem, hint=f"it is one of {', '.join(COMMANDS)}; see --help")
    _command(global_options.arguments[0], global_options, env)


def _printed_help(options: Parsed, name: str) -> bool:
    """Print the help or the version if an option asks for it; report whether one does."""
    if not options.has("help") and not options.has("version"):
        return False
    print(help_of(name) if options.has("help") else version(), end="")
    return True


def _command(name: str, global_options: Parsed, env: Mapping[str, str]) -> None:
    command_options = args.parse(global_options.arguments[1:], _module(name).OPTIONS)
    if _printed_help(command_options, name):
        return
    user = global_options.text("user")
    if user and not USER.fullmatch(user):
        raise UsageError(f"--user {user!r} is not UID[:GID]")
    if name != "configure" and command_options.arguments:
        raise UsageError(f"{name} takes no argument such as {command_options.arguments[0]!r}")
    if name == "configure":
        env = without_image_variables(env)
    log = Log(global_options.text("debug"))
    try:
        log(f"{PROGRAM} {name}, nvct {__version__}")
        _execute(name, global_options, command_options, env, log)
    except NvctError as error:
        error.hint = error.hint.replace("--driver-root", "--root")  # its name here
        log(f"error: {error.message}")
        raise
    finally:
        log.close()


def without_image_variables(env: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without the variables that an image can set.

    enroot's 99-nvidia.sh exports all NVIDIA_* of an image before it starts configure: a variable
    that names a config.toml would choose which libnvidia-ml is loaded. libnvidia-container reads
    none of these variables.
    """
    variables = {name: value for name, value in env.items() if not name.startswith("NVIDIA_")}
    if paths.OWN_CONFIG_ENV in variables:
        variables[paths.CONFIG_ENV] = variables[paths.OWN_CONFIG_ENV]
    return variables


def _execute(
    name: str, global_options: Parsed, command_options: Parsed, env: Mapping[str, str], log: Log
) -> None:
    from nvct.compile import live_host
    from nvct.config import load

    settings = load.load(load.path_from(env))
    configured = live_host.roots_of(settings).driver_root
    settings = settings.replaced(driver_root=global_options.text("root") or settings.driver_root)
    roots = live_host.roots_of(settings)
    if global_options.has("load-kmods"):
        _load_modules(roots, log)
    if name == "configure":
        _check_root(roots, configured)
        from nvct.cli.container import configure as container_configure

        container_configure.run(command_options, settings, roots, env, log)
        return
    options = _discovery_options(global_options, roots)
    elsewhere = bool(options.search_paths) or roots.driver_root != configured
    inventory = live_host.discover_or_view(settings, options, elsewhere=elsewhere)
    for sentence in (*inventory.notes, *inventory.warnings):
        log(sentence)
    from nvct.cli.container import info, list_files

    nvml = info.initialized(inventory)
    if name == "info":
        _info(inventory, nvml, command_options, log)
        return
    stat_node, mps = live_host.stat_node(settings), env.get(list_files.MPS_VARIABLE, "")
    lister = list_files.Lister(inventory, roots, command_options, stat_node, mps)
    sys.stdout.write("".join(f"{line}\n" for line in lister.lines()))


def _info(
    inventory: Inventory, nvml: NvmlSession | None, command_options: Parsed, log: Log
) -> None:
    from nvct.cli.container import info as container_info

    def warn(text: str) -> None:
        log(text)
        sys.stderr.write(f"{PROGRAM}: warning: {errors.printable(text)}\n")

    versions, rows = container_info.ask(inventory, nvml, warn)
    show = container_info.as_csv if command_options.has("csv") else container_info.as_text
    sys.stdout.write(show(versions, rows))


def _check_root(roots: Roots, configured: str) -> None:
    """Raise HostError for a driver root other than that of the plans, which the shim uses too."""
    if roots.driver_root != configured:
        raise HostError(
            f"configure takes the driver from {configured}, not from {roots.driver_root}",
            hint="set nvidia-container-cli.root in config.toml",
        )


def _discovery_options(global_options: Parsed, roots: Roots) -> DiscoveryOptions:
    """Return discovery's options; --ldcache restricts it to that cache's folders (incumbent)."""
    options = DiscoveryOptions(compat32=True)
    path = global_options.text("ldcache")
    if not path:
        return options
    from nvct.host.roots import join
    from nvct.linux import ldcache

    cache_path = join(roots.driver_root, path)
    with (
        OSErrorsAs(HostError, f"--ldcache: {cache_path} cannot be read"),
        open(cache_path, "rb") as file,
    ):
        cache = ldcache.parse(file.read(ldcache.LIMIT + 1))
    folders = dict.fromkeys(os.path.dirname(entry[1]) for entry in cache.entries)
    search_paths = [
        join(roots.driver_root, folder) for folder in folders if folder.startswith("/")
    ]
    return replace(options, search_paths=tuple(search_paths))


def _load_modules(roots: Roots, log: Log) -> None:
    """Load the missing kernel modules; a failure is only logged, as later steps report it."""
    from nvct.host import device_nodes, procfs

    if procfs.driver_version(roots) and "nvidia-uvm" in procfs.majors(roots):
        return
    try:
        for text in device_nodes.load(roots.driver_root, device_nodes.run):
            log(text)
    except HostError as error:
        log(error.message)


def _module(name: str) -> ModuleType:
    return import_module(f"nvct.cli.container.{MODULES[name]}")


def help_of(name: str) -> str:
    """Return the help of the program, or of a command."""
    if not name:
        head = f"{PROGRAM} [OPTION...] COMMAND [ARG...]"
        return args.usage(head, TEXT, OPTIONS, COMMANDS.items())
    module = _module(name)
    arguments = getattr(module, "ARGUMENTS", "")
    return args.usage(f"{PROGRAM} {name} [OPTION...]{arguments}", module.TEXT, module.OPTIONS)


def version() -> str:
    """Return the output of --version: libnvidia-container's first two lines, and nvct's own."""
    first = f"cli-version: {TOOLKIT_VERSION}\nlib-version: {TOOLKIT_VERSION}\n"
    return f"{first}nvct: {__version__}\n"


def nvidia_container_cli() -> NoReturn:
    """Program nvidia-container-cli."""
    sys.exit(main(sys.argv[1:], os.environ))
