# SPDX-License-Identifier: Apache-2.0
"""How the launcher starts the command line: `python -I -m nvct.cli PROGRAM ARGUMENTS`."""

import sys

from nvct import version

if __name__ == "__main__":
    program = sys.argv.pop(1)
    if sys.argv[1:] == ["--version"]:  # what scripts ask most often: without the command line
        sys.stdout.write(version.PROGRAMS[program])
        sys.exit()
    from nvct.cli.main import run

    run(program)
