# SPDX-License-Identifier: Apache-2.0
"""How the launcher starts the command line: `python -I -m nvct.cli PROGRAM ARGUMENTS`.

What scripts ask most often is answered without the command line library, which takes longer to
import than the answer takes to find.
"""

import os
import sys

OPTIONS = "NVIDIA_CTK_"
"""What the variables begin with that stand for options."""


def main() -> None:
    """Run the program that the first argument names."""
    program = sys.argv.pop(1)
    if sys.argv[1:] == ["--version"]:
        from nvct import version

        sys.stdout.write(version.PROGRAMS[program])
        sys.exit()
    if sys.argv[1:] == ["cdi", "list"] and not any(map(_is_option, os.environ)):
        from nvct import paths
        from nvct.cli.cdi import devices

        sys.exit(devices.show(program, paths.CDI_SPEC_DIRS))
    from nvct.cli.main import run

    run(program)


def _is_option(variable: str) -> bool:
    return variable.startswith(OPTIONS)


if __name__ == "__main__":
    main()
