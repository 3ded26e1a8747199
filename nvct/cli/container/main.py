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
from dataclasses import replace

from nvct import errors, paths
from nvct.cli.container import arguments as args
from nvct.cli.container.arguments import Option
from nvct.errors import HostError, NvctError, UsageError
from nvct.linux.files import open_log
from nvct.version import TOOLKIT_VERSION, __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import IO, NoReturn

    from nvct.cli.container.arguments import Parsed
    from nvct.config.model import Config
    from nvct.host.discovery_options import DiscoveryOptions
    from nvct.host.model import Inventory
    from nvct.host.nvml.session import NvmlSession
    from nvct.host.roots import Roots

PROGRAM = paths.CONTAINER_CLI_PROGRAM
OPTIONS = (
    Option("debug", "d", "FILE", "Append to FILE what is found and done"),
    Option("load-kmods", "k", "", "Load the driver's kernel modules first, if that can be"),
    Option("no-pivot", "n", "", "No effect: nvct never changes its root"),
    Option("user", "u", "UID[:GID]", "No effect: NVML is asked in a process of its own",
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
TEXT = "NVIDIA's driver for containers: what there is of it, and a container that gets it."
USER = re.compile(r"\d{1,10}(:\d{1,10})?")


STREAMS = {"/dev/stdout": 1, "/dev/stderr": 2}
"""Opening these names can fail if the stream belongs to another user (enroot)."""
TERMINAL = "/dev/tty"


class Log:
    """The log of --debug: a regular file, a stream or the terminal.

    Raises:
        UsageError: the file cannot be written.
        DocumentError: the path is not a regular file.
    """

    def __init__(self, path: str) -> None:
        """Open the file; an empty path disables the log."""
        self._file: IO[str] | None = None
        if not path:
            return
        try:
            if path in STREAMS:
                fd = os.dup(STREAMS[path])
            elif path == TERMINAL:
                fd = os.open(path, os.O_WRONLY | os.O_NOCTTY)
            else:
                fd = open_log(path)
        except OSError as error:
            raise UsageError(f"cannot write to {path}: {error.strerror}") from error
        self._file = open(fd, "a", encoding="utf-8")  # noqa: SIM115  for the whole run

    def __call__(self, text: str) -> None:
        """Write a line."""
        if self._file is not None:
            now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            self._file.write(f"{now} {errors.printable(text)}\n")
            self._file.flush()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


def main(argv: Sequence[str], env: Mapping[str, str]) -> int:
    """Run the program and return its exit status.

    Args:
        argv: the arguments, without the program's name.
        env: the environment.
    """
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
        what = f"cannot use {error.filename}" if error.filename is not None else "system error"
        _complain(NvctError(f"{what}: {error.strerror}"))
        return 1
    except Exception as error:
        if "NVCT_DEBUG" in env:
            raise
        _complain(errors.unexpected(error))
        return 1
    return 0


def _complain(error: NvctError) -> None:
    sys.stderr.write(errors.line(PROGRAM, error) + "\n")


def _warn(text: str) -> None:
    sys.stderr.write(f"{PROGRAM}: warning: {errors.printable(text)}\n")


def _run(argv: Sequence[str], env: Mapping[str, str]) -> None:
    said = args.parse(argv, OPTIONS, in_order=True)
    if said.has("help"):
        print(help_of(""), end="")
        return
    if said.has("version"):
        print(version(), end="")
        return
    if not said.rest or said.rest[0] not in COMMANDS:
        what = f"no command {said.rest[0]!r}" if said.rest else "no command is given"
        raise UsageError(what, hint=f"it is one of {', '.join(COMMANDS)}; see --help")
    _command(said.rest[0], said, env)


def _command(name: str, said: Parsed, env: Mapping[str, str]) -> None:
    options, _, _ = _described(name)
    own = args.parse(said.rest[1:], options)
    if own.has("help"):
        print(help_of(name), end="")
        return
    if own.has("version"):
        print(version(), end="")
        return
    user = said.text("user")
    if user and not USER.fullmatch(user):
        raise UsageError(f"--user {user!r} is no UID[:GID]")
    if name != "configure" and own.rest:
        raise UsageError(f"{name} takes no argument, and {own.rest[0]!r} is one")
    if name == "configure":
        env = without_an_images(env)
    log = Log(said.text("debug"))
    try:
        log(f"{PROGRAM} {name}, nvct {__version__}")
        _do(name, said, own, env, log)
    except NvctError as error:
        error.hint = error.hint.replace("--driver-root", "--root")  # its name here
        log(f"error: {error.message}")
        raise
    finally:
        log.close()


def without_an_images(env: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without the variables that an image can set.

    enroot's 99-nvidia.sh exports all NVIDIA_* of an image before it starts configure: a variable
    that names a config.toml would choose which libnvidia-ml is loaded. libnvidia-container reads
    none of these variables.
    """
    kept = {name: value for name, value in env.items() if not name.startswith("NVIDIA_")}
    if paths.OWN_CONFIG_ENV in kept:
        kept[paths.CONFIG_ENV] = kept[paths.OWN_CONFIG_ENV]
    return kept


def _do(name: str, said: Parsed, own: Parsed, env: Mapping[str, str], log: Log) -> None:
    from nvct.compile import live_host
    from nvct.config import load

    settings = load.load(load.path_from(env))
    configured = live_host.roots_of(settings).driver_root
    settings = settings.replaced(driver_root=said.text("root") or settings.driver_root)
    roots = live_host.roots_of(settings)
    if said.has("load-kmods"):
        _load_modules(roots, log)
    if name == "configure":
        _same_root(roots, configured)
        from nvct.cli.container import configure as container_configure

        container_configure.run(own, settings, roots, env, log)
        return
    wanted = _wanted(said, roots)
    elsewhere = bool(wanted.search_paths) or roots.driver_root != configured
    seen = live_host.discover_or_view(settings, wanted, elsewhere=elsewhere)
    for sentence in (*seen.notes, *seen.warnings):
        log(sentence)
    from nvct.cli.container import info as container_info

    nvml = container_info.initialized(seen)
    if name == "info":
        _info(seen, nvml, own, log)
    else:
        _list(seen, settings, roots, own, env)


def _info(seen: Inventory, nvml: NvmlSession | None, own: Parsed, log: Log) -> None:
    from nvct.cli.container import info as container_info

    def warn(text: str) -> None:
        log(text)
        _warn(text)

    versions, rows = container_info.ask(seen, nvml, warn)
    show = container_info.as_csv if own.has("csv") else container_info.as_text
    sys.stdout.write(show(versions, rows))


def _list(
    seen: Inventory, settings: Config, roots: Roots, own: Parsed, env: Mapping[str, str]
) -> None:
    from nvct.cli.container import list_files as container_list
    from nvct.compile import live_host

    mps = env.get(container_list.MPS_VARIABLE, "")
    lister = container_list.Lister(seen, roots, own, live_host.stat_node(settings), mps)
    sys.stdout.write("".join(f"{line}\n" for line in lister.lines()))


def _same_root(roots: Roots, configured: str) -> None:
    """Refuse a driver root that differs from the root of the plans, which the shim shares."""
    if roots.driver_root != configured:
        raise HostError(
            f"configure takes the driver from {configured}, not from {roots.driver_root}",
            hint="say so in config.toml: nvidia-container-cli.root",
        )


def _wanted(said: Parsed, roots: Roots) -> DiscoveryOptions:
    """Return the options of discovery: --ldcache restricts it to the folders in that cache.

    As in libnvidia-container.

    Raises:
        HostError: the cache cannot be read.
    """
    from nvct.host.discovery_options import DiscoveryOptions

    options = DiscoveryOptions(compat32=True)
    path = said.text("ldcache")
    if not path:
        return options
    from nvct.host.roots import join
    from nvct.linux import ldcache

    place = join(roots.driver_root, path)
    try:
        with open(place, "rb") as file:
            cache = ldcache.parse(file.read(ldcache.LIMIT + 1))
    except OSError as error:
        raise HostError(f"--ldcache: {place} cannot be read: {error.strerror}") from error
    folders = dict.fromkeys(os.path.dirname(entry[1]) for entry in cache.entries)
    places = [join(roots.driver_root, folder) for folder in folders if folder.startswith("/")]
    return replace(options, search_paths=tuple(places))


def _load_modules(roots: Roots, log: Log) -> None:
    """Load the missing kernel modules; a failure is only logged, and appears in later steps."""
    from nvct.host import procfs
    from nvct.host.device_nodes import kernel_modules

    if procfs.driver_version(roots) and "nvidia-uvm" in procfs.majors(roots):
        return
    try:
        for text in kernel_modules.load(roots.driver_root, kernel_modules.run):
            log(text)
    except HostError as error:
        log(error.message)


def _described(name: str) -> tuple[Sequence[Option], str, str]:
    """Return a command's options, description and arguments."""
    if name == "info":
        from nvct.cli.container import info as container_info

        return container_info.OPTIONS, container_info.TEXT, ""
    if name == "list":
        from nvct.cli.container import list_files as container_list

        return container_list.OPTIONS, container_list.TEXT, ""
    from nvct.cli.container import configure as container_configure

    arguments = f" {container_configure.ARGUMENTS}"
    return container_configure.OPTIONS, container_configure.TEXT, arguments


def help_of(name: str) -> str:
    """Return the help of the program, or of a command."""
    if not name:
        head = f"{PROGRAM} [OPTION...] COMMAND [ARG...]"
        return args.usage(head, TEXT, OPTIONS, args.section("Commands", COMMANDS.items()))
    options, text, arguments = _described(name)
    return args.usage(f"{PROGRAM} {name} [OPTION...]{arguments}", text, options)


def version() -> str:
    """Return the output of --version: libnvidia-container's first two lines, and nvct's own."""
    first = f"cli-version: {TOOLKIT_VERSION}\nlib-version: {TOOLKIT_VERSION}\n"
    return f"{first}nvct: {__version__}\n"


def nvidia_container_cli() -> NoReturn:
    """Program nvidia-container-cli."""
    sys.exit(main(sys.argv[1:], os.environ))
