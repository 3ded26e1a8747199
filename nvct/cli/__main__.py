# SPDX-License-Identifier: Apache-2.0
"""How the launcher starts the command line: `python -I -m nvct.cli PROGRAM ARGUMENTS`."""

import sys

from nvct.cli.main import run

if __name__ == "__main__":
    run(sys.argv.pop(1))
