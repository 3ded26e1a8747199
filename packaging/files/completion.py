# SPDX-License-Identifier: Apache-2.0
"""Print the completion script of a program: `completion.py nvidia-ctk bash`."""

import sys

from click.shell_completion import get_completion_class

from nvct.cli.main import program


def main(name: str, shell: str) -> None:
    """Print it.

    Raises:
        SystemExit: click knows no such shell.
    """
    found = get_completion_class(shell)
    if found is None:
        raise SystemExit(f"no completion for {shell}")
    variable = f"_{name.upper().replace('-', '_')}_COMPLETE"
    print(found(program(name), {}, name, variable).source())


if __name__ == "__main__":
    main(*sys.argv[1:])
