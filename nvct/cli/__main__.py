# SPDX-License-Identifier: Apache-2.0
"""How the launcher starts the command line: `python -I -m nvct.cli PROGRAM ARGUMENTS`.

What scripts ask most often is answered without the command line library, which takes longer to
import than the answer takes to find. All else, mistakes included, is left to that library.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

OPTIONS = "NVIDIA_CTK_"
"""What the variables begin with that stand for options."""


def main() -> None:
    """Run the program that the first argument names."""
    program = sys.argv.pop(1)
    call = find(sys.argv[1:])
    if call is None:
        from nvct.cli.main import run

        run(program)
    import gc

    from nvct.cli import ending

    gc.disable()  # the process ends in a moment; looking for cycles takes 4 % of it
    ending.run(program, lambda: call(program))


def find(words: list[str]) -> Callable[[str], None] | None:
    """Return what answers a command line here, None where it is the library's."""
    if words == ["--version"]:
        return _version
    if any(name.startswith(OPTIONS) for name in os.environ):
        return None
    if words == ["cdi", "list"]:
        return _list
    if words[:2] == ["cdi", "generate"]:
        output = _output(words[2:])
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


def _output(words: list[str]) -> str | None:
    """Return the value of --output where no other option is given, None where one is."""
    match words:
        case []:
            return "-"
        case ["--output", value] if value:
            return None if value.startswith("-") else value
        case [word] if word.startswith("--output="):
            return word.partition("=")[2]
    return None


def _generate(output: str) -> None:
    from nvct.cli.cdi import generate

    generate.write({**generate.DEFAULTS, "output": output})


if __name__ == "__main__":
    main()
