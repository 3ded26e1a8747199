# SPDX-License-Identifier: Apache-2.0
"""The launcher's entry to the command line: `python -I -m nvct.cli PROGRAM ARGUMENTS`.

The commands that scripts run most often do not import the command line library: the import takes
longer than the command. That library handles all other command lines, including wrong ones.
"""

from __future__ import annotations

import gc
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

OPTIONS = "NVIDIA_CTK_"  # Prefix of the environment variables that set options
GARBAGE = 50_000  # New objects between two garbage collections; only long runs get there


def main() -> None:
    """Run the program that the first argument names."""
    # Garbage collection, above all the one at exit, takes 17 % of the time of --help.
    gc.set_threshold(GARBAGE)
    try:
        _run(sys.argv.pop(1))
    finally:
        gc.freeze()


def _run(program: str) -> NoReturn:
    call = find(sys.argv[1:])
    if call is None:
        from nvct.cli.main import run

        run(program)
    from nvct.cli import ending

    ending.run(program, lambda: call(program))


def find(arguments: list[str]) -> Callable[[str], None] | None:
    """Return the function that runs a command line; None if the library must parse it."""
    if arguments == ["--version"]:
        return _version
    if any(name.startswith(OPTIONS) for name in os.environ):
        return None
    if arguments == ["cdi", "list"]:
        return _list
    if arguments[:2] == ["cdi", "generate"]:
        output = _output(arguments[2:])
        if output is not None:
            return lambda _program: _generate(output)
    return None


def _version(program: str) -> None:
    from nvct import version

    sys.stdout.write(version.PROGRAMS[program])


def _list(_program: str) -> None:
    from nvct import paths
    from nvct.cli.cdi import devices

    devices.show(paths.CDI_SPEC_DIRS)


def _output(arguments: list[str]) -> str | None:
    """Return the value of --output ("-" if absent); None if there is any other argument."""
    match arguments:
        case []:
            return "-"
        case ["--output", value] if value:
            return None if value.startswith("-") else value
        case [argument] if argument.startswith("--output="):
            return argument.partition("=")[2]
    return None


def _generate(output: str) -> None:
    from nvct.cli.cdi import generate

    generate.write(output=output)


if __name__ == "__main__":
    main()
